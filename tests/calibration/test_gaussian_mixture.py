"""The batched EM against scikit-learn's GaussianMixture, restart by restart."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from scipy.stats import multivariate_normal
from sklearn.mixture import GaussianMixture

from lm_eval_proca.calibration import gaussian_mixture
from lm_eval_proca.calibration.gaussian_mixture import fit_gaussian_mixtures, log_densities


def sklearn_restart(x, seed, **params):
    """What a plain loop has for this restart: a fitted GaussianMixture, or None where it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return GaussianMixture(x.shape[1], random_state=seed, **params).fit(x)
        except ValueError:
            return None


def assert_same_restarts(x, n_restarts, **params):
    mixtures = fit_gaussian_mixtures(x, x.shape[1], seeds=range(n_restarts), **params)
    for r in range(n_restarts):
        reference = sklearn_restart(x, r, **params)
        assert mixtures.failed[r] == (reference is None)
        if reference is None:
            continue
        assert mixtures.n_iter[r] == reference.n_iter_
        assert mixtures.converged[r] == reference.converged_
        assert mixtures.lower_bounds[r] == pytest.approx(reference.lower_bound_, abs=1e-4)
        np.testing.assert_allclose(mixtures.means[r], reference.means_, atol=1e-4)
        np.testing.assert_allclose(mixtures.covariances[r], reference.covariances_, atol=1e-4)
        np.testing.assert_allclose(mixtures.weights[r], reference.weights_, atol=1e-4)
    return mixtures


def on_a_curve(rng, n_rows, preference):
    """Two labels of which one has nearly all the probability: its log-probability hardly varies."""
    margin = preference * (1 + (rng.random(n_rows) < 0.5)) + rng.normal(size=n_rows)
    return log_softmax(np.column_stack([margin, np.zeros(n_rows)]), axis=1)


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
@pytest.mark.parametrize(("n_rows", "n_labels"), [(500, 2), (600, 4), (600, 6)])
def test_every_restart_is_scikit_learns(made_scores, n_rows, n_labels, covariance_type):
    x = log_softmax(made_scores(n_rows, n_labels, separation=2.0).scores, axis=1)
    assert_same_restarts(x, 8, covariance_type=covariance_type)


def test_every_restart_is_scikit_learns_for_14_labels(made_scores):
    x = log_softmax(made_scores(1000, 14, separation=2.0).scores, axis=1)
    mixtures = assert_same_restarts(x, 6)
    assert len(np.unique(mixtures.n_iter)) > 1  # restarts left the batch at different steps


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
@pytest.mark.parametrize(
    "kind",
    ["curve", "far curve", "one label dominates", "probabilities", "far from zero", "duplicates", "a row per label"],
)
def test_ill_conditioned_data(made_scores, kind, covariance_type):
    rng = np.random.default_rng(1)
    scores = made_scores(400, 4, separation=3.0, seed=2).scores
    x = {
        "curve": lambda: on_a_curve(rng, 300, 4.0),
        "far curve": lambda: on_a_curve(rng, 300, 25.0),
        "one label dominates": lambda: log_softmax(scores + np.array([12, 0, 0, 0]), axis=1),
        "probabilities": lambda: softmax(scores, axis=1),
        "far from zero": lambda: 5 * scores - 300,
        "duplicates": lambda: np.repeat(log_softmax(scores[:3], axis=1), 20, axis=0),  # one cluster stays empty
        "a row per label": lambda: log_softmax(scores[:4], axis=1),
    }[kind]()
    assert_same_restarts(x, 4, covariance_type=covariance_type)


def test_max_iter_ends_a_restart_that_has_not_converged(made_scores):
    x = log_softmax(made_scores(300, 4, separation=1.0).scores, axis=1)
    mixtures = assert_same_restarts(x, 3, max_iter=3)
    assert not mixtures.converged.any()


def test_without_regularisation_the_digits_of_scikit_learn_are_kept():
    x = np.column_stack([np.repeat([0.0, 1.0], 30), np.tile([0.0, 1e-7, 2e-7], 20)])
    x += 1e3
    assert_same_restarts(x, 3, reg_covar=1e-16)


def test_a_restart_that_fails_in_scikit_learn_is_left_out():
    # Whether the three equal rows end in a cluster of their own depends on the start.
    rng = np.random.default_rng(3)
    x = np.vstack([np.full((3, 3), 8.0), rng.normal(size=(40, 3)) * 3])
    mixtures = assert_same_restarts(x, 12, reg_covar=0.0)
    assert 0 < mixtures.failed.sum() < 12
    assert np.isnan(mixtures.lower_bounds[mixtures.failed]).all()


def test_likelihood_never_falls(made_scores):
    x = log_softmax(made_scores(300, 4, separation=1.5).scores, axis=1)
    bounds = [
        fit_gaussian_mixtures(x, 4, seeds=range(5), max_iter=steps, tol=0.0).lower_bounds for steps in range(1, 25)
    ]
    assert np.diff(bounds, axis=0).min() > -1e-8
    assert (bounds[-1] > bounds[0]).all()


def test_blocks_and_slices_change_nothing(made_scores, monkeypatch):
    x = log_softmax(made_scores(400, 4, separation=2.0).scores, axis=1)
    whole = fit_gaussian_mixtures(x, 4, seeds=range(7))
    monkeypatch.setattr(gaussian_mixture, "_BLOCK_SIZE", 3 * 4 * 400)
    monkeypatch.setattr(gaussian_mixture, "_SLICE_SIZE", 4 * 37)
    parts = fit_gaussian_mixtures(x, 4, seeds=range(7))
    assert np.abs(parts.n_iter - whole.n_iter).max() <= 1  # rounding may decide on the last step
    np.testing.assert_allclose(parts.means, whole.means, atol=1e-6)
    np.testing.assert_allclose(parts.lower_bounds, whole.lower_bounds, atol=1e-6)


def test_memory_does_not_grow_with_restarts_times_rows_times_labels_squared(made_scores, monkeypatch):
    x = log_softmax(made_scores(3000, 14).scores, axis=1)
    rng = np.random.default_rng(0)
    monkeypatch.setattr(
        gaussian_mixture,
        "kmeans_starts",
        lambda x, n, seeds: rng.integers(n, size=(len(seeds), len(x)), dtype=np.int32),
    )
    tracemalloc.start()
    fit_gaussian_mixtures(x, 14, seeds=range(100), max_iter=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 3000 * 14 * 14 * 8 / 5


@pytest.mark.parametrize("covariance_type", ["full", "tied", "diag"])
def test_log_densities_are_scipys(covariance_type):
    rng = np.random.default_rng(0)
    x, means = rng.normal(size=(20, 3)), rng.normal(size=(3, 3))
    roots = rng.normal(size=(3, 3, 5))
    full = roots @ roots.swapaxes(1, 2)
    covariances = {"full": full, "tied": full[0], "diag": np.einsum("nii->ni", full)}[covariance_type]
    of_cluster = {"full": full, "tied": [full[0]] * 3, "diag": [np.diag(row) for row in np.einsum("nii->ni", full)]}
    expected = [
        multivariate_normal(mean, covariance).logpdf(x)
        for mean, covariance in zip(means, of_cluster[covariance_type], strict=True)
    ]
    np.testing.assert_allclose(log_densities(x, means, covariances, covariance_type), np.transpose(expected))
