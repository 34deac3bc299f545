"""Hidden states beside the scores: those of a plain forward pass over the whole prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from lm_eval_proca.errors import ModelError
from lm_eval_proca.models.hidden_states import layer_index
from lm_eval_proca.models.shared_prefix import SharedPrefixLM
from lm_eval_proca.representations import Asked, Representation, Wanted, unit_scale

from .conftest import make_model
from .test_shared_prefix import LABELS, count_tokens, task


def asked(requests: list[Instance], layers: tuple[int | float, ...]) -> list[Instance]:
    """Every document's first label asks for the states of its prompt, as a task does."""
    for request in requests[:: len(LABELS)]:
        request.arguments = Asked.of(request.args, Wanted(layers))
    return requests


def plain_states(model: PreTrainedModel, tokens: list[int], layers: list[int]) -> np.ndarray:
    with torch.no_grad():
        states = model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    return np.stack([states[layer][0, -1].numpy() for layer in layers])


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "cohere", "gemma3_text", "mistral", "gpt_oss"])
@pytest.mark.parametrize(("batch_size", "max_batch_tokens"), [(1, 48), ("auto", 256)], ids=["one by one", "packed"])
def test_states_are_those_of_a_plain_pass(
    kind: str, batch_size: int | str, max_batch_tokens: int, tokenizer: PreTrainedTokenizerFast
) -> None:
    model = make_model(kind, len(tokenizer))
    ours = SharedPrefixLM(model, tokenizer=tokenizer, batch_size=batch_size, max_batch_tokens=max_batch_tokens)
    requests = asked(task(20), (0.5, -1))
    answers = ours.loglikelihood(requests, disable_tqdm=True)
    for request, answer in zip(requests[:: len(LABELS)], answers[:: len(LABELS)], strict=True):
        expected = plain_states(model, ours.tok_encode(request.args[0]), [1, 2])
        assert answer.representation == Representation(layers=("0.5", "-1"))
        np.testing.assert_allclose(answer.values, unit_scale(expected), atol=2e-3)


def test_states_cost_no_further_token_and_change_no_score(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model("llama", len(tokenizer))
    ours = SharedPrefixLM(model, tokenizer=tokenizer, batch_size="auto", max_batch_tokens=256)
    scores = {}
    tokens = {}
    for name, requests in {"without": task(20), "with": asked(task(20), (1, -1))}.items():
        tokens[name] = count_tokens(model, lambda r=requests, n=name: scores.update({n: ours.loglikelihood(r, True)}))
    assert tokens["with"] <= tokens["without"]
    assert [s for s, _ in scores["with"]] == pytest.approx([s for s, _ in scores["without"]], abs=1e-5)


def test_only_documents_that_ask_get_states_and_each_its_own_layers(tokenizer: PreTrainedTokenizerFast) -> None:
    model = make_model("llama", len(tokenizer))
    requests = task(4)
    for number, layers in {0: (0, -1), len(LABELS): (2,)}.items():
        requests[number].arguments = Asked.of(requests[number].args, Wanted(layers))
    answers = SharedPrefixLM(model, tokenizer=tokenizer).loglikelihood(requests, disable_tqdm=True)
    assert {k: one.values.shape for k, one in enumerate(answers) if one.values is not None} == {
        0: (2, 32),
        len(LABELS): (1, 32),
    }


def test_a_model_that_is_scored_by_stock_gives_none(tokenizer: PreTrainedTokenizerFast) -> None:
    requests = asked(task(3), (-1,))
    ours = SharedPrefixLM(make_model("mamba", len(tokenizer)), tokenizer=tokenizer)
    for answer in ours.loglikelihood(requests, disable_tqdm=True)[:: len(LABELS)]:
        assert answer.values is None
        assert answer.missing == "hf-shared-prefix scored them like hf, which gives none (its log line says why)"


def test_a_layer_with_two_names_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    ours = SharedPrefixLM(make_model("llama", len(tokenizer)), tokenizer=tokenizer)
    with pytest.raises(ModelError, match=r"^proca.layers=2/-1 names a layer of this model of 2 layers twice \(2/2\)"):
        ours.loglikelihood(asked(task(2), (2, -1)), disable_tqdm=True)


def test_layers_are_indices_or_fractions_of_the_depth() -> None:
    assert [layer_index(layer, 30) for layer in (0, 1, 30, 0.5, 2 / 3, -1, -30)] == [0, 1, 30, 15, 20, 30, 1]
    with pytest.raises(ModelError, match="no layer 31 in a model of 30 layers"):
        layer_index(31, 30)
