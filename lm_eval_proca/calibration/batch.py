"""Batch calibration (Zhou et al. 2024, https://arxiv.org/abs/2309.17249)."""

from __future__ import annotations

from typing import Any

from scipy.special import log_softmax

from lm_eval_proca.calibration.base import Array, Calibrator

_FEW_ROWS = 10
"""Per label. With fewer, the labels that happen to be among the documents move the means (docs/analyses.md, size)."""


class BatchCalibrator(Calibrator):
    """Subtract the mean log-probability of each label over the estimate set.

    With p(l | d) the softmax over labels of the scores of document d, the calibrated score is
    log p(l | d) - mean over the estimate set of log p(l | d'). Public codes differ on averaging log-probabilities or
    probabilities; this one averages log-probabilities.

    Attributes
    ----------
    mean_log_proba_ : ndarray of shape (n_labels,)
        Mean log-probability of each label.

    Examples
    --------
    >>> import numpy as np
    >>> from lm_eval_proca import BatchCalibrator
    >>> scores = np.log([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]])
    >>> scores.argmax(axis=1).tolist()
    [0, 0, 0, 0]
    >>> BatchCalibrator().fit(scores).predict(scores).tolist()
    [0, 0, 1, 1]
    """

    def _fit(self, scores: Array) -> None:
        self.mean_log_proba_ = log_softmax(scores, axis=1).mean(axis=0)

    def _calibrate(self, scores: Array) -> Array:
        return log_softmax(scores, axis=1) - self.mean_log_proba_

    def _report(self) -> dict[str, Any]:
        return {"mean_log_proba": self.mean_log_proba_, "warnings": self._warnings()}

    def _warnings(self) -> list[str]:
        if self.n_rows_ >= _FEW_ROWS * self.n_labels_:
            return []
        return [
            f"The means are over {self.n_rows_} documents, fewer than {_FEW_ROWS} for each of {self.n_labels_} labels: "
            f"other documents would move them."
        ]
