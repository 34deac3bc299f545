from __future__ import annotations

import dataclasses
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.errors import ModelError
from lm_eval_proca.sweep.cell import Cell, Model, cell_folder, cell_scores, is_finished
from lm_eval_proca.sweep.runner import Outcome, evaluate_cell, run_cells
from tests.conftest import ROOT
from tests.sweep.made_cells import made_cell

FILE = ROOT / "task_configs" / "proca_sst2.yaml"
CELLS = [made_cell("t", 0, seed, file=FILE) for seed in range(3)]


@pytest.fixture
def model() -> Model:
    return Model("dummy", {})


class Recorder:
    """An evaluation that takes no time, remembers what it was asked for, and fails where it is told to."""

    def __init__(self, fails: dict[Cell, BaseException] | None = None) -> None:
        self.seen: list[Cell] = []
        self.fails = fails or {}

    def __call__(self, cell: Cell, model: Model, folder: Path) -> dict[str, float]:
        self.seen.append(cell)
        (folder / "results_now.json").write_text("{}")
        if cell in self.fails:
            raise self.fails[cell]
        (folder / "scores").mkdir()
        (folder / "scores" / "t.parquet").write_text("table")
        return {"none": 0.5}


def run(evaluate: Callable, model: Model, folder: Path, cells: list[Cell] = CELLS) -> list[Outcome]:
    return run_cells(cells, model, folder, evaluate=evaluate)


def test_finished_cells_are_never_repeated(model: Model, tmp_path: Path):
    first, second = Recorder(), Recorder()
    run(first, model, tmp_path, CELLS[:2])
    outcomes = run(second, model, tmp_path)
    assert first.seen == CELLS[:2]
    assert second.seen == CELLS[2:]
    assert [outcome.cell for outcome in outcomes] == CELLS
    same = dataclasses.replace(CELLS[0], settings=(("estimate_size", "500"),))
    run(second, model, tmp_path, [same])
    run(second, model, tmp_path / "both", [CELLS[0], same])
    assert second.seen == [*CELLS[2:], CELLS[0]], "a cell was run twice, in other words"
    assert all(is_finished(cell_folder(tmp_path, model, cell)) for cell in CELLS)


def test_model_is_loaded_only_if_something_is_to_do(tmp_path: Path):
    class Unloadable(Model):
        def load(self):
            raise ModelError("no such model.")

    run(Recorder(), Model("dummy", {}), tmp_path)
    evaluate = Recorder()
    broken = Unloadable("dummy", {})
    assert [outcome.failure for outcome in run(evaluate, broken, tmp_path)] == [None] * 3
    more = run(evaluate, broken, tmp_path, [*CELLS, *(dataclasses.replace(cell, num_fewshot=4) for cell in CELLS[:2])])
    assert [outcome.failure.sentence for outcome in more[3:]] == ["no such model."] * 2
    assert evaluate.seen == []


def test_failing_cell_is_reported_and_the_rest_goes_on(model: Model, tmp_path: Path):
    outcomes = run(Recorder({CELLS[1]: RuntimeError("out of memory\ndetails")}), model, tmp_path)
    assert [outcome.failure is None for outcome in outcomes] == [True, False, True]
    assert outcomes[1].failure.sentence == "RuntimeError: out of memory"
    log = outcomes[1].log.read_text()
    assert "Traceback" in log
    assert "details" in log
    assert not cell_folder(tmp_path, model, CELLS[1]).exists()

    again = run(Recorder(), model, tmp_path)
    assert all(outcome.failure is None for outcome in again)
    assert not outcomes[1].log.exists(), "the log of a failure that was mended must go"


def test_interrupted_cell_is_not_a_finished_one(model: Model, tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        run(Recorder({CELLS[1]: KeyboardInterrupt()}), model, tmp_path)
    again = Recorder()
    run(again, model, tmp_path)
    assert again.seen == CELLS[1:]


def test_leftovers_of_a_dead_run_are_swept_away(model: Model, tmp_path: Path):
    leftover = tmp_path / model.name / ".unfinished-t-0shot-seed0"
    (leftover / "scores").mkdir(parents=True)
    (leftover / "scores" / "half.parquet").write_text("half")
    run(Recorder(), model, tmp_path)
    folder = cell_folder(tmp_path, model, CELLS[0])
    assert not leftover.exists()
    assert [file.name for file in (folder / "scores").iterdir()] == ["t.parquet"]


def test_evaluation_that_leaves_nothing_is_a_failure(model: Model, tmp_path: Path):
    (outcome,) = run(lambda cell, model, folder: {}, model, tmp_path, CELLS[:1])
    assert re.fullmatch(r"t-0shot-seed0-\w+ ran, but left no result and score table\.", outcome.failure.sentence)


def test_foreign_folder_is_never_overwritten(model: Model, tmp_path: Path):
    folder = cell_folder(tmp_path, model, CELLS[0])
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    outcomes = run(Recorder(), model, tmp_path)
    assert "holds no finished cell; move it away" in outcomes[0].failure.sentence
    assert (folder / "notes.txt").read_text() == "mine"
    assert outcomes[1].failure is None


def test_ordinary_cell_is_what_lm_eval_writes(
    only_our_tasks: None, tiny_gpt2: Path, two_datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from lm_eval.__main__ import cli_evaluate

    words = f"lm_eval --model hf --model_args pretrained={tiny_gpt2} --tasks proca_sst2 --num_fewshot 4 --limit 30"
    words += f" --batch_size 16 --seed 3 --output_path {tmp_path / 'plain'} --log_samples"
    words += f" --metadata proca.data_dir={two_datasets} proca.estimate_size=40"
    monkeypatch.setattr(sys, "argv", words.split())
    cli_evaluate()

    cell = made_cell("proca_sst2", 4, 3, 30, (("data_dir", two_datasets), ("estimate_size", 40)))
    model = Model("hf", {"pretrained": str(tiny_gpt2)}, batch_size="16")
    (outcome,) = run_cells([cell], model, tmp_path / "cells", evaluate=evaluate_cell)
    assert outcome.failure is None
    folder = cell_folder(tmp_path / "cells", model, cell)

    plain, ours = (
        json.loads(next(place.rglob("results_*.json")).read_text()) for place in (tmp_path / "plain", folder)
    )
    of_this_moment = {"date", "start_time", "end_time", "total_evaluation_time_seconds", "pretty_env_info"}
    assert plain.keys() == ours.keys()
    for key in plain.keys() - of_this_moment:
        assert ours[key] == plain[key], key
    assert outcome.accuracy["proca"] == plain["results"]["proca_sst2"]["acc,proca"]
    logged = [next(place.rglob("samples_*.jsonl")).read_text() for place in (tmp_path / "plain", folder)]
    assert logged[0] == logged[1]
    (table,) = cell_scores(tmp_path / "cells", model, cell)
    assert len(table.scores) == 30 + 40 + 3


TWO_PROCESSES = """
import sys
from pathlib import Path
import torch.distributed as dist
from lm_eval_proca.errors import TaskError
from lm_eval_proca import distributed
from lm_eval_proca.sweep.cell import Model, cell_folder
from lm_eval_proca.sweep.runner import evaluate_cell, run_cells
from tests.sweep.made_cells import made_cell

distributed.GRACE_SECONDS = 1.0
weights, rows, output = sys.argv[1], sys.argv[2], Path(sys.argv[3])

def evaluate(cell, model, folder):
    if cell.seed == 1:
        raise TaskError("everybody fails.")
    if cell.seed == 3:
        if dist.get_rank() == 1:
            raise MemoryError("only one fails")
        dist.barrier()
    return evaluate_cell(cell, model, folder)

settings = (("data_dir", rows), ("estimate_size", 40))
cells = [made_cell("proca_sst2", 1, seed, 20, settings) for seed in range(5)]
model = Model("hf", {"pretrained": weights})
cell_folder(output, model, cells[2]).mkdir(parents=True, exist_ok=True)  # known to one process only, in the way of all
outcomes = run_cells(cells[:3], model, output, evaluate=evaluate)
assert [o.failure is None for o in outcomes] == [True, False, False], outcomes
assert outcomes[1].failure.sentence == "everybody fails."
assert "holds no finished cell" in outcomes[2].failure.sentence
print("AGREED", flush=True)
run_cells(cells[3:], model, output, evaluate=evaluate)
print("NEVER REACHED", flush=True)
"""


def test_two_processes_agree_and_none_waits_for_ever(tiny_gpt2: Path, two_datasets: Path, tmp_path: Path):
    script = tmp_path / "two_processes.py"
    script.write_text(TWO_PROCESSES)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone", str(script)]
    command += [str(tiny_gpt2), str(two_datasets), str(tmp_path / "two")]
    together = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert together.returncode != 0
    assert together.stdout.count("AGREED") == 2, together.stderr
    assert "NEVER REACHED" not in together.stdout
    assert "this process failed alone" in together.stderr
    assert "only one fails" in together.stderr

    cells = [
        made_cell("proca_sst2", 1, seed, 20, (("data_dir", two_datasets), ("estimate_size", 40))) for seed in range(4)
    ]
    model = Model("hf", {"pretrained": str(tiny_gpt2)})
    finished = [is_finished(cell_folder(tmp_path / "two", model, cell)) for cell in cells]
    assert finished == [True, False, False, False]

    run_cells(cells[:1], model, tmp_path / "one", evaluate=evaluate_cell)
    (one,), (two,) = (cell_scores(tmp_path / name, model, cells[0]) for name in ("one", "two"))
    np.testing.assert_array_equal(one.index, two.index)
    np.testing.assert_allclose(one.scores, two.scores, atol=1e-4)
