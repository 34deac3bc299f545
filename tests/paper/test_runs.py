"""Runs of different models and conditions are never taken for seeds of one."""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm_eval_proca.cli import main
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.paper.observations import runs_of
from lm_eval_proca.scores.score_table import ScoreTable
from tests.score_tables import made_table


def table(model: str, seed: int = 0, *, args: dict | None = None, shots: int = 4, **record: Any) -> ScoreTable:
    """A run of this model, with these arguments, and a record that is changed in some of its fields."""
    identity = {"model": {"pretrained": model, **(args or {})}, **record.pop("identity", {})}
    given = {"model_hash": f"{model}{args}", "documents_hash": "d", "prompt_hash": f"p{seed}", **record}
    made = made_table(seed=seed, shots=shots, eval_rows=40, estimate_rows=60)
    return replace(made, record=replace(made.record, model=model, identity=identity, **given))


def names(*tables: ScoreTable) -> list[tuple[str | None, str]]:
    return [(one.record.model, one.record.task) for one in runs_of(tables)[0]]


def test_models_are_named_by_as_much_of_their_paths_as_tells_them_apart() -> None:
    assert {model for model, _ in names(table("/runs/a/final"), table("/runs/a/final", 1))} == {"final"}
    found = names(*(table(path) for path in ("/x/good/step-10", "/x/poor/step-10", "/y/poor/step-10", "org/other")))
    assert [model for model, _ in found] == ["good/step-10", "x/poor/step-10", "y/poor/step-10", "other"]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"revision": "main"}, {"revision": "step10"}, ["m (revision=main)", "m (revision=step10)"]),
        ({"dtype": "float16"}, {}, ["m (dtype=float16)", "m (dtype=None)"]),
    ],
)
def test_models_of_one_path_are_named_by_the_arguments_that_differ(one: dict, other: dict, expected: list[str]) -> None:
    found = names(table("org/m", args=one), table("org/m", args=other), table("org/m", 1, args=one))
    assert [model for model, _ in found] == [*expected, expected[0]]


def test_edited_weights_are_another_model() -> None:
    found = names(table("/m", model_hash="one"), table("/m", model_hash="other"))
    assert [model for model, _ in found] == ["m (weights=one)", "m (weights=other)"]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ({"limit": 50}, {"limit": None}, "limit"),
        ({"estimate_size": 100}, {"estimate_size": 500}, "estimate_size"),
        ({"task_version": "1"}, {"task_version": "2"}, "version"),
        ({"documents_hash": "1"}, {"documents_hash": "2"}, "documents"),
        ({"labels": ("No", "Yes")}, {"labels": ("Bad", "Good")}, "labels"),
        (*({"identity": {"task": {"doc_to_text": text}}} for text in ("{{a}} is", "{{a}} was")), "doc_to_text"),
        (*({"identity": {"settings": {"estimate_seed": seed}}} for seed in "01"), "estimate_seed"),
    ],
)
def test_runs_under_other_conditions_are_other_tasks(one: dict, other: dict, expected: str) -> None:
    found = names(*(table("m", seed, **given) for seed in (0, 1) for given in (one, other)))
    assert len(set(found)) == 2
    assert all(task.startswith(f"proca_sst2 ({expected}=") and task.count("=") == 1 for _, task in found)


def test_seeds_shots_and_demonstrations_are_no_other_task() -> None:
    varied = []
    for seed, shots, k, order in product((0, 1), (4, 8), (0, 8), (0, 1)):
        settings = {"demonstration_counts": f"{8 - k}/{k}", "order_seed": str(order)}
        given = {"demonstration_counts": (8 - k, k), "order_seed": order, "prompt_hash": f"{seed}{k}{order}"}
        varied.append(table("m", seed, shots=shots, identity={"settings": settings}, **given))
    assert set(names(*varied)) == {("m", "proca_sst2")}
    assert len(names(*varied)) == len(varied)


def test_one_run_counts_once_and_two_prompts_of_one_seed_are_refused() -> None:
    kept, repeated = runs_of([table("m"), table("m", 1), table("m")])
    assert [one.record.seed for one in kept] == [0, 1]
    assert repeated == ["proca_sst2 (the same run in 2 tables)"]
    with pytest.raises(ResultsError, match=r"proca_sst2 was run by m with 4 shots and seed 0 on different prompts"):
        runs_of([table("m"), table("m", prompt_hash="with a chat template")])


def test_two_checkpoints_of_one_name_are_compared_each_with_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one of them hidden states help; mixed, the sign of the difference could be anything."""
    pytest.importorskip("matplotlib").use("Agg")
    for name, helps in (("good", True), ("poor", False)):
        for number, task in enumerate(("proca_a", "proca_b")):
            made = made_table(task, seed=number, separation=0.5, hidden=True, model=f"/m/{name}/checkpoint-1000")
            made = replace(made, record=replace(made.record, model_hash=name, seed=0))
            if not helps:
                noise = np.random.default_rng(0).normal(size=(len(made.scores), 1, 8)).repeat(2, axis=1)
                made = replace(made, representations=noise)
            made.save(tmp_path / name / f"{task}.parquet")
    assert main(["analyze", "methods", str(tmp_path), "--output", str(tmp_path), "--param", "proca.n_init=2"]) == 0
    printed = capsys.readouterr().out
    assert {line.split()[0] for line in printed.splitlines() if " proca_h " in line and "less" not in line} == {
        *(f"{name}/checkpoint-1000" for name in ("good", "poor"))
    }
    with (tmp_path / "methods.csv").open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["calibrator"] in ("bc", "proca_h")]
    gains = [
        50 * sum(accuracy(rows, model, "proca_h", task) - accuracy(rows, model, "bc", task) for task in ("a", "b"))
        for model in ("good", "poor")
    ]
    told = [line for line in printed.split("proca_h less this")[1].splitlines() if line.split()[2:3] == ["bc"]]
    found = [float(re.findall(r"([+-][\d.]+) \[", line)[0]) for line in told]
    assert found == pytest.approx(gains, abs=0.051)
    assert gains[0] > 5 > gains[1]


def accuracy(rows: list[dict[str, str]], model: str, calibrator: str, task: str) -> float:
    [found] = [
        row["accuracy"]
        for row in rows
        if (row["model"], row["calibrator"], row["task"]) == (f"{model}/checkpoint-1000", calibrator, f"proca_{task}")
    ]
    return float(found)
