"""local-completions-shared-prefix against stock local-completions and hf, with a real `vllm serve` on loopback."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
import requests

from benchmarks.engines import ENGINE, FOLDER
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


@pytest.fixture(scope="module")
def table_of_hf() -> dict[str, str]:
    return lm_eval("hf", {"pretrained": FOLDER, "dtype": "float32"}, batch_size="8")


def test_lm_eval_gives_the_table_of_hf_through_the_server(server: str, table_of_hf: dict[str, str]) -> None:
    """The whole command, on the sentences that ship with us."""
    arguments = {"model": "smollm2", "base_url": server, "tokenizer": FOLDER, "num_concurrent": 4}
    assert lm_eval("local-completions-shared-prefix", arguments, batch_size="1") == table_of_hf


def test_lm_eval_gives_the_table_of_hf_with_vllm(table_of_hf: dict[str, str]) -> None:
    assert lm_eval("vllm-shared-prefix", {"pretrained": FOLDER, **ENGINE}, batch_size="auto") == table_of_hf


def lm_eval(backend: str, arguments: dict[str, Any], batch_size: str) -> dict[str, str]:
    """Accuracy by filter, as the table shows it."""
    command = [sys.executable, "-m", "lm_eval", "--model", backend, "--batch_size", batch_size]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--tasks", "proca_demo", "--num_fewshot", "4", "--limit", "40", "--device", "cpu"]
    command += ["--metadata", "proca.estimate_size=40", "proca.layers=none"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    table = dict(re.findall(r"\|(\w+) *\| *4\|acc *\|↑ *\|([\d.]+)\|", done.stdout))
    assert {"none", "bc", "conca", "proca"} <= set(table), done.stdout
    return table
