"""Shares of the labels among documents: the parameter `prior` of several calibrators."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from lm_eval_proca.calibration.base import Array, Calibrator
from lm_eval_proca.errors import CalibrationError


def are_shares(value: Any) -> bool:
    """Whether a value is a list of positive shares that sum to one."""
    with suppress(TypeError, ValueError):
        shares = np.asarray(value, dtype=np.float64)
        return shares.ndim == 1 and bool((shares > 0).all() and np.isclose(shares.sum(), 1))
    return False


def shares_of(calibrator: Calibrator, prior: Any, n_labels: int) -> Array:
    """The shares that are given as the `prior` of a calibrator; equal ones for a word."""
    if isinstance(prior, str):
        return np.full(n_labels, 1 / n_labels)
    shares = np.asarray(prior, dtype=np.float64)
    if len(shares) != n_labels:
        raise CalibrationError(
            f"The 'prior' parameter of {type(calibrator).__name__} must have a share for each of {n_labels} labels, "
            f"got {prior!r}."
        )
    return shares
