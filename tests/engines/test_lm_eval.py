"""The whole command `lm_eval` on three tasks: every backend prints the table of `hf`, with the row of probes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.engines import ENGINE, FOLDER
from lm_eval_proca import RepresentationCalibrator
from lm_eval_proca.scores.fitting import fit
from lm_eval_proca.scores.score_table import ScoreTable

TASKS = ("proca_demo", "proca_sst2", "proca_trec")
CHAT = ["--apply_chat_template", "--fewshot_as_multiturn", "True", "--system_instruction", "Answer in one word."]
Accuracies = dict[tuple[str, str], str]
"""By task and row."""
Run = tuple[Accuracies, dict[str, ScoreTable]]
KINDS = {"plain": [], "chat": CHAT}

pytestmark = pytest.mark.skipif("PROCA_TEST_DATA" not in os.environ, reason="real rows are not here")


def lm_eval(backend: str, arguments: dict[str, Any], batch_size: str, scores: Path, options: list[str]) -> Run:
    command = [sys.executable, "-m", "lm_eval", "--model", backend, "--batch_size", batch_size, "--device", "cpu"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--tasks", ",".join(TASKS), "--num_fewshot", "4", "--limit", "40", *options]
    command += ["--metadata", "proca.estimate_size=60", "proca.representation=probes", f"proca.scores_dir={scores}"]
    environment = {**os.environ, "PROCA_DATA_DIR": os.environ["PROCA_TEST_DATA"]}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    tables = {table.record.task: table for table in map(ScoreTable.load, scores.glob("*.parquet"))}
    return accuracies(done.stdout), tables


def accuracies(printed: str) -> Accuracies:
    found: Accuracies = {}
    task = ""
    line = re.compile(r"^\|(\w*) *\| *\d*\|(\w+) *\| *4\|acc *\|↑ *\|([\d.]+)\|", re.MULTILINE)
    for name, row, value in line.findall(printed):
        task = name or task
        found[task, row] = value
    assert {task for task, _ in found} == set(TASKS), printed
    return found


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def run(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    def start(backend: str, batch_size: str, **arguments: Any) -> Run:
        return lm_eval(backend, arguments, batch_size, tmp_path_factory.mktemp("scores"), KINDS[kind])

    return start


@pytest.fixture(scope="module")
def of_hf(run: Callable[..., Run]) -> Run:
    """Our model of transformers; stock says the same of all rows that it has."""
    ours = run("hf-shared-prefix", "auto", pretrained=FOLDER, dtype="float32")
    stock, _ = run("hf", "8", pretrained=FOLDER, dtype="float32")
    assert stock == {key: value for key, value in ours[0].items() if key[1] != "proca_h"}
    return ours


def assert_same_run(one: Run, other: Run) -> None:
    assert one[0] == other[0]
    assert ("proca_trec", "proca_h") in one[0]
    for task in TASKS:
        ours, theirs = (fit(RepresentationCalibrator(), tables[task]) for _, tables in (one, other))
        np.testing.assert_allclose(np.exp(ours.log_proba), np.exp(theirs.log_proba), atol=1e-3)


def test_a_server_gives_the_table_of_hf(server: str, of_hf: Run, run: Callable[..., Run]) -> None:
    where = {"model": "smollm2", "base_url": server, "tokenizer": FOLDER, "num_concurrent": 4}
    assert_same_run(run("local-completions-shared-prefix", "1", **where), of_hf)


def test_vllm_gives_the_table_of_hf(of_hf: Run, run: Callable[..., Run]) -> None:
    assert_same_run(run("vllm-shared-prefix", "auto", pretrained=FOLDER, **ENGINE), of_hf)
