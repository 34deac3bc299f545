"""The analysis of hidden states against label scores, on tables with known truth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from lm_eval_proca import BatchCalibrator, RepresentationCalibrator
from lm_eval_proca.paper.methods import Methods, representations, several_labels
from tests.score_tables import made_table

CALIBRATORS = {"bc": BatchCalibrator(), "proca_h": RepresentationCalibrator()}


def tables() -> list:
    return [
        made_table(task, seed=seed, separation=0.5, hidden=True)
        for task, seeds in (("proca_a", (0, 1)), ("proca_b", (2, 3)))
        for seed in seeds
    ]


def test_every_method_is_measured_and_averages_are_over_tasks() -> None:
    observed = Methods.observe(tables(), CALIBRATORS)
    assert {one["calibrator"] for one in observed} == {"none", "bc", "proca_h", "labels_on_scores", "labels_on_states"}
    rows = {row["method"]: row for row in Methods(observed).summary()}
    compared = {row["method"]: row for row in Methods(observed).further()}
    assert list(rows["bc"]) == ["model", "shots", "method", "a", "b", "average"]
    by_hand = 100 * np.mean([one["accuracy"] for one in observed if one["calibrator"] == "proca_h"])
    assert float(rows["proca_h"]["average"]) == pytest.approx(by_hand, abs=0.051)
    differences = [
        100 * (a["accuracy"] - b["accuracy"])
        for a in observed
        for b in observed
        if (a["calibrator"], b["calibrator"]) == ("proca_h", "bc") and (a["task"], a["seed"]) == (b["task"], b["seed"])
    ]
    assert float(compared["bc"]["proca_h less this"].split()[0]) == pytest.approx(np.mean(differences), abs=0.051)
    low, high = ttest_1samp([np.mean(differences[:2]), np.mean(differences[2:])], 0).confidence_interval()
    assert compared["bc"]["proca_h less this"].endswith(f" [{low:.1f}, {high:.1f}]")
    below = [one for one in differences if one < 0]
    assert compared["bc"]["runs below; worst"] == f"{len(below)} of 4; {min(below, default=0.0):+.1f}"
    assert compared["proca_h"]["proca_h less this"] == compared["proca_h"]["runs below; worst"] == ""
    raw, ours, ceiling = (float(rows[name]["average"]) for name in ("none", "proca_h", "labels_on_states"))
    assert float(compared["labels_on_states"]["share of the way from raw"].removesuffix(" %")) == pytest.approx(
        100 * (ours - raw) / (ceiling - raw), abs=1
    )
    assert ceiling > float(rows["bc"]["average"])


def test_models_are_not_mixed() -> None:
    observed = [
        {"model": model, "task": task, "num_fewshot": 4, "seed": 0, "calibrator": name, "estimated": None}
        | {"accuracy": accuracy + (0.02 if (task, name) == ("second", "proca_h") else 0)}
        for model, accuracies in (("a", {"bc": 0.5, "proca_h": 0.6}), ("b", {"bc": 0.8, "proca_h": 0.9}))
        for task in ("first", "second")
        for name, accuracy in accuracies.items()
    ]
    rows = Methods(observed).summary()
    assert [row["average"] for row in rows if row["method"] == "bc"] == ["50.0", "80.0"]
    compared = Methods(observed).further()
    assert [row["proca_h less this"].split()[0] for row in compared if row["method"] == "bc"] == ["+11.0", "+11.0"]
    assert {row["model"] for row in rows} == {"a", "b"}


def test_nothing_empty_is_printed() -> None:
    """No fit estimates its accuracy and nobody has labels here: no columns for that, and no row without a number."""
    observed = [
        {
            "model": "a",
            "task": task,
            "num_fewshot": 4,
            "seed": 0,
            "calibrator": name,
            "estimated": None,
            "accuracy": 0.5,
        }
        for task in ("first", "second")
        for name in ("bc", "proca_h")
    ]
    assert [row["method"] for row in Methods(observed).further()] == ["bc"]
    assert list(Methods(observed).further()[0])[3:] == ["proca_h less this", "runs below; worst"]
    assert Methods([one for one in observed if one["calibrator"] == "bc"]).further() == []


def test_the_clouds_are_the_evaluation_rows_in_both_spaces() -> None:
    points = Methods.observe_documents(tables())
    assert {one["space"] for one in points} == {"label scores", "hidden states"}
    assert len(points) == 2 * 200


def test_a_table_without_hidden_states_or_with_one_label_is_not_for_it() -> None:
    table = made_table(hidden=True)
    alike = np.where(table.role == "estimate", 1, table.estimate_gold)
    assert several_labels(table) is None
    assert several_labels(replace(table, estimate_gold=alike)) == "estimate rows of one label only"
    assert representations(made_table()) is not None
    assert representations(made_table(hidden=True)) is None
