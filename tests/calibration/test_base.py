"""What every calibrator refuses, the registry, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import lm_eval_proca.calibration
from lm_eval_proca.calibration import CALIBRATORS, get_calibrator
from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.errors import CalibrationError, ProcaError

GOOD = np.random.default_rng(0).normal(size=(20, 3))


@pytest.fixture(params=sorted(CALIBRATORS))
def calibrator(request) -> Calibrator:
    return get_calibrator(request.param)()


def spoiled(value: float, *positions: tuple[int, int]) -> np.ndarray:
    scores = GOOD.copy()
    for position in positions:
        scores[position] = value
    return scores


@pytest.mark.parametrize(
    ("scores", "sentence"),
    [
        (GOOD[:, 0], r"The scores have 1 dimension\(s\) instead of 2; give an array of shape \(documents, labels\)\.$"),
        (GOOD[:, :1], r"The scores have 1 label column\(s\); calibration needs at least 2\.$"),
        (GOOD[:0], r"Calibrator was given no documents to fit on; it needs at least one\.$"),
        (spoiled(np.nan, (7, 2)), r"The score of row 7, label column 2 is nan; every score must be a finite"),
        (spoiled(-np.inf, (3, 1), (9, 0)), r"The score of row 3, label column 1 is -inf \(and 1 more\); every score"),
        ([["a", "b"]], r"The scores are not a table of numbers; give one row per document"),
        ([[1.0, 2.0], [1.0]], r"The scores are not a table of numbers; give one row per document"),
    ],
)
def test_refuses_scores_that_cannot_be_fitted(calibrator, scores, sentence):
    with pytest.raises(CalibrationError, match=sentence):
        calibrator.fit(scores)


def test_refuses_scores_that_cannot_be_predicted(calibrator):
    calibrator.fit(GOOD)
    with pytest.raises(CalibrationError, match=r"2 label columns but this \w+ was fitted on 3; give the same labels"):
        calibrator.predict(GOOD[:, :2])
    with pytest.raises(CalibrationError, match=r"row 4, label column 0 is inf"):
        calibrator.predict_log_proba(spoiled(np.inf, (4, 0)))


@pytest.mark.parametrize(
    "call", [lambda c: c.predict(GOOD), lambda c: c.fit_report(), lambda c: c.save("nowhere.json")]
)
def test_says_that_it_is_not_fitted(calibrator, call):
    with pytest.raises(CalibrationError, match=r"is not fitted yet; call fit\(scores\) first\.$"):
        call(calibrator)


def test_predicts_no_documents_and_lists(calibrator):
    calibrator.fit(GOOD.tolist())
    assert calibrator.predict(np.empty((0, 3))).shape == (0,)
    np.testing.assert_array_equal(calibrator.predict(GOOD.tolist()), calibrator.predict(GOOD))
    np.testing.assert_array_equal(calibrator.predict(GOOD), calibrator.predict_log_proba(GOOD).argmax(axis=1))


def test_probabilities_are_those_of_the_log_probabilities_and_sum_to_one(calibrator):
    proba = calibrator.fit(GOOD).predict_proba(GOOD)
    np.testing.assert_array_equal(proba, np.exp(calibrator.predict_log_proba(GOOD)))
    np.testing.assert_allclose(proba.sum(axis=1), 1.0, rtol=1e-12)


def test_label_words_belong_to_the_fit_they_were_given_to(calibrator):
    calibrator.fit(GOOD, labels=(" a", "b", "c"), origin={"model": "m"})
    assert (calibrator.labels_, calibrator.origin_) == (["a", "b", "c"], {"model": "m"})
    calibrator.fit(GOOD)
    assert (calibrator.labels_, calibrator.origin_) == (None, {})


@pytest.mark.parametrize("labels", [["a", "b"], ["a", "b", "b "]])
def test_refuses_words_that_cannot_name_the_columns(calibrator, labels):
    with pytest.raises(CalibrationError, match=r"cannot name 3 label columns; give each column its own word\.$"):
        calibrator.fit(GOOD, labels=labels)


def test_never_writes_into_the_scores(calibrator):
    scores = GOOD.copy()
    calibrator.fit(scores).predict(scores)
    np.testing.assert_array_equal(scores, GOOD)


def test_says_which_calibrators_there_are():
    with pytest.raises(CalibrationError, match=r"no calibrator named 'platt'; the known ones are bc, conca, proca\.$"):
        get_calibrator("platt")


def test_every_public_name_exists():
    for name in lm_eval_proca.calibration.__all__:
        assert getattr(lm_eval_proca.calibration, name).__doc__
    with pytest.raises(AttributeError):
        lm_eval_proca.calibration.TemperatureCalibrator  # noqa: B018


def test_errors_are_ours_and_value_errors():
    assert issubclass(CalibrationError, ProcaError)
    assert issubclass(CalibrationError, ValueError)


def modules_after(statement: str) -> set[str]:
    program = f"import sys; {statement}; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_calibration_needs_neither_torch_nor_lm_eval():
    names = ["base", "batch", "contextual", "gaussian_mixture", "prototypical", "registry", "storage"]
    loaded = modules_after("; ".join(f"import lm_eval_proca.calibration.{name}" for name in names))
    assert "sklearn" in loaded
    assert not loaded & {"torch", "lm_eval", "transformers", "datasets"}


def test_the_registry_needs_nothing():
    loaded = modules_after("import lm_eval_proca.calibration.registry")
    assert not loaded & {"numpy", "scipy", "sklearn", "torch", "lm_eval"}
