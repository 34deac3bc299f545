"""Many Gaussian mixtures of one data set: all restarts of EM advance together.

Restart r is scikit-learn's ``GaussianMixture(n_components, random_state=seeds[r])``: the same k-means start, stopping
rule, regularisation and treatment of empty clusters. Only the arithmetic is arranged differently. The log-density of a
Gaussian is linear in the monomials phi(x) = (1, x_i, x_i x_j), and so are the sums that the M-step needs: an EM step of
all clusters of all restarts is two matrix products with one and the same matrix phi, and little else.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from sklearn import config_context
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from threadpoolctl import ThreadpoolController

from lm_eval_proca.calibration.base import Array

_EPS = float(np.finfo(np.float64).eps)
# scikit-learn counts this much of a row, at zero, in every cluster: an empty one then lies there instead of nowhere.
_PSEUDO_COUNT = 10 * _EPS
# Rounding that monomials may leave in a log-density before scikit-learn's own, slower arithmetic is taken.
_ROUNDING = 1e-5
# Responsibilities (or parameters) in a block of restarts, the unit of work of a thread, and in a slice of its rows,
# which stays in the cache. Neither depends on the machine, since other sizes round differently.
_BLOCK_SIZE = 2**20
_SLICE_SIZE = 2**17


@dataclass(frozen=True)
class GaussianMixtures:
    """One fitted mixture per restart, clusters in the order of the restart's k-means start.

    A restart fails where scikit-learn raises, because a covariance is not positive definite; its numbers are NaN.
    """

    weights: Array  # (n_restarts, n_components)
    means: Array  # (n_restarts, n_components, n_features)
    covariances: Array  # (n_restarts, ...), each as in GaussianMixture
    lower_bounds: Array  # mean log-likelihood of a row, as of the last E-step
    n_iter: NDArray[np.int64]
    converged: NDArray[np.bool_]
    failed: NDArray[np.bool_]


def fit_gaussian_mixtures(x: Array, n_components: int, *, seeds: Sequence[int], **params: Any) -> GaussianMixtures:
    """Fit one Gaussian mixture per seed by EM, each to all rows of `x`.

    `params` are max_iter, tol, reg_covar and covariance_type ("full", "tied" or "diag") of
    :class:`sklearn.mixture.GaussianMixture`. Where reg_covar is below about 1e-11 of the largest squared distance of a
    row from the mean of all, monomials would lose the digits that matter: scikit-learn itself runs the restarts.
    """
    mixture = GaussianMixture(n_components, **params)
    n, k, d = len(seeds), n_components, x.shape[1]
    covariance_shape = {"full": (n, k, d, d), "tied": (n, d, d), "diag": (n, k, d)}[mixture.covariance_type]
    mixtures = GaussianMixtures(
        weights=np.full((n, k), np.nan),
        means=np.full((n, k, d), np.nan),
        covariances=np.full(covariance_shape, np.nan),
        lower_bounds=np.full(n, np.nan),
        n_iter=np.zeros(n, dtype=np.int64),
        converged=np.zeros(n, dtype=bool),
        failed=np.ones(n, dtype=bool),
    )
    em = _BatchedEM(x, mixture)
    with warnings.catch_warnings():
        # k-means with fewer distinct rows than clusters, EM that used up its steps: the result says so
        warnings.simplefilter("ignore", ConvergenceWarning)
        if em.rounding > _ROUNDING:
            _fit_one_by_one(mixture, x, seeds, mixtures)
        else:
            _fit_in_blocks(em, x, seeds, mixtures)
    return mixtures


@cache
def _libraries(with_torch: bool) -> ThreadpoolController:
    """Of this process; to find them takes as long as a small fit, and only torch comes later."""
    return ThreadpoolController()


def _fit_in_blocks(em: _BatchedEM, x: Array, seeds: Sequence[int], out: GaussianMixtures) -> None:
    size = max(1, _BLOCK_SIZE // (em.n_components * max(len(x), em.n_features**2)))
    blocks = [np.arange(first, min(first + size, len(seeds))) for first in range(0, len(seeds), size)]
    # One thread per block instead of several per product: threads that share such small products mostly wait.
    libraries = _libraries("torch" in sys.modules)
    n_threads = max((library.num_threads for library in libraries.lib_controllers), default=1)

    def fit(block: NDArray[np.intp]) -> None:
        with libraries.limit(limits=1, user_api="openmp"):  # OpenMP counts threads per calling thread
            em.run(kmeans_starts(x, em.n_components, [seeds[r] for r in block]), block, out)

    with libraries.limit(limits=1), ThreadPoolExecutor(min(n_threads, len(blocks))) as pool:
        list(pool.map(fit, blocks))


def _fit_one_by_one(mixture: GaussianMixture, x: Array, seeds: Sequence[int], out: GaussianMixtures) -> None:
    for r, seed in enumerate(seeds):
        with suppress(ValueError):  # a restart that raises stays marked as failed
            fit = mixture.set_params(random_state=seed).fit(x)
            out.weights[r], out.means[r], out.covariances[r] = fit.weights_, fit.means_, fit.covariances_
            out.lower_bounds[r], out.n_iter[r] = fit.lower_bound_, fit.n_iter_
            out.converged[r], out.failed[r] = fit.converged_, False


def kmeans_starts(x: Array, n_components: int, seeds: Sequence[int]) -> NDArray[np.int32]:
    """The cluster of every row, (n_restarts, n_rows), from which ``GaussianMixture(random_state=seed)`` starts."""
    with config_context(assume_finite=True, skip_parameter_validation=True):  # checked once, not once per restart
        runs = (KMeans(n_components, n_init=1, random_state=np.random.RandomState(seed)) for seed in seeds)
        return np.stack([run.fit(x).labels_ for run in runs])


def log_densities(x: Array, means: Array, covariances: Array, covariance_type: str) -> Array:
    """log P_G(x | mu_n, Sigma_n) of every row under every cluster, (n_rows, n_components): Equation (1)."""
    n_components, n_features = means.shape
    if covariance_type == "diag":
        covariances = covariances[..., np.newaxis] * np.eye(n_features)
    factors = np.broadcast_to(np.linalg.cholesky(covariances), (n_components, n_features, n_features))
    densities = np.empty((len(x), n_components))
    for n, factor in enumerate(factors):
        standardised = solve_triangular(factor, (x - means[n]).T, lower=True)
        densities[:, n] = -0.5 * np.square(standardised).sum(axis=0) - np.log(np.diagonal(factor)).sum()
    return densities - 0.5 * n_features * np.log(2 * np.pi)


class _BatchedEM:
    """EM of many mixtures with the parameters of `mixture`. The zero of the coordinates is the mean of the rows: their
    products keep more digits there."""

    def __init__(self, x: Array, mixture: GaussianMixture) -> None:
        self.n_components, self.n_features = mixture.n_components, x.shape[1]
        self.mixture, self.covariance_type = mixture, mixture.covariance_type
        self.centre = x.mean(axis=0)
        x = x - self.centre
        # Of a log-density: terms of at most |x|^2 / reg_covar cancel in it.
        largest = np.square(x).sum(axis=1).max()
        self.rounding = _EPS * largest / mixture.reg_covar if mixture.reg_covar else np.inf
        self.pairs = np.triu_indices(self.n_features)
        self.phi = np.hstack([np.ones((len(x), 1)), x, x[:, self.pairs[0]] * x[:, self.pairs[1]]])

    def run(self, starts: NDArray[np.int32], restarts: NDArray[np.intp], out: GaussianMixtures) -> None:
        """Advance `restarts` until each has converged or used up its steps, and write them into `out`."""
        theta, _ = self._m_step(self._start_moments(starts))
        previous = np.full(len(restarts), -np.inf)
        for step in range(1, self.mixture.max_iter + 1):
            bounds, moments = self._e_step(theta)
            theta, parameters = self._m_step(moments)
            converged = np.abs(bounds - previous) < self.mixture.tol
            ended = converged | (step == self.mixture.max_iter)
            done, going = restarts[ended], ~ended
            out.weights[done], out.means[done], out.covariances[done] = (values[ended] for values in parameters)
            out.lower_bounds[done], out.n_iter[done] = bounds[ended], step
            out.converged[done], out.failed[done] = converged[ended], False
            restarts, theta, previous = restarts[going], theta[going], bounds[going]
            if not len(restarts):
                break

    def _slices(self, n_restarts: int) -> Iterator[slice]:
        size = max(1, _SLICE_SIZE // (n_restarts * self.n_components))
        return (slice(first, first + size) for first in range(0, len(self.phi), size))

    def _start_moments(self, starts: NDArray[np.int32]) -> Array:
        """The moments of the k-means clusters."""
        clusters = np.arange(self.n_components)[:, np.newaxis]
        moments = np.zeros((len(starts), self.n_components, self.phi.shape[1]))
        for rows in self._slices(len(starts)):
            moments += (starts[:, np.newaxis, rows] == clusters).astype(np.float64) @ self.phi[rows]
        return moments

    def _e_step(self, theta: Array) -> tuple[Array, Array]:
        """Mean log-likelihood of a row, Equation (2), and the moments sum_x responsibility(x) phi(x) of clusters."""
        n_restarts, n_components, n_monomials = theta.shape
        theta = theta.reshape(-1, n_monomials)
        log_likelihood, moments = np.zeros(n_restarts), np.zeros_like(theta)
        for rows in self._slices(n_restarts):
            phi = self.phi[rows]
            joint = (theta @ phi.T).reshape(n_restarts, n_components, len(phi))  # log alpha_n P_G(x | mu_n, Sigma_n)
            highest = joint.max(axis=1, keepdims=True)
            joint -= highest
            np.exp(joint, out=joint)
            total = joint.sum(axis=1, keepdims=True)
            log_likelihood += (highest + np.log(total)).sum(axis=(1, 2))
            joint *= 1.0 / total
            moments += joint.reshape(-1, len(phi)) @ phi
        return log_likelihood / len(self.phi), moments.reshape(n_restarts, n_components, n_monomials)

    def _m_step(self, moments: Array) -> tuple[Array, tuple[Array, Array, Array]]:
        """`theta`, with log(alpha_n P_G(x | mu_n, Sigma_n)) = theta . phi(x), and (weights, means, covariances)."""
        rows, sums, products = np.split(moments, [1, 1 + self.n_features], axis=2)
        counts = rows + _PSEUDO_COUNT
        weights = counts[..., 0] / counts.sum(axis=1)
        means = (sums - _PSEUDO_COUNT * self.centre) / counts  # the data's own zero is at -centre
        # sum r (x - mu)(x - mu)^T / counts, where the r of an all but empty cluster do not add up to `counts`
        crossed = ((sums - 0.5 * rows * means) / counts)[..., :, np.newaxis] * means[..., np.newaxis, :]
        covariances = np.empty_like(crossed)
        first, second = self.pairs  # of the upper triangle
        covariances[..., first, second] = covariances[..., second, first] = products / counts
        covariances -= crossed
        covariances -= crossed.swapaxes(2, 3)
        if self.covariance_type == "tied":
            covariances = (weights[..., np.newaxis, np.newaxis] * covariances).sum(axis=1, keepdims=True)
        diagonal = np.einsum("rkii->rki", covariances)
        diagonal += self.mixture.reg_covar
        if self.covariance_type == "diag":
            covariances = diagonal[..., np.newaxis] * np.eye(self.n_features)
        reported = {"full": covariances, "tied": covariances[:, 0], "diag": diagonal}[self.covariance_type]
        return self._theta(weights, means, covariances), (weights, means + self.centre, reported)

    def _theta(self, weights: Array, means: Array, covariances: Array) -> Array:
        factors: Array = np.linalg.cholesky(covariances)  # exists: reg_covar is far above rounding here
        inverses = _invert_lower(factors)
        precisions = inverses.swapaxes(2, 3) @ inverses
        standardised = (inverses @ means[..., np.newaxis])[..., 0]
        first, second = self.pairs
        quadratic = np.where(first == second, -0.5, -1.0) * precisions[..., first, second]
        constant = (
            np.log(weights)
            - 0.5 * (self.n_features * np.log(2 * np.pi) + np.square(standardised).sum(axis=2))
            - np.log(np.einsum("rkii->rki", factors)).sum(axis=2)
        )
        linear = (precisions @ means[..., np.newaxis])[..., 0]
        quadratic = np.broadcast_to(quadratic, (*weights.shape, len(first)))
        return np.concatenate([constant[..., np.newaxis], linear, quadratic], axis=2)


def _invert_lower(factors: Array) -> Array:
    """Inverses of lower triangular matrices by forward substitution, all matrices at a time."""
    size = factors.shape[-1]
    lower = np.ascontiguousarray(np.moveaxis(factors.reshape(-1, size, size), 0, -1))
    inverse = np.zeros_like(lower)
    for i in range(size):
        inverse[i, i] = 1.0 / lower[i, i]
        inverse[i, :i] = -inverse[i, i] * np.einsum("jm,jkm->km", lower[i, :i], inverse[:i, :i])
    return np.ascontiguousarray(np.moveaxis(inverse, -1, 0)).reshape(factors.shape)
