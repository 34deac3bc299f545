from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lm_eval_proca import BatchCalibrator, ContextualCalibrator, PrototypicalCalibrator
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.experiments.recalibration import (
    accuracies,
    calibrators_of_run,
    fit,
    make_calibrators,
    not_finite,
    recalibrate,
)
from lm_eval_proca.score_table import ScoreTable
from tests.score_tables import made_table


def without(table: ScoreTable, *roles: str) -> ScoreTable:
    keep = ~np.isin(table.role, roles)
    columns = {name: getattr(table, name)[keep] for name in ("role", "index", "gold", "estimate_gold", "scores")}
    return replace(table, **columns)


def test_raw_stands_beside_every_calibrator_of_the_run() -> None:
    table = made_table()
    raw, *calibrated = recalibrate(table, calibrators_of_run(table))
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
    measured = recalibrate(table, make_calibrators(["bc", "conca"]))
    assert [row.name for row in measured] == ["none", "bc"]
    expected = BatchCalibrator().fit(table.scores_of("eval"))
    np.testing.assert_array_equal(measured[1].calibrator.mean_log_proba_, expected.mean_log_proba_)
    with pytest.raises(CalibrationError, match="finite scores of content-free inputs"):
        fit(ContextualCalibrator(), table)


def test_a_part_of_the_rows_is_what_is_fitted() -> None:
    table, part = made_table(), np.array([5, 2, 99])
    fitted = fit(BatchCalibrator(), table, rows=part)
    expected = BatchCalibrator().fit(table.scores_of("estimate")[part])
    np.testing.assert_array_equal(fitted.mean_log_proba_, expected.mean_log_proba_)


def test_fitting_leaves_the_calibrator_as_it_was() -> None:
    calibrator = BatchCalibrator()
    assert fit(calibrator, made_table()) is not calibrator
    assert not hasattr(calibrator, "mean_log_proba_")


@pytest.mark.parametrize(("row", "where"), [(3, "eval document 3"), (-1, "content-free document 2")])
@pytest.mark.parametrize("score", [np.nan, -np.inf])
def test_scores_that_are_not_finite_leave_the_raw_row(row: int, where: str, score: float) -> None:
    table = made_table()
    complete = recalibrate(table, {})[0].measures
    table.scores[row, 1] = score
    assert not_finite(table) == f"the score of 'Positive' for {where} is {score}"
    [raw] = recalibrate(table, calibrators_of_run(table))
    predicted = np.argmax(table.scores_of("eval"), axis=1)  # as lm-eval predicts
    assert raw.measures["accuracy"].value == np.mean(predicted == table.gold_of("eval"))
    assert (raw.measures["brier"].value is None) == (row == 3 and np.isnan(score))
    if row == -1:
        assert raw.measures == complete
    assert not_finite(made_table()) is None


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
