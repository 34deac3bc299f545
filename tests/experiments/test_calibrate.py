from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.metrics import accuracy_score, f1_score

from lm_eval_proca import BatchCalibrator, ContextualCalibrator, PrototypicalCalibrator
from lm_eval_proca.calibration import metrics
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.experiments.calibrate import (
    accuracies,
    calibrate,
    calibrators_of_run,
    draw_resamples,
    fit,
    make_calibrators,
    measure,
)
from lm_eval_proca.score_table import ScoreTable
from tests.score_tables import made_table


def without(table: ScoreTable, *roles: str) -> ScoreTable:
    keep = ~np.isin(table.role, roles)
    columns = {name: getattr(table, name)[keep] for name in ("role", "index", "gold", "estimate_gold", "scores")}
    return replace(table, **columns)


@pytest.mark.parametrize("labels", [2, 5])
def test_measures_and_intervals_are_those_of_the_plain_functions(labels: int) -> None:
    rng = np.random.default_rng(labels)
    gold = rng.integers(labels, size=60)
    proba = softmax(rng.normal(size=(60, labels)) + np.eye(labels)[gold], axis=1)
    predicted = proba.argmax(axis=1)
    found = measure(gold, proba, predicted, draw_resamples(60, n_resamples=200))

    assert found["accuracy"].value == accuracy_score(gold, predicted)
    assert found["macro_f1"].value == pytest.approx(f1_score(gold, predicted, average="macro"))
    assert found["brier"].value == pytest.approx(
        np.mean([np.sum((p - np.eye(labels)[g]) ** 2) for g, p in zip(gold, proba, strict=True)])
    )
    plain = {
        "accuracy": (metrics.accuracy, predicted),
        "macro_f1": (metrics.macro_f1, predicted),
        "brier": (metrics.brier_score, proba),
        "ece": (metrics.expected_calibration_error, proba),
    }
    for name, (function, argument) in plain.items():
        expected = (function(gold, argument), *metrics.bootstrap_interval(function, gold, argument, n_resamples=200))
        assert tuple(found[name]) == pytest.approx(expected), name


def test_raw_stands_beside_every_calibrator_of_the_run() -> None:
    table = made_table()
    raw, *calibrated = calibrate(table, calibrators_of_run(table))
    gold = table.gold_of("eval")
    assert raw.name == "none"
    assert raw.measures["accuracy"].value == np.mean(table.scores_of("eval").argmax(axis=1) == gold)
    assert [row.name for row in calibrated] == ["bc", "conca", "proca"]
    by_hand = {
        "bc": BatchCalibrator().fit(table.scores_of("estimate")),
        "conca": ContextualCalibrator().fit(table.scores_of("content_free")),
        "proca": PrototypicalCalibrator(n_init=5).fit(table.scores_of("estimate")),
    }
    for row in calibrated:
        assert row.measures["accuracy"].value == np.mean(by_hand[row.name].predict(table.scores_of("eval")) == gold)
    assert accuracies(table, calibrators_of_run(table)) == {
        row.name: row.measures["accuracy"].value for row in (raw, *calibrated)
    }


def test_calibrators_never_depend_on_any_label() -> None:
    table = made_table()
    rng = np.random.default_rng(0)
    shuffled = replace(table, gold=rng.permutation(table.gold), estimate_gold=rng.permutation(table.estimate_gold))
    for name, calibrator in calibrators_of_run(table).items():
        first = fit(calibrator, table).predict_log_proba(table.scores_of("eval"))
        again = fit(calibrators_of_run(shuffled)[name], shuffled).predict_log_proba(table.scores_of("eval"))
        np.testing.assert_array_equal(first, again)


def test_filters_of_the_run_keep_their_names_and_parameters() -> None:
    filters = {
        "none": [{"function": "take_first"}],
        "quick": [{"function": "proca", "n_init": 3, "tol": 0.1}],
        "proca": [{"function": "proca"}],
    }
    found = calibrators_of_run(made_table(filters=filters), {"quick": {"n_init": 4}})
    assert list(found) == ["quick", "proca"]
    assert (found["quick"].n_init, found["quick"].tol) == (4, 0.1)
    assert found["proca"].get_params() == PrototypicalCalibrator().get_params()


def test_without_an_estimate_set_the_evaluation_rows_stand_in_and_contextual_calibration_is_left_out() -> None:
    table = without(made_table(), "estimate", "content_free")
    measured = calibrate(table, make_calibrators(["bc", "conca"]))
    assert [row.name for row in measured] == ["none", "bc"]
    expected = BatchCalibrator().fit(table.scores_of("eval"))
    np.testing.assert_array_equal(measured[1].calibrator.mean_log_proba_, expected.mean_log_proba_)
    with pytest.raises(CalibrationError, match="fitted on content-free inputs"):
        fit(ContextualCalibrator(), table)


@pytest.mark.parametrize(
    ("names", "params", "message"),
    [
        (["proca"], {"bc": {"x": 1}}, "parameters for bc, which is not among the calibrators proca"),
        (["proca"], {"proca": {"inits": 1}}, "proca has no parameter inits; it has covariance_type, "),
        (["proca"], {"proca": {"n_init": 0}}, "'n_init' parameter of PrototypicalCalibrator must be"),
        (["platt"], {}, "no calibrator named 'platt'; the known ones are"),
    ],
)
def test_mistakes_are_named(names: list[str], params: dict, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        make_calibrators(names, params)
