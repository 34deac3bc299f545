"""Probe tokens: the log-probabilities of a plain pass, from every backend, in the requests that labels need anyway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerFast

from lm_eval_proca.models.probes import MAX_TOKENS, Probes
from lm_eval_proca.models.shared_prefix import SharedPrefixLM
from lm_eval_proca.representations import Asked, Wanted

from .conftest import make_model
from .test_engine import TinyEngineLM
from .test_shared_prefix import LABELS, count_tokens, task

ONE_TOKEN = [" Positive", " Negative"]


def asked(n: int, labels: Sequence[str], wanted: Wanted | None = None) -> list[Instance]:
    """A task whose documents ask for probes at their first label."""
    requests = task(n, list(labels))
    for request in requests[:: len(labels)]:
        request.arguments = Asked.of(request.args, wanted or Wanted(probes=True, labels=tuple(labels)))
    return requests


@pytest.fixture
def stock(tokenizer: PreTrainedTokenizerFast) -> HFLM:
    return HFLM(make_model("gpt2", len(tokenizer)), tokenizer=tokenizer, batch_size=4, logits_cache=False)


def engine(stock: HFLM, **options: Any) -> TinyEngineLM:
    return TinyEngineLM(stock.model, tokenizer=stock.tokenizer, batch_size=4, logits_cache=False, **options)


def plain(stock: HFLM, request: Instance, probes: Sequence[int]) -> np.ndarray:
    """Log-probabilities of the probes behind the whole context, less their mean, with a root mean square of one."""
    with torch.no_grad():
        logits = stock.model(torch.tensor([stock.tok_encode(request.args[0])])).logits[0, -1]
    values = torch.log_softmax(logits, dim=-1)[list(probes)].numpy()
    values = values - values.mean()
    return values / np.sqrt(np.mean(values**2))


class TestChoice:
    def test_no_probe_begins_a_label_and_none_is_special(self, tokenizer: PreTrainedTokenizerFast) -> None:
        labels = (" Positive", " Negative", " Very good")
        found = Probes(tokenizer).beside(labels)
        firsts = {tokenizer.encode(label)[0] for label in labels}
        texts = [tokenizer.decode([token]) for token in found]
        assert not firsts & set(found)
        assert all(text.strip().isalpha() for text in texts)
        assert not set(tokenizer.all_special_ids) & set(found)
        assert len(set(found)) == len(found) > 20

    def test_as_many_as_fit_beside_the_labels(self, tokenizer: PreTrainedTokenizerFast) -> None:
        assert len(Probes(tokenizer, 60).beside((" Zz", " Yy"))) == 58
        assert len(Probes(tokenizer, 40).beside(tuple(f" Zz{i}" for i in range(35)))) == 10, "and never too few"

    def test_the_choice_is_fixed(self, tokenizer: PreTrainedTokenizerFast) -> None:
        few, many = Probes(tokenizer, 20).beside((" Zz",)), Probes(tokenizer, 40).beside((" Zz",))
        assert many[: len(few)] == few


@pytest.mark.parametrize("labels", [ONE_TOKEN, LABELS], ids=["one token", "several tokens"])
@pytest.mark.parametrize("backend", ["hf", "engine"])
def test_values_are_those_of_a_plain_pass(stock: HFLM, backend: str, labels: list[str]) -> None:
    hf = SharedPrefixLM(stock.model, tokenizer=stock.tokenizer, batch_size="auto", max_batch_tokens=256)
    requests = asked(9, labels)
    answers = (hf if backend == "hf" else engine(stock)).loglikelihood(requests, disable_tqdm=True)
    probes = Probes(stock.tokenizer).beside(tuple(labels))
    for request, answer in zip(requests[:: len(labels)], answers[:: len(labels)], strict=True):
        assert answer.representation.probes == probes
        np.testing.assert_allclose(answer.values[0], plain(stock, request, probes), atol=4e-3)
    assert [one.values is None for one in answers[1 :: len(labels)]] == [True] * 9


def test_a_model_that_cannot_share_gives_probes_in_the_passes_of_stock(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model("mamba", len(tokenizer))
    ours = SharedPrefixLM(model, tokenizer=tokenizer, batch_size=4)
    requests = asked(5, ONE_TOKEN)
    passes = count_tokens(model, lambda: ours.loglikelihood(task(5, ONE_TOKEN), True))
    answers: list[Any] = []
    assert count_tokens(model, lambda: answers.extend(ours.loglikelihood(requests, True))) == passes
    stock = HFLM(model, tokenizer=tokenizer)
    for request, answer in zip(requests[::2], answers[::2], strict=True):
        expected = plain(stock, request, answer.representation.probes)
        np.testing.assert_allclose(answer.values[0], expected, atol=4e-3)


def test_labels_and_probes_share_a_request(stock: HFLM) -> None:
    ours = engine(stock)
    ours.loglikelihood(task(1, ONE_TOKEN), disable_tqdm=True)  # which is compared with stock
    ours.prompts.clear()
    ours.loglikelihood(asked(7, ONE_TOKEN), disable_tqdm=True)
    assert len(ours.prompts) == 7


def test_more_labels_than_fit_beside_the_probes(stock: HFLM) -> None:
    ours = engine(stock)
    ours.__dict__["_most_tokens"] = 12
    words = [f" {word}" for word in ("warm", "cold", "bright", "dull", "soup", "lamp", "film", "the", "was", "and")]
    requests = asked(3, words)
    alone = engine(stock).loglikelihood(task(3, words), disable_tqdm=True)
    answers = ours.loglikelihood(requests, disable_tqdm=True)
    assert [score for score, _ in answers] == pytest.approx([score for score, _ in alone], abs=1e-5)
    assert len(answers[0].representation.probes) == 3
    expected = plain(stock, requests[0], answers[0].representation.probes)
    np.testing.assert_allclose(answers[0].values[0], expected, atol=4e-3)


def test_an_engine_that_is_asked_for_hidden_states_alone_says_what_it_has(stock: HFLM) -> None:
    [first, *_] = engine(stock).loglikelihood(asked(1, ONE_TOKEN, Wanted(layers=(-1,))), disable_tqdm=True)
    assert first.values is None
    assert first.missing == "tiny-shared-prefix gives probes (proca.representation=probes)"


def test_hidden_states_come_first_where_both_can_be_had(stock: HFLM) -> None:
    wanted = Wanted(layers=(-1,), probes=True, labels=tuple(ONE_TOKEN))
    hf = SharedPrefixLM(stock.model, tokenizer=stock.tokenizer)
    assert hf.loglikelihood(asked(2, ONE_TOKEN, wanted), disable_tqdm=True)[0].representation.layers == ("-1",)
    found = engine(stock).loglikelihood(asked(2, ONE_TOKEN, wanted), disable_tqdm=True)[0].representation
    assert found.probes == Probes(stock.tokenizer, MAX_TOKENS).beside(tuple(ONE_TOKEN))
