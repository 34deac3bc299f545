"""Unsupervised calibration through prior adaptation (Estienne et al. 2023, https://arxiv.org/abs/2307.06713)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax

from lm_eval_proca.calibration.base import Allowed, Array, Calibrator, number, whole_number
from lm_eval_proca.calibration.batch_probability import log_mean
from lm_eval_proca.calibration.shares import are_shares, shares_of


class PriorAdaptationCalibrator(Calibrator):
    """Weigh the labels so that their mean probability over the estimate set is a given share (UCPA).

    With p(l | d) the softmax over labels l of the scores of document d, the calibrated probability is
    q(l | d) = g(l) p(l | d) / Z(d), where Z(d) = sum_l g(l) p(l | d). The weights g are those for which the mean of
    q(l | d) over the documents of the estimate set is the share s(l). They are found by repeating
    g(l) <- s(l) / mean_d [p(l | d) / Z(d)], from g = 1. With equal shares the first step is
    :class:`BatchProbabilityCalibrator`; with known ones the authors call the method SUCPA.

    Parameters
    ----------
    prior : "uniform" or array-like of shape (n_labels,), default="uniform"
        The shares s of the labels among the documents: equal, or known.
    max_iter : int, default=1000
        Most steps.
    tol : float, default=1e-6
        The steps end when no mean probability is further from its share.

    Attributes
    ----------
    log_weights_ : ndarray of shape (n_labels,)
        log g, scaled so that the weights sum to one.
    n_iter_ : int
    converged_ : bool
        Whether `tol` was met within `max_iter` steps.
    gap_ : float
        The largest distance of a mean probability from its share.

    Examples
    --------
    >>> import numpy as np
    >>> from lm_eval_proca import PriorAdaptationCalibrator
    >>> scores = np.log([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]])
    >>> calibrator = PriorAdaptationCalibrator().fit(scores)
    >>> calibrator.predict_proba(scores).mean(axis=0).round(4).tolist()
    [0.5, 0.5]
    >>> calibrator.predict(scores).tolist()
    [0, 0, 1, 1]
    """

    by_default: ClassVar[bool] = False

    _allowed: ClassVar[dict[str, Allowed]] = {
        "prior": Allowed(
            lambda value: value == "uniform" if isinstance(value, str) else are_shares(value),
            "uniform or positive shares of the labels that sum to 1",
        ),
        "max_iter": whole_number(1),
        "tol": number(0),
    }

    def __init__(self, *, prior: Any = "uniform", max_iter: int = 1000, tol: float = 1e-6) -> None:
        self.prior = prior
        self.max_iter = max_iter
        self.tol = tol

    def _fit(self, scores: Array) -> None:
        log_proba = log_softmax(scores, axis=1)
        shares = shares_of(self, self.prior, scores.shape[1])
        log_weights, log_means = np.zeros(len(shares)), log_mean(log_proba)
        for step in range(1, self.max_iter + 1):
            self.n_iter_ = step
            log_weights += np.log(shares) - log_means
            log_means = log_mean(log_softmax(log_proba + log_weights, axis=1))
            gap = np.abs(np.exp(log_means) - shares).max()
            if gap <= self.tol:
                break
        self.log_weights_ = log_softmax(log_weights)
        self.converged_, self.gap_ = bool(gap <= self.tol), float(gap)

    def _calibrate(self, scores: Array) -> Array:
        return log_softmax(scores, axis=1) + self.log_weights_

    def _report(self) -> dict[str, Any]:
        told = {key: getattr(self, f"{key}_") for key in ("log_weights", "n_iter", "converged", "gap")}
        return {**told, "warnings": self._warnings()}

    def _warnings(self) -> list[str]:
        if self.converged_:
            return []
        return [
            f"After {self.n_iter_} steps a mean label probability is still {self.gap_:.1g} from its share: raise "
            f"max_iter, or tol."
        ]
