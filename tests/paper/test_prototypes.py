"""The analysis of hidden states against label scores, on tables with known truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from lm_eval_proca import BatchCalibrator, RepresentationCalibrator
from lm_eval_proca.paper.prototypes import Prototypes, representations, several_labels
from tests.score_tables import made_table

CALIBRATORS = {"bc": BatchCalibrator(), "proca_h": RepresentationCalibrator()}


def tables() -> list:
    return [
        made_table(task, seed=seed, separation=0.5, hidden=True)
        for task, seeds in (("proca_a", (0, 1)), ("proca_b", (2, 3)))
        for seed in seeds
    ]


def test_every_method_is_measured_and_averages_are_over_tasks() -> None:
    observed = Prototypes.observe(tables(), CALIBRATORS)
    assert {one["calibrator"] for one in observed} == {"none", "bc", "proca_h", "labels_on_scores", "labels_on_states"}
    rows = {row["task"]: row for row in Prototypes(observed).summary()}
    by_hand = 100 * np.mean([one["accuracy"] for one in observed if one["calibrator"] == "proca_h"])
    assert float(rows["average"]["proca_h"]) == pytest.approx(by_hand, abs=0.051)
    differences = [
        100 * (a["accuracy"] - b["accuracy"])
        for a in observed
        for b in observed
        if (a["calibrator"], b["calibrator"]) == ("proca_h", "bc") and (a["task"], a["seed"]) == (b["task"], b["seed"])
    ]
    assert float(rows["proca_h less this"]["bc"].split()[0]) == pytest.approx(np.mean(differences), abs=0.051)
    low, high = ttest_1samp([np.mean(differences[:2]), np.mean(differences[2:])], 0).confidence_interval()
    assert rows["proca_h less this"]["bc"].endswith(f" [{low:.1f}, {high:.1f}]")
    below = [one for one in differences if one < 0]
    assert rows["runs below; worst"]["bc"] == f"{len(below)} of 4; {min(below, default=0.0):+.1f}"
    assert rows["proca_h less this"]["proca_h"] == rows["runs below; worst"]["proca_h"] == ""
    raw, ours, ceiling = (float(rows["average"][name]) for name in ("none", "proca_h", "labels_on_states"))
    assert float(rows["share of the way from raw"]["labels_on_states"].removesuffix(" %")) == pytest.approx(
        100 * (ours - raw) / (ceiling - raw), abs=1
    )
    assert ceiling > float(rows["average"]["bc"])


def test_models_are_not_mixed() -> None:
    observed = [
        {"model": model, "task": task, "num_fewshot": 4, "seed": 0, "calibrator": name, "estimated": None}
        | {"accuracy": accuracy + (0.02 if (task, name) == ("second", "proca_h") else 0)}
        for model, accuracies in (("a", {"bc": 0.5, "proca_h": 0.6}), ("b", {"bc": 0.8, "proca_h": 0.9}))
        for task in ("first", "second")
        for name, accuracy in accuracies.items()
    ]
    rows = Prototypes(observed).summary()
    assert [row["bc"] for row in rows if row["task"] == "average"] == ["50.0", "80.0"]
    assert [row["bc"].split()[0] for row in rows if row["task"] == "proca_h less this"] == ["+11.0", "+11.0"]
    assert {row["model"] for row in rows} == {"a", "b"}


def test_the_clouds_are_the_evaluation_rows_in_both_spaces() -> None:
    points = Prototypes.observe_documents(tables())
    assert {one["space"] for one in points} == {"label scores", "hidden states"}
    assert len(points) == 2 * 200


def test_a_table_without_hidden_states_or_with_one_label_is_not_for_it() -> None:
    table = made_table(hidden=True)
    alike = np.where(table.role == "estimate", 1, table.estimate_gold)
    assert several_labels(table) is None
    assert several_labels(replace(table, estimate_gold=alike)) == "estimate rows of one label only"
    assert representations(made_table()) is not None
    assert representations(made_table(hidden=True)) is None
