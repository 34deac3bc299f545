"""ProCa: against a plain scikit-learn loop, brute force, and as mathematics."""

from __future__ import annotations

import json
import warnings
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import linear_sum_assignment
from scipy.special import log_softmax, logsumexp, softmax
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.mixture import GaussianMixture

from lm_eval_proca.calibration.prototypical import PrototypicalCalibrator, assign, assignment_score, second_best_score
from lm_eval_proca.errors import CalibrationError


def plain_loop(x, n_init, by_likelihood=False, use_weights=False, rows=None):
    """Section 3 of the paper, written with scikit-learn and nothing of ours: the labels of `rows`."""
    best = (-np.inf, None, None)
    for seed in range(n_init):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mixture = GaussianMixture(x.shape[1], random_state=seed).fit(x)
        clusters, labels = linear_sum_assignment(-mixture.means_)
        score = mixture.lower_bound_ if by_likelihood else mixture.means_[clusters, labels].sum()
        if score > best[0]:
            best = (score, mixture, labels)
    _, mixture, labels = best
    parameters = zip(mixture.means_, mixture.covariances_, mixture.weights_, strict=True)
    densities = [
        multivariate_normal(mean, covariance).logpdf(rows) + (np.log(weight) if use_weights else 0)
        for mean, covariance, weight in parameters
    ]
    return labels[np.argmax(densities, axis=0)]


@pytest.mark.parametrize(
    ("n_rows", "n_labels", "n_init", "separation"),
    [(500, 2, 30, 1.5), (600, 4, 15, 2.0), (600, 6, 10, 2.0), (1200, 14, 5, 3.0)],
)
def test_agrees_with_a_plain_loop(made_scores, n_rows, n_labels, n_init, separation):
    made = made_scores(2 * n_rows, n_labels, separation=separation)
    estimate, evaluation = made.scores[:n_rows], made.scores[n_rows:]
    expected = plain_loop(log_softmax(estimate, axis=1), n_init, rows=log_softmax(evaluation, axis=1))
    predicted = PrototypicalCalibrator(n_init=n_init).fit(estimate).predict(evaluation)
    assert (predicted == expected).mean() >= 0.995
    assert len(np.unique(predicted)) == n_labels


@pytest.mark.parametrize(
    ("params", "loop", "feature"),
    [
        ({"selection": "likelihood"}, {"by_likelihood": True}, lambda s: log_softmax(s, axis=1)),
        ({"weights": "fitted"}, {"use_weights": True}, lambda s: log_softmax(s, axis=1)),
        ({"features": "prob"}, {}, lambda s: softmax(s, axis=1)),
        ({"features": "log_likelihood"}, {}, lambda s: s),
    ],
    ids=["likelihood", "weights", "prob", "log_likelihood"],
)
def test_parameters_against_a_plain_loop(made_scores, params, loop, feature):
    made = made_scores(500, 4, separation=1.5, proportions=[0.55, 0.25, 0.15, 0.05], seed=5)
    x = feature(made.scores)
    predicted = PrototypicalCalibrator(n_init=10, **params).fit(made.scores).predict(made.scores)
    assert (predicted == plain_loop(x, 10, rows=x, **loop)).mean() >= 0.995
    assert (predicted != PrototypicalCalibrator(n_init=10).fit(made.scores).predict(made.scores)).any()


@pytest.mark.parametrize("n_labels", [2, 4, 6, 14])
def test_finds_the_truth_behind_a_bias(made_scores, n_labels):
    made = made_scores(60 * n_labels, n_labels, separation=6.0, bias=0.5)
    scores = made.scores + 9.0 * (np.arange(n_labels) == 0)  # the model all but always answers with label 0
    assert (scores.argmax(axis=1) == 0).mean() > 0.9
    assert (PrototypicalCalibrator(n_init=20).fit(scores).predict(scores) == made.gold).mean() > 0.98


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_means_covariances_and_weights_are_in_the_order_of_labels(made_scores, covariance_type):
    made = made_scores(600, 4, separation=6.0, proportions=[0.4, 0.3, 0.2, 0.1])
    calibrator = PrototypicalCalibrator(n_init=5, covariance_type=covariance_type).fit(made.scores)
    x = log_softmax(made.scores, axis=1)
    for label in range(4):
        rows = x[made.gold == label]
        np.testing.assert_allclose(calibrator.means_[label], rows.mean(axis=0), atol=0.1)
        assert calibrator.weights_[label] == pytest.approx(len(rows) / len(x), abs=0.01)
        if covariance_type == "full":
            np.testing.assert_allclose(calibrator.covariances_[label], np.cov(rows.T), atol=0.1)
        if covariance_type == "diag":
            np.testing.assert_allclose(calibrator.covariances_[label], rows.var(axis=0), atol=0.1)
    assert sorted(calibrator.assignment_) == [0, 1, 2, 3]


def test_log_probabilities_are_normalised_densities(made_scores):
    made = made_scores(300, 4)
    calibrator = PrototypicalCalibrator(n_init=3).fit(made.scores)
    x = log_softmax(made.scores, axis=1)
    densities = np.transpose(
        [multivariate_normal(m, c).logpdf(x) for m, c in zip(calibrator.means_, calibrator.covariances_, strict=True)]
    )
    log_proba = calibrator.predict_log_proba(made.scores)
    np.testing.assert_allclose(log_proba, densities - logsumexp(densities, axis=1, keepdims=True), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(logsumexp(log_proba, axis=1), 0, atol=1e-9)


@settings(max_examples=15)
@given(data=st.data(), features=st.sampled_from(["log_prob", "prob"]))
def test_a_constant_per_document_changes_nothing(made_scores, data, features):
    made = made_scores(80, 3, separation=6.0)
    shifts = data.draw(arrays(np.float64, (80, 1), elements=st.floats(-100, 100)))
    calibrator = PrototypicalCalibrator(n_init=3, features=features)
    expected = calibrator.fit(made.scores).predict_log_proba(made.scores)
    shifted = calibrator.fit(made.scores + shifts).predict_log_proba(made.scores + shifts)
    np.testing.assert_allclose(shifted, expected, rtol=1e-4, atol=1e-6)


@settings(max_examples=15)
@given(seed=st.integers(0, 100), order=st.permutations(range(4)))
def test_permuting_labels_permutes_predictions(made_scores, seed, order):
    # k-means++ draws rows by their distances alone, which no order of the columns changes.
    made = made_scores(120, 4, separation=8.0, seed=seed)
    expected = PrototypicalCalibrator(n_init=5).fit(made.scores).predict(made.scores)
    permuted = made.scores[:, order]
    predicted = PrototypicalCalibrator(n_init=5).fit(permuted).predict(permuted)
    np.testing.assert_array_equal(np.asarray(order)[predicted], expected)


def test_without_mixing_weights_class_imbalance_hardly_matters():
    # Two Gaussians of one covariance: the boundary lies midway, and mixing weights move it towards the rarer one. The
    # clusters have margins 2 and -2 and variance 2, so weights of 0.9 and 0.1 move it by log(9) * 2 / 4.
    rng = np.random.default_rng(0)

    def scores(n_rows, share_of_0):
        centres = np.where(rng.random((n_rows, 1)) < share_of_0, [[1.0, -1.0]], [[-1.0, 1.0]])
        return centres + rng.normal(size=(n_rows, 2))

    margins = np.linspace(-4, 4, 8001)
    boundary = {}
    for weights in ("uniform", "fitted"):
        for share_of_0 in (0.5, 0.9):
            calibrator = PrototypicalCalibrator(
                n_init=2, tol=1e-7, max_iter=2000, covariance_type="tied", features="log_likelihood", weights=weights
            ).fit(scores(20_000, share_of_0))
            predicted = calibrator.predict(np.column_stack([margins, -margins]) / 2)
            boundary[weights, share_of_0] = margins[np.flatnonzero(predicted == 0)[0]]
    assert boundary["uniform", 0.5] == pytest.approx(0, abs=0.1)
    assert boundary["uniform", 0.9] == pytest.approx(0, abs=0.1)
    assert boundary["fitted", 0.9] == pytest.approx(-np.log(9) / 2, abs=0.1)


@settings(deadline=None)
@given(
    means=st.integers(2, 5).flatmap(
        lambda n: arrays(np.float64, (n, n), elements=st.floats(-50, 0, allow_subnormal=False))
    )
)
def test_assignment_and_margin_against_all_permutations(means):
    scores = sorted(
        (sum(row[k] for row, k in zip(means, p, strict=True)) for p in permutations(range(len(means)))), reverse=True
    )
    best = assign(means)
    assert sorted(best) == list(range(len(means)))
    assert assignment_score(means, best) == pytest.approx(scores[0])
    assert second_best_score(means, best) == pytest.approx(scores[1])


def test_keeps_the_restart_that_its_criterion_prefers(made_scores):
    scores = made_scores(400, 6, separation=1.0).scores
    by_assignment = PrototypicalCalibrator(n_init=20).fit(scores)
    by_likelihood = PrototypicalCalibrator(n_init=20, selection="likelihood").fit(scores)
    assert by_assignment.restart_ == by_assignment.assignment_scores_.argmax()
    assert by_assignment.assignment_score_ == by_assignment.assignment_scores_.max()
    assert by_likelihood.restart_ == by_likelihood.lower_bounds_.argmax()
    assert by_assignment.restart_ != by_likelihood.restart_


def test_restarts_of_another_random_state_start_elsewhere(made_scores):
    scores = made_scores(200, 4, separation=1.0).scores
    states = [PrototypicalCalibrator(n_init=20, random_state=state)._seeds() for state in (0, 1, 2, 21)]
    assert list(states[0]) == list(range(20)), "those of a plain loop over scikit-learn"
    assert len({seed for seeds in states for seed in seeds}) == 80
    fewer, more = (PrototypicalCalibrator(n_init=n, random_state=1).fit(scores).lower_bounds_ for n in (3, 6))
    np.testing.assert_allclose(more[:3], fewer)
    plain = [
        GaussianMixture(4, random_state=seed).fit(log_softmax(scores, axis=1)).lower_bound_ for seed in states[1][:3]
    ]
    np.testing.assert_allclose(fewer, plain, atol=1e-6)


def test_parameters_are_stored_untouched_and_survive_clone(made_scores):
    params = {
        "n_init": 3,
        "max_iter": 50,
        "tol": 1e-2,
        "reg_covar": 1e-5,
        "random_state": 7,
        "selection": "likelihood",
        "weights": "fitted",
        "features": "prob",
        "covariance_type": "diag",
    }
    calibrator = PrototypicalCalibrator(**params)
    assert calibrator.fit(made_scores(60, 2).scores).get_params() == params
    assert clone(calibrator).get_params() == params
    with pytest.raises(TypeError):
        PrototypicalCalibrator(100)


def test_report_is_json_and_says_what_happened(made_scores):
    made = made_scores(300, 4, separation=6.0)
    calibrator = PrototypicalCalibrator(n_init=5).fit(made.scores)
    report = json.loads(json.dumps(calibrator.fit_report(), allow_nan=False))
    assert report["method"] == "proca"
    assert report["params"]["n_init"] == 5
    assert (report["n_rows"], report["n_labels"]) == (300, 4)
    assert report["assignment"] == calibrator.assignment_.tolist()
    assert report["assignment_score"] == pytest.approx(np.trace(calibrator.means_))
    assert report["assignment_margin"] > 0
    assert sum(report["cluster_weights"]) == pytest.approx(1)
    assert report["converged_restarts"] == 5
    assert report["failed_restarts"] == 0
    assert report["restart"] == calibrator.restart_
    assert report["warnings"] == []


def test_report_warns_of_a_tiny_cluster_and_of_a_fit_that_did_not_converge():
    rng = np.random.default_rng(0)
    scores = np.column_stack([np.append(rng.normal(size=400), [30.0, 31.0]), np.zeros(402)])
    warned = PrototypicalCalibrator(n_init=3, max_iter=1).fit(scores).fit_report()["warnings"]
    assert len(warned) == 2
    assert "cluster of label 0 holds 0.50% of the 402 documents" in warned[0]
    assert "had not converged after 1 EM steps" in warned[1]


def test_report_counts_failed_restarts():
    rng = np.random.default_rng(3)
    scores = np.vstack([np.full((3, 3), 8.0), rng.normal(size=(40, 3)) * 3])
    calibrator = PrototypicalCalibrator(n_init=12, reg_covar=0.0, features="log_likelihood").fit(scores)
    report = calibrator.fit_report()
    assert 0 < report["failed_restarts"] < 12
    assert not np.isnan(calibrator.lower_bounds_[report["restart"]])
    assert report["warnings"][-1].startswith(f"{report['failed_restarts']} of 12 restarts were left out")
    json.dumps(report, allow_nan=False)


def test_says_so_when_every_restart_fails():
    with pytest.raises(CalibrationError, match=r"All 2 restarts .* reg_covar above 0\.0"):
        PrototypicalCalibrator(n_init=2, reg_covar=0.0).fit(np.zeros((10, 2)))


def test_says_so_when_the_estimate_set_is_too_small():
    with pytest.raises(
        CalibrationError, match=r"5 documents are too few .* 6 labels; give an estimate set of at least 6"
    ):
        PrototypicalCalibrator().fit(np.zeros((5, 6)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_init", 0),
        ("n_init", 2.5),
        ("max_iter", 0),
        ("tol", -1.0),
        ("reg_covar", -1e-6),
        ("random_state", None),
        ("random_state", -1),
        ("selection", "best"),
        ("weights", "none"),
        ("features", "logits"),
        ("covariance_type", "spherical"),
    ],
)
def test_names_a_parameter_that_cannot_be(name, value):
    with pytest.raises(CalibrationError, match=f"'{name}' parameter of PrototypicalCalibrator must be"):
        PrototypicalCalibrator(**{name: value}).fit(np.eye(4))
