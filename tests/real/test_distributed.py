"""The same numbers on one process and on many, with real processes and a real language model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.score_table import ScoreTable
from tests.real.conftest import command, environment, results_in

pytestmark = [pytest.mark.real, pytest.mark.slow]

FILTERS = ("none", "bc", "conca", "proca", "proca_a", "proca_h")


def small_run(lm_eval_cli, folder: Path, *, batch_size: int = 1, shots: int = 2, **where) -> tuple[dict, ScoreTable]:
    done = lm_eval_cli(
        *("--tasks", "proca_sst2", "--limit", "31", "--num_fewshot", str(shots), "--seed", "1"),
        "--batch_size",
        str(batch_size),
        "--metadata",
        f"proca.estimate_size=40,proca.scores_dir={folder / 'scores'}",
        "--output_path",
        str(folder / "results"),
        "--log_samples",
        **where,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (file,) = (folder / "scores").glob("*.parquet")
    return results_in(folder / "results"), ScoreTable.load(file)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory):
    return lambda name: tmp_path_factory.mktemp(name)


def accuracies(results: dict) -> dict[str, float]:
    return {key: value for key, value in results["results"]["proca_sst2"].items() if key.startswith("acc,")}


def assignment(results: dict) -> list[int]:
    return results["configs"]["proca_sst2"]["metadata"]["proca"]["fits"]["proca"]["assignment"]


def test_one_two_and_three_processes_agree(lm_eval_cli, folders):
    one, table = small_run(lm_eval_cli, folders("one"))
    for processes in (2, 3):
        folder = folders(f"on{processes}")
        many, gathered = small_run(lm_eval_cli, folder, processes=processes)
        assert accuracies(many) == accuracies(one)
        assert assignment(many) == assignment(one)
        assert np.array_equal(gathered.role, table.role)
        assert np.array_equal(gathered.index, table.index)
        # One document per pass and one thread: the same bits on the machines we know. The pass that encodes the prefix
        # reads a document of its own shard, so only rounding is promised.
        assert np.abs(gathered.scores - table.scores).max() <= 1e-5
        documents = Counter(zip(gathered.role.tolist(), gathered.index.tolist(), strict=True))
        assert set(documents.values()) == {1}
        assert len(documents) == 31 + 40 + 3
        (samples,) = folder.rglob("samples_*.jsonl")
        logged = Counter((row["filter"], row["doc_id"]) for row in map(json.loads, samples.read_text().splitlines()))
        assert set(logged.values()) == {1}
        assert len(logged) == 31 * len(FILTERS)

    _, batched = small_run(lm_eval_cli, folders("batched"), processes=2, batch_size=16)
    assert np.abs(batched.scores - table.scores).max() <= 1e-4


def test_a_world_where_every_process_holds_all_documents(lm_eval_cli, folders):
    """Stock HFLM does not shard on CPU processes: both processes score everything, and nothing may count twice.

    Without demonstrations, which it would read again for every document.
    """
    alone, table = small_run(lm_eval_cli, folders("stock1"), model="hf", shots=0)
    both, gathered = small_run(lm_eval_cli, folders("stock2"), model="hf", shots=0, processes=2)
    assert accuracies(both) == accuracies(alone)
    assert assignment(both) == assignment(alone)
    np.testing.assert_allclose(gathered.scores, table.scores, atol=1e-4)


def test_fewer_documents_than_processes(lm_eval_cli, tmp_path: Path):
    done = lm_eval_cli(
        "--tasks",
        "proca_sst2",
        "--limit",
        "2",
        "--metadata",
        "proca.estimate_size=10",
        "--output_path",
        str(tmp_path),
        processes=3,
    )
    assert done.returncode != 0
    sentence = "2 evaluation documents are fewer than the 3 processes that share them"
    assert len(re.findall(sentence, done.stderr)) >= 3, "every rank stops with the same sentence"
    assert not list(tmp_path.rglob("*.json"))


def test_killing_one_rank_ends_the_run(smollm2: Path, real_data: Path, lm_eval_project: Path, tmp_path: Path):
    arguments = [
        "--tasks",
        "proca_sst2",
        "--num_fewshot",
        "4",
        "--output_path",
        str(tmp_path / "results"),
        "--log_samples",
    ]
    arguments += ["--metadata", f"proca.scores_dir={tmp_path / 'scores'}"]
    log = tmp_path / "log"
    with log.open("w") as stream:
        launched = subprocess.Popen(
            command(smollm2, *arguments, processes=2),
            env=environment(real_data, lm_eval_project),
            stderr=stream,
            stdout=stream,
        )
        try:
            wait_for(lambda: "Running loglikelihood requests" in log.read_text(), launched)
            ranks = children_of(launched.pid)
            assert len(ranks) == 2
            os.kill(max(ranks), signal.SIGKILL)
            assert launched.wait(timeout=120) != 0
        finally:
            launched.kill()
    assert not list(tmp_path.rglob("results_*.json"))
    assert not list((tmp_path / "scores").rglob("*")) if (tmp_path / "scores").exists() else True
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]


def wait_for(happened, process: subprocess.Popen, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not happened():
        assert process.poll() is None, "the run ended before it could be disturbed"
        assert time.monotonic() < end
        time.sleep(0.2)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
