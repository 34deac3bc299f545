"""Contextual calibration (Zhao et al. 2021, https://arxiv.org/abs/2102.09690)."""

from __future__ import annotations

from typing import Any, ClassVar

from scipy.special import log_softmax, logsumexp

from lm_eval_proca.calibration.base import Array, Calibrator


class ContextualCalibrator(Calibrator):
    """Divide label probabilities by those of content-free documents ("N/A", "", "[MASK]").

    As in the released code: the label probabilities of the content-free documents (as the model gives them, not
    normalised) are averaged, then normalised over labels to p_cf, and the label probabilities of a document are
    multiplied by W = diag(p_cf)^-1.

    Attributes
    ----------
    content_free_log_proba_ : ndarray of shape (n_labels,)
        log p_cf.

    Examples
    --------
    >>> import numpy as np
    >>> from lm_eval_proca import ContextualCalibrator
    >>> content_free = np.log([[0.30, 0.10], [0.32, 0.08], [0.28, 0.12]])
    >>> calibrator = ContextualCalibrator().fit(content_free)
    >>> np.exp(calibrator.content_free_log_proba_).round(2).tolist()
    [0.75, 0.25]
    >>> calibrator.predict(np.log([[0.8, 0.2], [0.7, 0.3]])).tolist()
    [0, 1]
    """

    fits_on: ClassVar[str] = "content_free"

    def _fit(self, scores: Array) -> None:
        # the mean of probabilities, normalised over labels; in logarithms, since long labels would underflow
        self.content_free_log_proba_ = log_softmax(logsumexp(scores, axis=0))

    def _calibrate(self, scores: Array) -> Array:
        return log_softmax(scores, axis=1) - self.content_free_log_proba_

    def _report(self) -> dict[str, Any]:
        return {"content_free_log_proba": self.content_free_log_proba_}
