"""A sweep on two nodes, of which one is lost."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.cli import main
from lm_eval_proca.scores.score_table import ScoreTable
from tests.conftest import ROOT
from tests.launch import launchers, started, wait_until

pytestmark = pytest.mark.slow

SEEDS = [str(seed) for seed in range(8)]


def finished(disk: Path) -> dict[str, Path]:
    return {file.parent.name: file for file in disk.glob("runs/*/[!.]*/results_*.json")}


def accuracies(result: Path) -> dict[str, float]:
    metrics = json.loads(result.read_text())["results"]["proca_sst2"]
    return {key: value for key, value in metrics.items() if key.startswith("acc,")}


def scores(result: Path) -> ScoreTable:
    (file,) = (result.parent / "scores").iterdir()
    return ScoreTable.load(file)


def test_finished_cells_outlive_the_node_that_wrote_them(tiny_gpt2: Path, data_dir: Path, tmp_path: Path):
    """One process on each node: both are the first of their node, and only one is the first of the run.

    The nodes have disks of their own. The first one is lost, with the lock, the writer and the meeting point.
    """
    disks = [tmp_path / "first_node", tmp_path / "second_node"]
    options = ["sweep", "--model_args", f"pretrained={tiny_gpt2}", "--device", "cpu", "--batch_size", "1"]
    options += ["--tasks", "proca_sst2", "--num_fewshot", "1", "--seeds", *SEEDS, "--limit", "20"]
    options += ["--metadata", f"proca.data_dir={data_dir}", "proca.estimate_size=40"]

    def two_nodes():
        commands = [
            [*launcher, "-m", "lm_eval_proca.cli", *options, "--output_path", str(disk / "runs")]
            for launcher, disk in zip(launchers(nodes=2), disks, strict=True)
        ]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        return started(commands, environment, tmp_path / "logs")

    with two_nodes() as (first, second):
        wait_until(lambda: bool(finished(disks[0])), (first, second))
        first.kill()
        assert second.end() != 0
        assert second.said("another process of this run has ended"), second.log.read_text()
    kept = finished(disks[0])
    assert 0 < len(kept) < len(SEEDS)
    assert not disks[1].exists()

    with two_nodes() as nodes:
        assert [node.end() for node in nodes] == [0, 0], nodes[0].log.read_text()
        assert nodes[0].said(f"{len(kept)} finished, {len(SEEDS) - len(kept)} to do")
    cells = finished(disks[0])
    assert {name: cells[name] for name in kept} == kept, "a finished cell was run again"
    assert not list(disks[0].glob("runs/*/.unfinished-*"))
    assert not disks[1].exists()

    assert main([*options, "--output_path", str(tmp_path / "alone" / "runs")]) == 0
    reference = finished(tmp_path / "alone")
    assert len(cells) == len(SEEDS)
    assert cells.keys() == reference.keys()
    for name, file in cells.items():
        assert accuracies(file) == accuracies(reference[name])
        table, gathered = scores(reference[name]), scores(file)
        assert np.array_equal(gathered.index, table.index)
        assert np.abs(gathered.scores - table.scores).max() <= 1e-5
        assert set(Counter(zip(gathered.role.tolist(), gathered.index.tolist(), strict=True)).values()) == {1}
