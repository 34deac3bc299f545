"""Prototypical calibration (Han et al. 2023, https://arxiv.org/abs/2205.10183); equation numbers are the paper's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.special import log_softmax, softmax

from lm_eval_proca.calibration.base import Allowed, Array, Calibrator, number, whole_number, word
from lm_eval_proca.calibration.gaussian_mixture import fit_gaussian_mixtures, log_densities
from lm_eval_proca.errors import CalibrationError

_SMALL_CLUSTER = 0.01


class PrototypicalCalibrator(Calibrator):
    """Prototypical calibration (ProCa): one Gaussian cluster of score vectors per label.

    A mixture of as many Gaussians as labels is fitted to the label log-probabilities of unlabeled documents, from many
    starts. The clusters of each fit are assigned to the labels so that the sum of the means that they have at their
    labels is largest; the fit with the largest sum is kept. A document gets the label of the cluster under which its
    scores are most likely. The defaults are the paper's.

    Parameters
    ----------
    n_init : int, default=100
        Number of restarts of EM. Each starts from k-means, as ``GaussianMixture`` of scikit-learn does.
    max_iter : int, default=100
        Most EM steps of a restart.
    tol : float, default=1e-3
        A restart has converged when the mean log-likelihood of a document changes by less than this in a step.
    reg_covar : float, default=1e-6
        Added to the diagonal of every covariance.
    random_state : int, default=0
        Decides where the restarts start. With 0, restart r starts where ``GaussianMixture(random_state=r)`` does; with
        another number, the seeds are independent draws. A larger `n_init` repeats the restarts of a smaller one.
    selection : {"assignment", "likelihood"}, default="assignment"
        Which restart to keep: the one with the largest assignment score, Equation (6), or the most likely one.
    weights : {"uniform", "fitted"}, default="uniform"
        Whether prediction ignores the mixing weights, Equation (7), or uses them.
    features : {"log_prob", "prob", "log_likelihood"}, default="log_prob"
        What the clusters are made of: the scores normalised over labels as log-probabilities, Equation (3), or as
        probabilities, or the scores as they are. The last is not quite the paper's "logits": a log-likelihood is the
        logit minus the log of the sum over the vocabulary.
    covariance_type : {"full", "tied", "diag"}, default="full"
        As in :class:`sklearn.mixture.GaussianMixture`.

    Attributes
    ----------
    means_ : ndarray of shape (n_labels, n_labels)
        Row l is the mean of the cluster assigned to label l.
    covariances_ : ndarray of shape (n_labels, n_labels, n_labels), or (n_labels, n_labels) if "tied" or "diag"
        Covariances, by label.
    weights_ : ndarray of shape (n_labels,)
        Mixing weights, by label.
    restart_ : int
        The restart that was kept.
    assignment_ : ndarray of shape (n_labels,)
        Label of each cluster of that restart, in the order of its k-means start.
    assignment_score_ : float
        Its assignment score, Equation (4).
    assignment_margin_ : float
        By how much that score exceeds the score of the second best assignment of the same clusters.
    assignment_scores_, lower_bounds_ : ndarrays of shape (n_init,)
        Best assignment score and mean log-likelihood of a document for each restart, NaN for a failed one.
    n_iter_, converged_ : ndarrays of shape (n_init,)
        EM steps of each restart, and whether it converged.

    Examples
    --------
    Two kinds of documents, and a model that prefers label 0 for both:

    >>> import numpy as np
    >>> from lm_eval_proca import PrototypicalCalibrator
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat([0, 1], 50)
    >>> margin = np.where(truth == 0, 4.0, 1.0) + rng.normal(scale=0.5, size=100)
    >>> scores = np.column_stack([margin, np.zeros(100)])
    >>> float((scores.argmax(axis=1) == truth).mean())
    0.51
    >>> calibrator = PrototypicalCalibrator().fit(scores)
    >>> float((calibrator.predict(scores) == truth).mean())
    1.0
    """

    _allowed: ClassVar[dict[str, Allowed]] = {
        "n_init": whole_number(1),
        "max_iter": whole_number(1),
        "tol": number(0),
        "reg_covar": number(0),
        "random_state": whole_number(0),
        "selection": word("assignment", "likelihood"),
        "weights": word("uniform", "fitted"),
        "features": word("log_prob", "prob", "log_likelihood"),
        "covariance_type": word("full", "tied", "diag"),
    }

    def __init__(
        self,
        *,
        n_init: int = 100,
        max_iter: int = 100,
        tol: float = 1e-3,
        reg_covar: float = 1e-6,
        random_state: int = 0,
        selection: str = "assignment",
        weights: str = "uniform",
        features: str = "log_prob",
        covariance_type: str = "full",
    ) -> None:
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.reg_covar = reg_covar
        self.random_state = random_state
        self.selection = selection
        self.weights = weights
        self.features = features
        self.covariance_type = covariance_type

    def _fit(self, scores: Array) -> None:
        n_rows, n_labels = scores.shape
        if n_rows < n_labels:
            raise CalibrationError(
                f"{n_rows} documents are too few to fit one cluster for each of {n_labels} labels; give an estimate "
                f"set of at least {n_labels}, better some hundreds (the paper takes 500 to 3000)."
            )
        mixtures = fit_gaussian_mixtures(
            self._features(scores),
            n_labels,  # as many clusters as labels: Equation (2)
            seeds=self._seeds(),
            max_iter=self.max_iter,
            tol=self.tol,
            reg_covar=self.reg_covar,
            covariance_type=self.covariance_type,
        )
        if mixtures.failed.all():
            raise CalibrationError(
                f"All {self.n_init} restarts ended in a covariance that is not positive definite; give documents whose "
                f"scores differ more, or a reg_covar above {self.reg_covar}."
            )
        self.assignment_scores_ = np.full(self.n_init, np.nan)
        for r in np.flatnonzero(~mixtures.failed):
            self.assignment_scores_[r] = assignment_score(mixtures.means[r], assign(mixtures.means[r]))
        self.lower_bounds_, self.n_iter_, self.converged_ = mixtures.lower_bounds, mixtures.n_iter, mixtures.converged

        # Equation (6), or by likelihood
        criterion = self.assignment_scores_ if self.selection == "assignment" else self.lower_bounds_
        best = self.restart_ = int(np.nanargmax(criterion))
        means = mixtures.means[best]
        self.assignment_ = assign(means)
        self.assignment_score_ = float(self.assignment_scores_[best])
        self.assignment_margin_ = self.assignment_score_ - second_best_score(means, self.assignment_)

        cluster_of_label = np.argsort(self.assignment_)
        self.means_ = means[cluster_of_label]
        self.weights_ = mixtures.weights[best][cluster_of_label]
        covariances = mixtures.covariances[best]
        self.covariances_ = covariances.copy() if self.covariance_type == "tied" else covariances[cluster_of_label]

    def _seeds(self) -> Sequence[int]:
        if self.random_state == 0:
            return range(self.n_init)
        return [int(seed) for seed in np.random.SeedSequence(self.random_state).generate_state(self.n_init)]

    def _calibrate(self, scores: Array) -> Array:
        # Equation (7); clusters are in the order of their labels
        densities = log_densities(self._features(scores), self.means_, self.covariances_, self.covariance_type)
        return densities + np.log(self.weights_) if self.weights == "fitted" else densities

    def _features(self, scores: Array) -> Array:
        if self.features == "log_prob":
            return log_softmax(scores, axis=1)  # Equation (3)
        return softmax(scores, axis=1) if self.features == "prob" else scores

    def _report(self) -> dict[str, Any]:
        return {
            "assignment": self.assignment_,
            "assignment_score": self.assignment_score_,
            "assignment_margin": self.assignment_margin_,
            "cluster_weights": self.weights_,
            "restart": self.restart_,
            "restarts": self.n_init,
            "converged_restarts": self.converged_.sum(),
            "failed_restarts": np.isnan(self.lower_bounds_).sum(),
            "warnings": self._warnings(),
        }

    def _warnings(self) -> list[str]:
        found = [
            f"The cluster of label {label} holds {weight:.2%} of the {self.n_rows_} documents: its shape is a guess."
            for label, weight in enumerate(self.weights_)
            if weight < _SMALL_CLUSTER
        ]
        if not self.converged_[self.restart_]:
            found.append(f"Restart {self.restart_}, which was kept, had not converged after {self.max_iter} EM steps.")
        failed = int(np.isnan(self.lower_bounds_).sum())
        if failed:
            found.append(f"{failed} of {self.n_init} restarts were left out: a covariance was not positive definite.")
        return found


def assign(means: Array) -> NDArray[np.int64]:
    """Label of each cluster in the assignment with the largest score, by the Kuhn-Munkres algorithm: Equation (5)."""
    _, labels = linear_sum_assignment(means, maximize=True)
    return labels.astype(np.int64)


def assignment_score(means: Array, assignment: NDArray[np.int64]) -> float:
    """CLA: the sum over clusters n of the mean that cluster n has at its label k_n: Equation (4)."""
    return float(means[np.arange(len(means)), assignment].sum())


def second_best_score(means: Array, best: NDArray[np.int64]) -> float:
    """The largest score of an assignment other than `best`: it must do without one of the pairs of `best`."""
    scores = []
    for cluster, label in enumerate(best):
        without = means.copy()
        without[cluster, label] = -np.inf
        scores.append(assignment_score(means, assign(without)))
    return max(scores)
