"""Contextual and batch calibration by hand arithmetic and by what they must not depend on."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from lm_eval_proca.calibration.batch import BatchCalibrator
from lm_eval_proca.calibration.contextual import ContextualCalibrator

scores_of_three = arrays(np.float64, (6, 3), elements=st.floats(-30, 0))
bias_of_three = arrays(np.float64, 3, elements=st.floats(-10, 10))


def test_contextual_by_hand():
    # Averaged before they are normalised: (0.3 + 0.1) / 2 = 0.2 and (0.1 + 0.1) / 2 = 0.1, so p_cf = (2/3, 1/3).
    calibrator = ContextualCalibrator().fit(np.log([[0.3, 0.1], [0.1, 0.1]]))
    np.testing.assert_allclose(np.exp(calibrator.content_free_log_proba_), [2 / 3, 1 / 3])
    # A document of (0.06, 0.04): normalised (0.6, 0.4), divided by p_cf (0.9, 1.2), normalised (3/7, 4/7).
    document = np.log([[0.06, 0.04]])
    np.testing.assert_allclose(np.exp(calibrator.predict_log_proba(document)), [[3 / 7, 4 / 7]])
    assert calibrator.predict(document).tolist() == [1]
    assert calibrator.fits_on == "content_free"


def test_contextual_of_labels_too_unlikely_for_a_probability():
    calibrator = ContextualCalibrator().fit([[-2000.0, -2000.0 - np.log(3)]])
    np.testing.assert_allclose(np.exp(calibrator.content_free_log_proba_), [0.75, 0.25])


def test_batch_by_hand():
    # log-probabilities log(0.8, 0.2) and log(0.2, 0.8) of raw (0.4, 0.1), (0.1, 0.4): both means are log(0.4).
    calibrator = BatchCalibrator().fit(np.log([[0.4, 0.1], [0.1, 0.4]]))
    np.testing.assert_allclose(np.exp(calibrator.mean_log_proba_), [0.4, 0.4])
    # Means of logs, not of probabilities: sqrt(0.9 * 0.5) : sqrt(0.1 * 0.5) = 3 : 1.
    calibrator = BatchCalibrator().fit(np.log([[0.9, 0.1], [0.5, 0.5]]))
    np.testing.assert_allclose(np.exp(calibrator.mean_log_proba_), np.sqrt([0.45, 0.05]))
    # (0.6, 0.4) divided by (3, 1) is (0.2, 0.4).
    np.testing.assert_allclose(np.exp(calibrator.predict_log_proba(np.log([[0.6, 0.4]]))), [[1 / 3, 2 / 3]])
    assert calibrator.fits_on == "estimate"


@pytest.mark.parametrize("calibrator", [BatchCalibrator(), ContextualCalibrator()])
@given(scores=scores_of_three, fitted_on=scores_of_three, bias=bias_of_three)
def test_a_bias_of_labels_changes_nothing(calibrator, scores, fitted_on, bias):
    expected = calibrator.fit(fitted_on).predict_log_proba(scores)
    biased = calibrator.fit(fitted_on + bias).predict_log_proba(scores + bias)
    np.testing.assert_allclose(biased, expected, atol=1e-9)


@given(scores=scores_of_three, shifts=arrays(np.float64, (6, 1), elements=st.floats(-100, 100)))
def test_a_constant_per_document_changes_nothing_for_batch(scores, shifts):
    expected = BatchCalibrator().fit(scores).predict_log_proba(scores)
    shifted = BatchCalibrator().fit(scores + shifts).predict_log_proba(scores + shifts)
    np.testing.assert_allclose(shifted, expected, atol=1e-9)


@pytest.mark.parametrize("calibrator", [BatchCalibrator(), ContextualCalibrator()])
@given(scores=scores_of_three, order=st.permutations(range(3)))
def test_permuting_labels_permutes_probabilities(calibrator, scores, order):
    expected = calibrator.fit(scores).predict_log_proba(scores)
    permuted = calibrator.fit(scores[:, order]).predict_log_proba(scores[:, order])
    np.testing.assert_allclose(permuted, expected[:, order], atol=1e-12)


@pytest.mark.parametrize(
    ("calibrator", "name", "learned"),
    [(BatchCalibrator(), "bc", "mean_log_proba"), (ContextualCalibrator(), "conca", "content_free_log_proba")],
)
def test_report(calibrator, name, learned):
    report = json.loads(json.dumps(calibrator.fit([[-1.0, -2.0], [-3.0, -2.0]]).fit_report()))
    assert report["method"] == name
    assert (report["params"], report["n_rows"], report["n_labels"]) == ({}, 2, 2)
    assert report[learned] == getattr(calibrator, f"{learned}_").tolist()


def test_batch_calibration_warns_of_few_rows() -> None:
    scores = np.log(np.random.default_rng(0).dirichlet(np.ones(3), size=30))
    assert BatchCalibrator().fit(scores).fit_report()["warnings"] == []
    (warning,) = BatchCalibrator().fit(scores[:29]).fit_report()["warnings"]
    assert "29 documents, fewer than 10 for each of 3 labels" in warning
