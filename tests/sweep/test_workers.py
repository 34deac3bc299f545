"""One sweep, many workers: real processes share its cells, and some of them are killed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.claims import holders
from tests import launch
from tests.conftest import ROOT
from tests.launch import launchers, started
from tests.sweep.test_sweep import cells_of, wait_until

CELLS = 12


@pytest.fixture(scope="module")
def options(tiny_gpt2: Path, two_datasets: Path) -> list[str]:
    """Two tasks, two shots, three seeds."""
    return [
        *("sweep", "--model", "hf", "--model_args", f"pretrained={tiny_gpt2}", "--batch_size", "1", "--device", "cpu"),
        *("--tasks", "proca_sst2,proca_mr", "--num_fewshot", "0", "1", "--seeds", "0", "1", "2", "--limit", "20"),
        *("--metadata", f"proca.data_dir={two_datasets}", "proca.estimate_size=40"),
    ]


@pytest.fixture(scope="module")
def of_one_worker(options: list[str], start_command: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one_worker")
    worker = start_command([*options, "--output_path", str(folder / "runs")], folder / "log")
    worker.join()
    assert worker.exitcode == 0, (folder / "log").read_text()
    return folder / "runs"


def pids_that_run(runs: Path) -> set[int]:
    return {worker.pid for home in runs.glob("*") for worker in holders(home).values() if worker is not None}


def finished_itself(log: Path) -> list[str]:
    """Cells that a worker says to have finished, with their accuracy."""
    return re.findall(r"^(proca_\S+): none ", log.read_text(), flags=re.MULTILINE)


def check_same(runs: Path, of_one_worker: Path) -> None:
    """Every cell is there once, with the numbers of one worker; nothing else is."""
    found, reference = cells_of(runs), cells_of(of_one_worker)
    assert len(reference) == CELLS
    assert found.keys() == reference.keys()
    assert {path.name for path in runs.glob("*/*")} == found.keys(), "no claim and no half-written cell is left"
    for name, file in reference.items():
        assert json.loads(found[name].read_text())["results"] == json.loads(file.read_text())["results"]
        (table,), (other,) = ([*map(ScoreTable.load, one.parent.glob("scores/*"))] for one in (file, found[name]))
        assert table.record == other.record
        np.testing.assert_array_equal(table.index, other.index)
        np.testing.assert_allclose(table.scores, other.scores, atol=1e-5)


def test_four_workers_of_which_two_are_killed(
    options: list[str], of_one_worker: Path, start_command: Callable, tmp_path: Path
):
    runs = tmp_path / "runs"
    logs = [tmp_path / f"log{k}" for k in range(4)]
    workers = [start_command([*options, "--output_path", str(runs)], log) for log in logs]
    for victim in workers[:2]:
        wait_until(lambda: victim.pid in pids_that_run(runs))  # noqa: B023
        assert victim.exitcode is None
        victim.kill()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [-9, -9, 0, 0], [log.read_text() for log in logs]
    check_same(runs, of_one_worker)
    ran = Counter(name for log in logs for name in finished_itself(log))
    assert max(ran.values()) == 1, "a cell was run twice"
    assert sum(ran.values()) >= CELLS - 2, "a worker that was killed between a cell and its line has not told it"
    for log in logs[2:]:
        assert finished_itself(log), "one worker did everything"
        assert f"{CELLS} of {CELLS} cells are finished" in log.read_text()


@pytest.mark.slow
def test_a_data_parallel_worker_beside_an_ordinary_one(options: list[str], of_one_worker: Path, tmp_path: Path):
    """The ordinary one stands still in the middle of a cell, until the two processes of the other have run some."""
    runs = tmp_path / "runs"
    ordinary, parallel = (
        [*launcher, "-m", "lm_eval_proca.cli", *options, "--output_path", str(runs)]
        for processes in (1, 2)
        for launcher in launchers(processes=processes)
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with started([ordinary], environment, tmp_path / "ordinary") as (one,):
        launch.wait_until(lambda: bool(cells_of(runs)) and one.process.pid in pids_that_run(runs), [one])
        one.process.send_signal(signal.SIGSTOP)
        with started([parallel], environment, tmp_path / "parallel") as (two,):
            launch.wait_until(lambda: bool(finished_itself(two.log)), [two])
            one.process.send_signal(signal.SIGCONT)
            assert (one.end(), two.end()) == (0, 0), two.log.read_text()[-3000:]
    check_same(runs, of_one_worker)
    ran = [finished_itself(node.log) for node in (one, two)]
    assert all(ran)
    assert sorted(ran[0] + ran[1]) == sorted(set(ran[0] + ran[1]))
