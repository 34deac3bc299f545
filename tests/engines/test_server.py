"""local-completions-shared-prefix against stock local-completions and hf, with a real `vllm serve` on loopback."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import requests

from benchmarks.engines import FOLDER
from benchmarks.prompts import Prompts
from benchmarks.scoring import accuracy
from lm_eval_proca.errors import ModelError

from .comparison import assert_same


def connect(kind: str, url: str, **options: Any) -> Any:
    from lm_eval.api.registry import get_model

    options = {"model": "smollm2", "tokenizer": str(FOLDER), "tokenizer_backend": "huggingface", **options}
    return get_model(kind)(base_url=url, num_concurrent=2, **options)


def engine_requests(url: str) -> float:
    """Finished requests, as the server itself counts them."""
    text = requests.get(url.replace("/v1/completions", "/metrics"), timeout=30).text
    return sum(float(value) for value in re.findall(r"^vllm:request_success_total\{.*\} (\S+)$", text, re.MULTILINE))


@pytest.mark.parametrize("task", ["sst2", "dbpedia"])
def test_scores_are_those_of_stock_and_hf(server: str, hf: Any, task: str, request: pytest.FixtureRequest) -> None:
    prompts: Prompts = request.getfixturevalue(task)
    ours = connect("local-completions-shared-prefix", server).loglikelihood(prompts.requests, disable_tqdm=True)
    stock = connect("local-completions", server).loglikelihood(prompts.requests, disable_tqdm=True)
    plain = hf(prompts)
    assert_same(ours, stock)
    assert_same(ours, plain)
    assert accuracy(prompts, ours) == accuracy(prompts, stock) == accuracy(prompts, plain)


def test_one_request_for_a_document(server: str, sst2: Prompts) -> None:
    ours = connect("local-completions-shared-prefix", server)
    ours.loglikelihood(sst2.requests, disable_tqdm=True)
    before = engine_requests(server)
    ours.loglikelihood(sst2.requests, disable_tqdm=True)
    assert engine_requests(server) - before == len(sst2.gold)


def test_labels_and_probes_share_a_request(server: str, sst2: Prompts) -> None:
    ours = connect("local-completions-shared-prefix", server)
    ours.loglikelihood(sst2.asking(), disable_tqdm=True)
    before = engine_requests(server)
    ours.loglikelihood(sst2.asking(), disable_tqdm=True)
    assert engine_requests(server) - before == len(sst2.gold)


def test_prompts_travel_together(server: str, sst2: Prompts, hf: Any) -> None:
    ours = connect("local-completions-shared-prefix", server, batch_size=4)
    assert_same(ours.loglikelihood(sst2.requests), hf(sst2))


def test_a_wrong_model_name(server: str) -> None:
    with pytest.raises(ModelError) as error:
        connect("local-completions-shared-prefix", server, model="smollm3", tokenizer=None)
    assert str(error.value) == (
        f"The server at {server} does not serve the model 'smollm3'; it serves 'smollm2': correct model or base_url "
        "in --model_args."
    )


def test_bytes_per_document(server: str, sst2: Prompts, caplog: pytest.LogCaptureFixture) -> None:
    """With labels and probes, at 4 shots."""
    caplog.set_level(logging.INFO, logger="lm_eval.proca.models")
    ours = connect("local-completions-shared-prefix", server)
    ours.loglikelihood(sst2.asking(), disable_tqdm=True)
    [sent, received] = map(int, re.findall(r"(\d+) bytes sent, (\d+) received", caplog.text)[-1])
    print(f"{sent / len(sst2.gold):.0f} bytes sent and {received / len(sst2.gold):.0f} received for a document")
    assert sent + received <= 8000 * len(sst2.gold)
