"""Demonstrations that a model has labeled itself: which rows are picked, and sweeps that show them."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.calibration.batch import BatchCalibrator
from lm_eval_proca.errors import TaskError
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.cell import Model
from lm_eval_proca.sweep.runner import evaluate_cell, load_task
from lm_eval_proca.sweep.self_labelled import pick
from tests.conftest import ROOT
from tests.launch import launchers, started
from tests.sweep.made_cells import made_cell
from tests.sweep.test_sweep import wait_until


class TestPick:
    """Six labels, forty rows each, of which the first twenty are the more confident ones."""

    labels = np.repeat(np.arange(6), 40)
    confident = np.tile(np.arange(40) < 20, 6)
    probability = np.where(confident, 0.9, 0.6)
    log_proba = np.log(np.where(np.eye(6, dtype=bool)[labels], probability[:, None], (1 - probability[:, None]) / 5))
    texts = tuple((f"word{i} other{i} third{i}",) for i in range(240))

    def picked(self, prompts: int = 4, shots: int = 6, seed: int = 0, **given):
        arguments = {"log_proba": self.log_proba, "texts": self.texts, **given}
        return pick(arguments["log_proba"], arguments["texts"], prompts=prompts, shots=shots, seed=seed)

    def test_every_label_once_where_there_are_as_many_shots(self):
        for of_prompt in self.picked():
            assert sorted(one.label for one in of_prompt) == list(range(6))

    @pytest.mark.parametrize("shots", [1, 4, 8])
    def test_labels_are_shown_about_equally_often(self, shots: int):
        counts = Counter(one.label for of_prompt in self.picked(shots=shots) for one in of_prompt)
        assert sum(counts.values()) == 4 * shots
        assert max(counts.values()) - min(counts.get(label, 0) for label in range(6)) <= 1

    def test_rows_are_confident_shown_once_and_have_the_label_of_the_calibrator(self):
        everything = [one for of_prompt in self.picked(shots=12) for one in of_prompt]
        assert len({one.row for one in everything}) == 48
        assert all(self.confident[one.row] and self.labels[one.row] == one.label for one in everything)
        assert {round(one.probability, 6) for one in everything} == {0.9}

    def test_near_duplicates_are_not_shown_together(self):
        twins = tuple(("the same words here",) if i % 40 < 19 else text for i, text in enumerate(self.texts))
        for of_prompt in self.picked(prompts=1, texts=twins):
            assert sum(twins[one.row] == ("the same words here",) for one in of_prompt) <= 1

    def test_orders_and_rows_follow_the_seed(self):
        assert self.picked() == self.picked()
        assert self.picked() != self.picked(seed=1)
        orders = {tuple(one.label for one in of_prompt) for of_prompt in self.picked()}
        assert len(orders) > 1

    def test_a_label_that_no_row_gets_is_left_out(self):
        lacking = self.log_proba[self.labels != 3]
        shown = {one.label for of_prompt in self.picked(log_proba=lacking) for one in of_prompt}
        assert shown == {0, 1, 2, 4, 5}

    def test_few_rows_are_shown_again_rather_than_none(self):
        few = self.log_proba[::20]
        rows = [one.row for of_prompt in self.picked(log_proba=few, texts=self.texts[::20]) for one in of_prompt]
        assert len(rows) == 24


# ------------------------------------------------------------------ the command


@pytest.fixture(scope="module")
def options(tiny_gpt2: Path, two_datasets: Path) -> list[str]:
    return [
        *(
            "sweep",
            "--demonstrations",
            "self",
            "--model",
            "hf-shared-prefix",
            "--model_args",
            f"pretrained={tiny_gpt2}",
        ),
        *("--tasks", "proca_sst2", "--num_fewshot", "2", "--seeds", "0", "--limit", "20", "--batch_size", "32"),
        *("--metadata", f"proca.data_dir={two_datasets}", "proca.estimate_size=40", "proca.prompts=3"),
    ]


@pytest.fixture(scope="module")
def finished(options: list[str], start_command: Callable, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("self")
    sweep = start_command([*options, "--output_path", str(folder / "runs")], folder / "log")
    sweep.join()
    assert sweep.exitcode == 0, (folder / "log").read_text()
    return folder / "runs"


def cell(finished: Path, name: str) -> Path:
    (found,) = finished.glob(f"*/proca_sst2-{name}-seed0-*")
    return found


def demonstrations(finished: Path) -> tuple[dict, list[dict]]:
    header, *rows = map(json.loads, (cell(finished, "2shot") / "demonstrations.jsonl").read_text().splitlines())
    return header["lm_eval_proca"], rows


def test_the_second_pass_has_the_first_prompt_and_those_of_the_file(finished: Path):
    provenance, rows = demonstrations(finished)
    assert [row["prompt"] for row in rows] == [1, 1, 2, 2]
    files = (cell(finished, "2shot") / "scores").glob("*.parquet")
    tables = sorted(map(ScoreTable.load, files), key=lambda table: table.record.prompt)
    (first,) = map(ScoreTable.load, (cell(finished, "0shot") / "scores").glob("*.parquet"))
    assert [table.record.prompts for table in tables] == [3, 3, 3]
    assert tables[0].record.prompt_hash == first.record.prompt_hash
    assert tables[0].scores_of("eval") == pytest.approx(first.scores_of("eval"), abs=1e-4)
    assert all(table.record.demonstrated_by == provenance for table in tables)
    assert provenance["unlabeled_hash"] == first.record.unlabeled_hash


def test_shown_rows_are_not_scored_and_their_labels_are_the_calibrators(finished: Path, two_datasets: Path):
    provenance, rows = demonstrations(finished)
    (first,) = map(ScoreTable.load, (cell(finished, "0shot") / "scores").glob("*.parquet"))
    settings = (("data_dir", two_datasets), ("estimate_size", 40))
    task = load_task(made_cell("proca_sst2", 0, 0, 20, settings), {})
    task.set_fewshot_seed(0)
    docs = task.unlabeled_rows().docs
    assert [docs[row["row"]]["sentence"].strip() for row in rows] == [row["sentence"] for row in rows]
    if provenance["calibrator"] == "bc":
        scores = first.scores_of("estimate")
        given = BatchCalibrator().fit(scores).predict(scores)
        assert [task.labels[given[row["row"]]] for row in rows] == [row["label"] for row in rows]

    file = cell(finished, "2shot") / "demonstrations.jsonl"
    second = load_task(made_cell("proca_sst2", 2, 0, 20, (*settings, ("demonstration_file", file))), {})
    second.set_config("num_fewshot", 2)
    second.set_fewshot_seed(0)
    second.build_all_requests(limit=20)
    asked = {tuple(doc["sentence"].split()) for doc in second.plan.further.values()}
    assert not asked & {tuple(row["sentence"].split()) for row in rows}
    assert len([one for one in second.plan.documents.values() if one.role == "estimate"]) == 40
    prompt = second.instances[-1].args[0]
    for row in rows:
        shown = f"Review: {row['sentence']}\nSentiment: {row['label']}\n\n" in prompt
        assert shown == (row["prompt"] == 2)


def test_results_say_what_was_shown(finished: Path):
    (results,) = cell(finished, "2shot").glob("results_*.json")
    found = json.loads(results.read_text())
    assert found["configs"]["proca_sst2"]["metadata"]["proca"]["demonstrated_by"]["kind"].startswith("self-labelled")
    assert 0 <= found["results"]["proca_sst2"]["acc_together,bc"] <= 1


def test_a_lost_cell_comes_again_to_the_digit(finished: Path, options: list[str], start_command, tmp_path: Path):
    again = tmp_path / "runs"
    shutil.copytree(finished, again)
    shutil.rmtree(cell(again, "2shot"))
    sweep = start_command([*options, "--output_path", str(again)], tmp_path / "log")
    sweep.join()
    assert sweep.exitcode == 0, (tmp_path / "log").read_text()
    assert demonstrations(again) == demonstrations(finished)
    scores = [sorted((cell(one, "2shot") / "scores").glob("*.parquet")) for one in (finished, again)]
    for ours, theirs in zip(*map(list, scores), strict=True):
        assert ScoreTable.load(ours).scores == pytest.approx(ScoreTable.load(theirs).scores, abs=1e-4)


def outcome(finished: Path) -> tuple[dict[str, float], list[dict]]:
    """Accuracies of the second pass, and what was shown."""
    (results,) = cell(finished, "2shot").glob("results_*.json")
    metrics = json.loads(results.read_text())["results"]["proca_sst2"]
    found = {key: one for key, one in metrics.items() if key.startswith("acc") and "stderr" not in key}
    return found, demonstrations(finished)[1]


def test_a_kill_in_either_pass_loses_only_that_pass(
    finished: Path, options: list[str], start_command: Callable, tmp_path: Path
):
    runs = tmp_path / "runs"

    def run_until(seen: str) -> None:
        sweep = start_command([*options, "--output_path", str(runs)], tmp_path / "log")
        wait_until(lambda: any(runs.glob(seen)) or not sweep.is_alive())
        sweep.kill()
        sweep.join()

    run_until("*/.unfinished-*0shot*")
    assert not list(runs.glob("*/proca_sst2-0shot*/results_*.json")), "too late for a kill"
    run_until("*/proca_sst2-0shot*")
    run_until("*/.unfinished-*2shot*")
    assert not list(runs.glob("*/proca_sst2-2shot*/results_*.json")), "too late for a kill"
    written = {file: file.stat().st_mtime_ns for file in runs.glob("*/proca_sst2-0shot*/**/*")}
    last = start_command([*options, "--output_path", str(runs)], tmp_path / "log")
    last.join()
    assert last.exitcode == 0, (tmp_path / "log").read_text()
    assert {file: file.stat().st_mtime_ns for file in written} == written
    assert outcome(runs) == outcome(finished)


@pytest.mark.slow
def test_two_processes_show_and_measure_the_same(finished: Path, options: list[str], tmp_path: Path):
    # One document a batch, on both sides: rounding differs between batches, and decides who is more confident.
    one_by_one = [*options, "--batch_size", "1", "--device", "cpu"]
    [launcher] = launchers(processes=2)
    commands = {
        "one": [sys.executable, "-m", "lm_eval_proca.cli", *one_by_one],
        "two": [*launcher, "-m", "lm_eval_proca.cli", *one_by_one],
    }
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for name, command in commands.items():
        with started([[*command, "--output_path", str(tmp_path / name)]], environment, tmp_path / f"{name}.log") as [
            run
        ]:
            assert run.end() == 0, run.log.read_text()
    assert outcome(tmp_path / "two") == outcome(tmp_path / "one")


def test_a_command_of_its_own_takes_what_a_sweep_has(finished: Path, options: list[str], tmp_path: Path, capsys):
    from lm_eval_proca.cli import main

    again = tmp_path / "runs"
    shutil.copytree(finished, again)
    shutil.rmtree(cell(again, "2shot"))
    backend = options[options.index("--model") : options.index("--tasks")]
    task = ["--task", "proca_sst2", "--num_fewshot", "2", "--limit", "20", "--batch_size", "32"]
    metadata = options[options.index("--metadata") :]
    assert main(["self-label", *backend, *task, *metadata, "--output_path", str(again)]) == 0
    said = capsys.readouterr().out
    assert "proca_sst2-2shot" in said
    assert "proca_sst2-0shot" not in said  # the first pass is there already
    assert "no label was used" in said
    rows = said[said.index("\nrow ") :].splitlines()
    (results,) = cell(finished, "2shot").glob("results_*.json")
    metrics = json.loads(results.read_text())["results"]["proca_sst2"]
    bc = next(row for row in rows if row.startswith("bc ")).split()
    assert bc[1] == f"{100 * metrics['acc,bc']:.1f}"
    assert bc[3] == f"{100 * metrics['acc_together,bc']:.1f}"
    assert (cell(again, "2shot") / "demonstrations.jsonl").exists()


# ------------------------------------------------------------------ what is wrong is told


@pytest.mark.parametrize(
    ("change", "shots", "told"),
    [
        (lambda lines: lines, 4, "2 demonstrations for prompt 1, but --num_fewshot is 4; make the two agree"),
        (lambda lines: lines[1:], 2, "is no file of self-labelled demonstrations"),
        (lambda lines: [lines[0].replace('"proca_sst2"', '"proca_mr"', 1), *lines[1:]], 2, "are for the task proca_mr"),
        (
            lambda lines: [lines[0], lines[1].replace('"label": "', '"label": "not ')],
            2,
            "line 2 of .* is no demonstration",
        ),
        (lambda lines: [lines[0], "{"], 2, "line 2 of .* is not JSON"),
    ],
)
def test_a_wrong_file_is_one_sentence(
    finished: Path, two_datasets: Path, tiny_gpt2: Path, tmp_path: Path, change: Callable, shots: int, told: str
):
    lines = (cell(finished, "2shot") / "demonstrations.jsonl").read_text().splitlines()
    file = tmp_path / "changed.jsonl"
    file.write_text("\n".join(change(lines)))
    settings = (("data_dir", two_datasets), ("estimate_size", 40), ("demonstration_file", file))
    model = Model("hf", {"pretrained": str(tiny_gpt2)}, device="cpu")
    with pytest.raises(TaskError, match=told):
        evaluate_cell(made_cell("proca_sst2", shots, 0, 20, settings), model, tmp_path / "folder")


def test_an_evaluated_document_is_never_shown(finished: Path, two_datasets: Path, tmp_path: Path):
    lines = (cell(finished, "2shot") / "demonstrations.jsonl").read_text().splitlines()
    evaluated = json.loads((two_datasets / "sst2" / "validation.jsonl").read_text().splitlines()[0])["sentence"]
    (tmp_path / "changed.jsonl").write_text(
        "\n".join([lines[0], json.dumps({**json.loads(lines[1]), "sentence": evaluated})])
    )
    settings = (("data_dir", two_datasets), ("demonstration_file", tmp_path / "changed.jsonl"))
    with pytest.raises(TaskError, match="demonstrates a document that is evaluated"):
        load_task(made_cell("proca_sst2", 2, 0, settings=settings), {})


def test_settings_that_also_decide_prompts_are_refused(finished: Path, two_datasets: Path):
    file = cell(finished, "2shot") / "demonstrations.jsonl"
    settings = (("data_dir", two_datasets), ("demonstration_file", file), ("order_seed", 0))
    with pytest.raises(TaskError, match=r"demonstration_file decides the prompts; leave proca\.order_seed out"):
        load_task(made_cell("proca_sst2", 2, 0, settings=settings), {})
