"""Domain-context calibration (Fei et al. 2023, https://arxiv.org/abs/2305.19148)."""

from __future__ import annotations

from typing import ClassVar

from lm_eval_proca.calibration.contextual import ContextualCalibrator


class DomainContextCalibrator(ContextualCalibrator):
    """Contextual calibration whose content-free inputs are random words of the task.

    Let p(l | t) be the probability of label l as the model gives it, not normalised, for each of T texts t of random
    words (a run scores T = 20). As in the released code, P(l) = (1 / T) sum_t p(l | t) is normalised over labels, and
    the label probabilities of a document are divided by it. Random words show the words of the task without its
    content. How they are drawn: `domain_docs` in harness/documents.py.

    Attributes
    ----------
    content_free_log_proba_ : ndarray of shape (n_labels,)
        log P, normalised.

    Examples
    --------
    >>> import numpy as np
    >>> from lm_eval_proca import DomainContextCalibrator
    >>> random_words = np.log([[0.30, 0.10], [0.32, 0.08], [0.28, 0.12]])
    >>> calibrator = DomainContextCalibrator().fit(random_words)
    >>> np.exp(calibrator.content_free_log_proba_).round(2).tolist()
    [0.75, 0.25]
    >>> calibrator.predict(np.log([[0.8, 0.2], [0.7, 0.3]])).tolist()
    [0, 1]
    """

    fits_on: ClassVar[str] = "domain"
    by_default: ClassVar[bool] = False
