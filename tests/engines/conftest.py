"""vLLM itself, in this process and behind `vllm serve` on loopback, with SmolLM2 in float32.

Collected everywhere, run where vLLM is installed: `make test-engines`.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import requests

from benchmarks.engines import ENGINE, ENVIRONMENT, FOLDER
from benchmarks.prompts import Prompts, build

os.environ.update({name: os.environ.get(name, value) for name, value in ENVIRONMENT.items()})
PATIENCE = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = pytest.mark.skip(reason="vLLM and its copy of SmolLM2 are not here; `make test-engines` has them")
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engines)
            if find_spec("vllm") is None or not FOLDER.is_dir():
                item.add_marker(missing)


@pytest.fixture(scope="session")
def sst2() -> Prompts:
    """Two labels of one token."""
    return prompts("proca_sst2", 4, 8)


@pytest.fixture(scope="session")
def dbpedia() -> Prompts:
    """Fourteen labels, some of two tokens."""
    return prompts("proca_dbpedia", 4, 2)


def prompts(task: str, shots: int, documents: int) -> Prompts:
    rows = os.environ.get("PROCA_TEST_DATA")
    return build(task, shots, documents, Path(rows) if rows else None)


@pytest.fixture(scope="session")
def hf() -> Callable[[Prompts], list[tuple[float, bool]]]:
    """What lm-eval's `hf` answers, computed once for all tests."""
    from lm_eval.models.huggingface import HFLM

    model = HFLM(str(FOLDER), dtype="float32", device="cpu", batch_size=8, logits_cache=False)
    known: dict[int, list[tuple[float, bool]]] = {}

    def answers(prompts: Prompts) -> list[tuple[float, bool]]:
        if id(prompts) not in known:
            known[id(prompts)] = model.loglikelihood(prompts.requests, disable_tqdm=True)
        return known[id(prompts)]

    return answers


@pytest.fixture(scope="session")
def vllm() -> Iterator[Any]:
    from lm_eval_proca.models.vllm_shared_prefix import VLLMSharedPrefixLM

    model = VLLMSharedPrefixLM(str(FOLDER), batch_size="auto", **ENGINE)
    yield model
    model.model.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `vllm serve`, which is started once and ended with the session."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    command = [str(Path(sys.executable).parent / "vllm"), "serve", str(FOLDER), "--served-model-name", "smollm2"]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    for name, value in ENGINE.items():
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/health", process, log)
            yield f"http://127.0.0.1:{port}/v1/completions"
        finally:
            process.terminate()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            if requests.get(url, timeout=5).ok:
                return
        except requests.ConnectionError:
            time.sleep(1)
    pytest.fail(f"vllm serve did not start:\n{log.read_text()[-3000:]}")
