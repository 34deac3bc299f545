"""The same numbers on one process and on many, with real processes and a real language model."""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.scores.score_table import ScoreTable
from tests.launch import accelerate, launchers, started, wait_until
from tests.real.conftest import command, environment, results_in

pytestmark = [pytest.mark.real, pytest.mark.slow]

FILTERS = ("none", "bc", "conca", "proca", "proca_h")


def small_options(folder: Path, batch_size: int = 1, shots: int = 2) -> list[str]:
    return [
        *("--tasks", "proca_sst2", "--limit", "31", "--num_fewshot", str(shots), "--seed", "1"),
        *("--batch_size", str(batch_size), "--output_path", str(folder / "results"), "--log_samples"),
        *("--metadata", f"proca.estimate_size=40,proca.prompts=2,proca.scores_dir={folder / 'scores'}"),
    ]


Written = tuple[dict, list[ScoreTable]]
"""A results file, and the score table of each prompt."""


def small_run(lm_eval_cli, folder: Path, *, batch_size: int = 1, shots: int = 2, **where) -> Written:
    done = lm_eval_cli(*small_options(folder, batch_size, shots), **where)
    assert done.returncode == 0, done.stderr[-3000:]
    return written_to(folder)


def written_to(folder: Path) -> Written:
    tables = sorted(map(ScoreTable.load, (folder / "scores").iterdir()), key=lambda table: table.record.prompt)
    assert len(tables) == 2
    return results_in(folder / "results"), tables


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory):
    return lambda name: tmp_path_factory.mktemp(name)


@pytest.fixture(scope="module")
def alone(lm_eval_cli, folders) -> Written:
    return small_run(lm_eval_cli, folders("one"))


def accuracies(results: dict) -> dict[str, float]:
    """Of prompt 0, over both prompts, and of both together. Errors are sums in the order of the processes."""
    values = results["results"]["proca_sst2"].items()
    found = {key: value for key, value in values if key.startswith("acc") and "_stderr" not in key}
    assert {"acc,proca_h", "acc_prompts,proca_h", "acc_together,proca_h"} <= set(found) or "acc,proca_h" not in found
    return found


def assignment(results: dict) -> list[int]:
    return results["configs"]["proca_sst2"]["metadata"]["proca"]["fits"]["proca"]["assignment"]


def check_same(folder: Path, alone: Written) -> None:
    """What many processes have written is what one process writes, every document once under each prompt."""
    (one, tables), (many, all_gathered) = alone, written_to(folder)
    assert accuracies(many) == accuracies(one)
    assert assignment(many) == assignment(one)
    for table, gathered in zip(tables, all_gathered, strict=True):
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


def test_one_two_and_three_processes_of_accelerate_agree(lm_eval_cli, folders, alone):
    for processes in (1, 2, 3):
        folder = folders(f"on{processes}")
        done = lm_eval_cli(*small_options(folder), launcher=accelerate(processes))
        assert done.returncode == 0, done.stderr[-3000:]
        ranks = re.findall(r"Building contexts for proca_sst2 on rank (\d)", done.stderr)
        assert sorted(ranks) == [str(rank) for rank in range(processes)]
        check_same(folder, alone)

    _, batched = small_run(lm_eval_cli, folders("batched"), processes=2, batch_size=16)
    assert np.abs(batched[1].scores - alone[1][1].scores).max() <= 1e-4


def test_two_nodes_agree_with_one_process_also_after_one_was_lost(
    smollm2: Path, real_data: Path, lm_eval_project: Path, folders, alone
):
    """Two processes on each node. Every node has a disk of its own, and the first process is the only writer."""
    disks = [folders("first_node"), folders("second_node")]

    def two_nodes():
        begin = launchers(nodes=2, processes=2)
        commands = [command(one, smollm2, *small_options(disk)) for one, disk in zip(begin, disks, strict=True)]
        return started(commands, environment(real_data, lm_eval_project), folders("logs"))

    with two_nodes() as (first, second):
        wait_until(lambda: first.said("about to score"), (first, second))
        ranks = first.workers()
        assert len(ranks) == 2
        second.kill()
        assert first.end() != 0
        assert first.said("another process of this run has ended"), first.log.read_text()[-3000:]
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]
    assert not [file for disk in disks for file in disk.rglob("*") if file.is_file()]

    with two_nodes() as nodes:
        assert [node.end() for node in nodes] == [0, 0], nodes[0].log.read_text()[-3000:]
    check_same(disks[0], alone)
    assert not list(disks[1].iterdir())


def test_a_world_where_every_process_holds_all_documents(lm_eval_cli, folders):
    """Stock HFLM does not shard on CPU processes: both processes score everything, and nothing may count twice.

    Without demonstrations, which it would read again for every document.
    """
    alone, table = small_run(lm_eval_cli, folders("stock1"), model="hf", shots=0)
    both, gathered = small_run(lm_eval_cli, folders("stock2"), model="hf", shots=0, processes=2)
    assert accuracies(both) == accuracies(alone)
    assert assignment(both) == assignment(alone)
    np.testing.assert_allclose(gathered[1].scores, table[1].scores, atol=1e-4)


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
    (launcher,) = launchers(processes=2)
    run = command(launcher, smollm2, *arguments)
    with started([run], environment(real_data, lm_eval_project), tmp_path / "logs") as (launched,):
        wait_until(lambda: launched.said("Running loglikelihood requests"), [launched])
        ranks = launched.workers()
        assert len(ranks) == 2
        os.kill(max(ranks), signal.SIGKILL)
        assert launched.end() != 0
    assert not list(tmp_path.rglob("results_*.json"))
    assert not list((tmp_path / "scores").rglob("*")) if (tmp_path / "scores").exists() else True
    assert not [pid for pid in ranks if Path(f"/proc/{pid}").exists()]
