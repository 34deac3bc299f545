"""Batch calibration on probabilities (after Zhou et al. 2024, https://arxiv.org/abs/2309.17249)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.special import log_softmax, logsumexp

from lm_eval_proca.calibration.base import Array, Calibrator


class BatchProbabilityCalibrator(Calibrator):
    """Divide the probability of each label by its mean over the estimate set.

    With p(l | d) the softmax over labels l of the scores of document d, the calibrated probability is proportional to
    p(l | d) / m(l), where m(l) is the mean of p(l | d') over the documents d' of the estimate set. Of the public codes
    that we found, some divide by m as here, some subtract it, and some average logits; we had no text of the paper to
    decide. :class:`BatchCalibrator` averages log-probabilities. The first step of :class:`PriorAdaptationCalibrator`
    with equal shares is this method.

    Attributes
    ----------
    log_mean_proba_ : ndarray of shape (n_labels,)
        log m. (m itself may be too small for a number.)

    Examples
    --------
    >>> import numpy as np
    >>> from lm_eval_proca import BatchProbabilityCalibrator
    >>> scores = np.log([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]])
    >>> calibrator = BatchProbabilityCalibrator().fit(scores)
    >>> np.exp(calibrator.log_mean_proba_).round(2).tolist()
    [0.75, 0.25]
    >>> calibrator.predict(scores).tolist()
    [0, 0, 1, 1]
    """

    by_default: ClassVar[bool] = False

    def _fit(self, scores: Array) -> None:
        self.log_mean_proba_ = log_mean(log_softmax(scores, axis=1))

    def _calibrate(self, scores: Array) -> Array:
        return log_softmax(scores, axis=1) - self.log_mean_proba_

    def _report(self) -> dict[str, Any]:
        return {"log_mean_proba": self.log_mean_proba_}


def log_mean(log_proba: Array) -> Array:
    """Logarithm of the mean probability of each label over documents."""
    return logsumexp(log_proba, axis=0) - np.log(len(log_proba))
