from __future__ import annotations

import numpy as np
import pytest

from lm_eval_proca import BatchCalibrator, ContextualCalibrator, PrototypicalCalibrator
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.scores.fitting import accuracies, calibrators_of_run, make_calibrators, recalibrate
from tests.score_tables import made_table, without


def test_raw_stands_beside_every_calibrator_of_the_run() -> None:
    table = made_table()
    (raw, *calibrated), failures = recalibrate(table, calibrators_of_run(table))
    assert failures == {}
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


def test_a_calibrator_that_the_table_cannot_fit_is_left_out_with_the_reason() -> None:
    table = without(made_table(), "estimate", "content_free")
    measured, failures = recalibrate(table, make_calibrators(["bc", "conca"]))
    assert [(row.name, row.fit and row.fit.folds) for row in measured] == [("none", None), ("bc", 5)]
    assert list(failures) == ["conca"]
    assert failures["conca"].startswith("ContextualCalibrator is fitted on scores of content-free inputs, which only")


@pytest.mark.parametrize(
    ("row", "where", "left"),
    [(3, "eval document 3", ["none"]), (-1, "content-free document 2", ["none", "bc", "proca"])],
)
@pytest.mark.parametrize("score", [np.nan, -np.inf])
def test_scores_that_are_not_finite_leave_the_rows_that_do_not_need_them(
    row: int, where: str, left: list[str], score: float
) -> None:
    table = made_table()
    complete = recalibrate(table, {})[0][0].measures
    table.scores[row, 1] = score
    measured, failures = recalibrate(table, calibrators_of_run(table))
    assert [one.name for one in measured] == left
    assert set(failures) == {"bc", "conca", "proca"} - set(left)
    for reason in failures.values():
        assert reason.startswith(f"The model gave {score} as the score of label 'Positive' for {where}; ")
    predicted = np.argmax(table.scores_of("eval"), axis=1)  # as lm-eval predicts
    raw = measured[0].measures
    assert raw["accuracy"].value == np.mean(predicted == table.gold_of("eval"))
    assert (raw["brier"].value is None) == (row == 3 and np.isnan(score))
    if row == -1:
        assert raw == complete


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
