"""Models that leave prefixes to an engine: stock's numbers for any list of requests, or stock itself.

vLLM is not in this environment. A tiny model stands in for the engine, at the one place where an engine is called.
tests/engines has the same with vLLM.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerFast

from lm_eval_proca.errors import ModelError
from lm_eval_proca.models.engine import EngineLM, Prediction, Question, questions, read_answers
from lm_eval_proca.models.prefix_tree import Request

from .conftest import make_model
from .test_shared_prefix import assert_same, instances, task


class TinyEngineLM(EngineLM, HFLM):
    """A tiny model as the engine, HFLM as stock."""

    NAME, STOCK = "tiny-shared-prefix", "tiny"

    def __init__(self, *args: Any, wrong: float = 0.0, knows: bool = True, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.prompts: list[list[int]] = []
        self.scored_by_stock: list[Any] = []
        self.wrong, self.knows = wrong, knows

    @property
    def _longest_input(self) -> int:
        return self.max_length + 1

    @property
    def _tolerance(self) -> float:
        return 1e-3

    def _stock(self, requests: list[Any], disable_tqdm: bool, **options: Any) -> list[tuple[float, bool]]:
        self.scored_by_stock += requests
        return super()._stock(requests, disable_tqdm, **options)

    def _predictions(self, asked: Sequence[Question]) -> Iterator[tuple[int, Prediction]]:
        for place in reversed(range(len(asked))):
            prompt, tokens = asked[place].prompt.tolist(), asked[place].tokens
            self.prompts.append(prompt)
            logits = self._model_call(torch.tensor([prompt]))[0, -1]
            values = torch.log_softmax(logits, dim=-1) + self.wrong
            wanted = [int(values.argmax()), *(tokens if self.knows else [])]
            yield place, {token: float(values[token]) for token in wanted}


@pytest.fixture
def stock(tokenizer: PreTrainedTokenizerFast) -> HFLM:
    return HFLM(make_model("gpt2", len(tokenizer)), tokenizer=tokenizer, batch_size=4, logits_cache=False)


def ours(stock: HFLM, **options: Any) -> TinyEngineLM:
    return TinyEngineLM(stock.model, tokenizer=stock.tokenizer, batch_size=4, logits_cache=False, **options)


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.WARNING, logger="lm_eval.proca.models")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "lm_eval.proca.models"]


def test_scores_are_those_of_stock(stock: HFLM, log: Any) -> None:
    assert_same(stock, ours(stock), task(9), atol=1e-4)
    assert log() == []


def test_one_prompt_for_a_document_with_labels_of_one_token(stock: HFLM) -> None:
    labels = [" Positive", " Negative"]
    model = ours(stock)
    assert {len(model.tok_encode(label)) for label in labels} == {1}
    model.loglikelihood(task(1, labels), disable_tqdm=True)  # checks the engine
    model.prompts, model.scored_by_stock = [], []
    model.loglikelihood(task(10, labels), disable_tqdm=True)
    assert len(model.prompts) == 10
    assert model.scored_by_stock == []


def test_the_first_requests_are_checked_against_stock(stock: HFLM) -> None:
    model, requests = ours(stock), task(6, [" Positive", " Negative Positive", " Negative"])
    model.loglikelihood(requests, disable_tqdm=True)
    first, longest, last = requests[0], requests[1], requests[-1]
    assert [text for text, _, _ in model.scored_by_stock] == [first.args, longest.args, last.args]


def test_longer_continuations_than_any_before_are_checked_again(stock: HFLM) -> None:
    model = ours(stock)
    for labels, checks in (([" Positive"], 2), ([" Positive"], 0), ([" Positive", " Negative Positive"], 3)):
        model.scored_by_stock = []
        model.loglikelihood(task(6, labels), disable_tqdm=True)
        assert len(model.scored_by_stock) == checks


def test_an_engine_that_answers_something_else_is_not_believed(stock: HFLM, log: Any) -> None:
    model = ours(stock, wrong=0.01)
    for _ in range(2):
        assert_same(stock, model, task(5))
    [line] = log()
    assert line.startswith("tiny-shared-prefix scores like tiny: scores behind cached prefixes differ by up to 0.0")


def test_an_engine_that_leaves_tokens_out_is_not_used(stock: HFLM, log: Any) -> None:
    assert_same(stock, ours(stock, knows=False), task(5))
    assert log() == [
        "tiny-shared-prefix scores like tiny: the engine does not return the log-probabilities of the tokens that it "
        "is asked for."
    ]


def test_predictions_are_forgotten_once_they_are_read() -> None:
    """Those of all documents with their probes would fill memory."""
    alive = 0

    class Counted(dict):  # type: ignore[type-arg]
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    requests = [Request([1, 2, document, 3], [label]) for document in range(500) for label in (7, 8)]
    probes = dict.fromkeys(range(0, 1000, 2), tuple(range(20, 40)))
    plan = questions(requests, range(1000), probes=probes)

    def predictions() -> Iterator[tuple[int, Prediction]]:
        nonlocal alive
        for place, question in enumerate(plan.asked):
            alive += 1
            yield place, Counted({token: -1.0 - token / 100 for token in question.tokens})

    most = 0
    for number, answer in read_answers(plan, requests, predictions(), probes):
        most = max(most, alive)
        assert (answer.values is None) == (number % 2 == 1)
    assert len(plan.asked) == 500
    assert most <= 3


def test_long_continuations_are_left_to_stock(stock: HFLM) -> None:
    """Behind a short prompt, a request for each of many tokens costs more than one for the whole."""
    requests = instances([("the soup was", " Positive"), ("the soup was", " cold and bright and warm and funny")])
    model = ours(stock)
    assert_same(stock, model, requests)
    assert [text for text, _, _ in model.scored_by_stock].count(requests[1].args) == 1
    assert max(map(len, model.prompts)) <= len(model.tok_encode("the soup was"))


def test_cut_prompts_are_cut_as_stock_cuts_them(stock: HFLM, log: Any) -> None:
    short = HFLM(stock.model, tokenizer=stock.tokenizer, max_length=40, logits_cache=False)
    requests = instances([("the film " * n, label) for n in (1, 20, 60, 80) for label in (" Positive", " Very good")])
    model = ours(stock, max_length=40)
    assert_same(short, model, requests)
    answers = model.loglikelihood(requests, disable_tqdm=True)
    assert [answer.truncated for answer in answers][-4:] == [True] * 4
    assert not answers[0].truncated


def test_rolling_windows_are_left_to_stock(stock: HFLM) -> None:
    requests = instances([("the soup was cold and bright " * 9,)])  # type: ignore[list-item]
    model = ours(stock)
    assert model.loglikelihood_rolling(requests, disable_tqdm=True) == pytest.approx(
        stock.loglikelihood_rolling(requests, disable_tqdm=True), abs=1e-4
    )
    assert model.prompts == []


def test_every_answer_goes_to_the_cache_of_lm_eval(stock: HFLM) -> None:
    model, kept = ours(stock), {}
    model.cache_hook.add_partial = lambda _, text, answer: kept.update({text: answer})  # type: ignore[method-assign]
    requests = task(3)
    answers = model.loglikelihood(requests, disable_tqdm=True)
    assert [kept[request.args][0] for request in requests] == pytest.approx([value for value, _ in answers], abs=1e-4)


def test_an_empty_list_is_answered(stock: HFLM) -> None:
    assert ours(stock).loglikelihood([], disable_tqdm=True) == []


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_one_sentence_says_what_to_install() -> None:
    with pytest.raises(ModelError, match=r"^--model vllm-shared-prefix needs vLLM, .* `pip install 'lm-eval-proca"):
        importlib.import_module("lm_eval_proca.models.vllm_shared_prefix")
