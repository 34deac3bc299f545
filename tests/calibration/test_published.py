"""The published label-free methods that a run has only by name, against arithmetic by hand and plain loops."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq

from lm_eval_proca import (
    BatchCalibrator,
    BatchProbabilityCalibrator,
    ContextualCalibrator,
    DomainContextCalibrator,
    PriorAdaptationCalibrator,
)
from lm_eval_proca.calibration.registry import CALIBRATORS, default_names
from lm_eval_proca.errors import CalibrationError

ALL = [BatchProbabilityCalibrator(), PriorAdaptationCalibrator(), DomainContextCalibrator()]
scores_of_three = arrays(np.float64, (6, 3), elements=st.floats(-30, 0))


def test_none_of_them_is_a_default() -> None:
    assert default_names() == ["bc", "conca", "proca", "proca_a", "proca_h"]
    assert set(CALIBRATORS) - set(default_names()) == {"bc_prob", "domain", "ucpa"}


def test_batch_probability_by_hand() -> None:
    # Normalised (0.8, 0.2) and (0.4, 0.6); their means, not those of logarithms: (0.6, 0.4).
    calibrator = BatchProbabilityCalibrator().fit(np.log([[0.4, 0.1], [0.04, 0.06]]))
    np.testing.assert_allclose(np.exp(calibrator.log_mean_proba_), [0.6, 0.4])
    # (0.5, 0.5) divided by them is (5/6, 5/4), which is 2 to 3.
    np.testing.assert_allclose(calibrator.predict_proba(np.log([[0.1, 0.1]])), [[0.4, 0.6]])
    assert not np.allclose(
        BatchCalibrator().fit(np.log([[0.4, 0.1], [0.04, 0.06]])).predict_proba([[0.0, 0.0]]), [[0.4, 0.6]]
    )


def test_prior_adaptation_by_hand() -> None:
    # Odds 4 and 1 become 4w and w. The mean of 4w/(1 + 4w) and w/(1 + w) is 1/2 where 4w = 1/w, so at w = 1/2.
    calibrator = PriorAdaptationCalibrator(tol=1e-12).fit(np.log([[0.8, 0.2], [0.5, 0.5]]))
    np.testing.assert_allclose(np.exp(calibrator.log_weights_), [1 / 3, 2 / 3], rtol=1e-9)
    np.testing.assert_allclose(calibrator.predict_proba(np.log([[0.8, 0.2], [0.5, 0.5]]))[:, 0], [2 / 3, 1 / 3])
    assert calibrator.converged_
    assert calibrator.gap_ <= 1e-12


def test_prior_adaptation_against_a_search_for_the_root(made_scores) -> None:
    """With two labels the weight is the root of one equation in one unknown."""
    log_odds = np.diff(-made_scores(300, 2).scores, axis=1).ravel()
    for share in (0.5, 0.3):
        shift = brentq(lambda x, share=share: np.mean(1 / (1 + np.exp(-log_odds - x))) - share, -50, 50, xtol=1e-12)
        scores = np.column_stack([log_odds, np.zeros(300)])
        fitted = PriorAdaptationCalibrator(prior=[share, 1 - share], tol=1e-12, max_iter=100_000).fit(scores)
        assert -np.diff(fitted.log_weights_)[0] == pytest.approx(shift, abs=1e-8)
        assert fitted.predict_proba(scores)[:, 0].mean() == pytest.approx(share, abs=1e-9)


def test_prior_adaptation_is_the_published_loop(made_scores) -> None:
    """beta = prior / mean(p / c) and c = sum(p beta), as in the published iteration, step by step."""
    scores = made_scores(200, 4).scores
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    c = np.ones((200, 1))
    for steps in range(1, 6):
        beta = 0.25 / (p / c).mean(axis=0)
        c = (p * beta).sum(axis=1, keepdims=True)
        fitted = PriorAdaptationCalibrator(max_iter=steps, tol=0).fit(scores)
        np.testing.assert_allclose(np.exp(fitted.log_weights_), beta / beta.sum(), rtol=1e-9)
        assert fitted.n_iter_ == steps


def test_one_step_of_prior_adaptation_is_batch_calibration_on_probabilities(made_scores) -> None:
    scores = made_scores(100, 3).scores
    one_step = PriorAdaptationCalibrator(max_iter=1).fit(scores)
    expected = BatchProbabilityCalibrator().fit(scores).predict_log_proba(scores)
    np.testing.assert_allclose(one_step.predict_log_proba(scores), expected, atol=1e-12)
    (warning,) = one_step.fit_report()["warnings"]
    assert warning.startswith("After 1 steps a mean label probability is still")


def test_a_prior_for_other_labels_is_refused() -> None:
    with pytest.raises(CalibrationError, match="must have a share for each of 3 labels"):
        PriorAdaptationCalibrator(prior=[0.5, 0.5]).fit(np.zeros((4, 3)))
    with pytest.raises(CalibrationError, match="must be uniform or positive shares"):
        PriorAdaptationCalibrator(prior="estimated").fit(np.zeros((4, 3)))


@given(fitted_on=scores_of_three, scores=scores_of_three)
def test_domain_context_is_contextual_calibration_on_other_inputs(fitted_on, scores) -> None:
    expected = ContextualCalibrator().fit(fitted_on).predict_log_proba(scores)
    np.testing.assert_array_equal(DomainContextCalibrator().fit(fitted_on).predict_log_proba(scores), expected)
    assert DomainContextCalibrator.fits_on == "domain"


@pytest.mark.parametrize("calibrator", ALL, ids=repr)
@given(scores=scores_of_three, order=st.permutations(range(3)))
def test_permuting_labels_permutes_probabilities(calibrator, scores, order) -> None:
    expected = calibrator.fit(scores).predict_log_proba(scores)
    permuted = calibrator.fit(scores[:, order]).predict_log_proba(scores[:, order])
    np.testing.assert_allclose(permuted, expected[:, order], atol=1e-9)


@pytest.mark.parametrize("calibrator", ALL[:2], ids=repr)
def test_labels_too_unlikely_for_a_probability(calibrator) -> None:
    scores = np.array([[0.0, -2000.0], [0.0, -2001.0], [0.0, -2002.0]])
    assert np.isfinite(calibrator.fit(scores).predict_log_proba(scores)).all()
    assert calibrator.predict(scores)[0] == 1


@pytest.mark.parametrize("calibrator", ALL, ids=repr)
def test_report(calibrator) -> None:
    report = json.loads(json.dumps(calibrator.fit([[-1.0, -2.0], [-3.0, -2.0]]).fit_report()))
    assert report["method"] in CALIBRATORS
    assert (report["n_rows"], report["n_labels"]) == (2, 2)
