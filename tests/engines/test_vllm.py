"""vllm-shared-prefix against stock vllm and hf: the same numbers, one request per document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.engines import FOLDER
from benchmarks.prompts import Prompts
from benchmarks.scoring import accuracy

from .comparison import assert_same, counted


@pytest.mark.parametrize("task", ["sst2", "dbpedia"])
def test_scores_are_those_of_stock_vllm_and_hf(vllm: Any, hf: Any, task: str, request: pytest.FixtureRequest) -> None:
    from lm_eval.models.vllm_causallms import VLLM

    prompts: Prompts = request.getfixturevalue(task)
    ours = vllm.loglikelihood(prompts.requests, disable_tqdm=True)
    encoded = [(one.args, *vllm._encode_pair(*one.args)) for one in prompts.requests]
    stock = VLLM._loglikelihood_tokens(vllm, encoded, disable_tqdm=True)
    plain = hf(prompts)
    assert_same(ours, stock)
    assert_same(ours, plain)
    assert accuracy(prompts, ours) == accuracy(prompts, stock) == accuracy(prompts, plain)


def test_one_request_for_a_document(vllm: Any, sst2: Prompts) -> None:
    vllm.loglikelihood(sst2.requests, disable_tqdm=True)  # checked
    with counted(vllm) as prompts:
        vllm.loglikelihood(sst2.requests, disable_tqdm=True)
    assert len(prompts) == len(sst2.gold)


@pytest.mark.parametrize("task", ["sst2", "dbpedia"])
def test_probes_are_those_of_hf_and_need_no_further_request(
    vllm: Any, task: str, request: pytest.FixtureRequest
) -> None:
    from lm_eval_proca.models.shared_prefix import SharedPrefixLM

    prompts: Prompts = request.getfixturevalue(task)
    hf = SharedPrefixLM(str(FOLDER), dtype="float32", device="cpu", batch_size="auto")
    vllm.loglikelihood(prompts.requests, disable_tqdm=True)
    with counted(vllm) as without:
        vllm.loglikelihood(prompts.requests, disable_tqdm=True)
    with counted(vllm) as having:
        ours = vllm.loglikelihood(prompts.asking(), disable_tqdm=True)
    assert len(having) == len(without)
    for one, other in zip(ours, hf.loglikelihood(prompts.asking(), disable_tqdm=True), strict=True):
        assert one.representation == other.representation
        if one.values is not None:
            assert one.values.shape == (1, 128 - len(prompts.labels))
            np.testing.assert_allclose(one.values, other.values, atol=5e-3)


def test_labels_of_several_tokens_continue_behind_the_document(vllm: Any, dbpedia: Prompts) -> None:
    vllm.loglikelihood(dbpedia.requests, disable_tqdm=True)
    longer = {label for label in dbpedia.labels if len(vllm.tok_encode(f" {label}")) > 1}
    assert longer
    with counted(vllm) as prompts:
        vllm.loglikelihood(dbpedia.requests, disable_tqdm=True)
    beginnings = {tuple(vllm.tok_encode(f" {label}")[:n]) for label in longer for n in range(1, 9)}
    nodes = {start for start in beginnings if any(tuple(vllm.tok_encode(f" {x}")) != start for x in longer)}
    assert len(dbpedia.gold) < len(prompts) <= len(dbpedia.gold) * (1 + len(nodes))


def test_the_cache_is_read(vllm: Any, sst2: Prompts) -> None:
    """Behind demonstrations that the engine knows, a second run computes at most the last block of each prompt."""
    vllm.loglikelihood(sst2.requests, disable_tqdm=True)
    outputs = vllm._model_generate(
        requests=[vllm.tok_encode(one.args[0]) for one in sst2.requests[:: len(sst2.labels)]], generate=True
    )
    assert outputs  # stock parameters: these do not read it
    assert all(not output.num_cached_tokens for output in outputs)
    with counted(vllm) as prompts:
        vllm.loglikelihood(sst2.requests, disable_tqdm=True)
    assert all(len(prompt) - cached <= 32 for prompt, cached in prompts)


def test_is_greedy_is_that_of_stock(vllm: Any, sst2: Prompts) -> None:
    """With the token that the model would write itself, and one of two tokens that it would."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.vllm_causallms import VLLM

    context = sst2.requests[0].args[0]
    [written] = vllm._model_generate(requests=[vllm.tok_encode(context)], generate=True, sampling_params=_greedy(2))
    tokens = list(written.outputs[0].token_ids)
    encoded = [
        (("", str(n)), vllm.tok_encode(context), continuation)
        for n, continuation in enumerate([tokens[:1], tokens, [tokens[0], 5], [5]])
    ]
    assert isinstance(sst2.requests[0], Instance)
    ours = vllm._loglikelihood_tokens(encoded, disable_tqdm=True)
    stock = VLLM._loglikelihood_tokens(vllm, encoded, disable_tqdm=True)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in stock] == [True, True, False, False]


def _greedy(tokens: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
