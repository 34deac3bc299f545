"""From a score table to calibrated scores of its evaluation rows, in a run and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import clone

from lm_eval_proca.errors import CalibrationError

if TYPE_CHECKING:
    from lm_eval_proca.calibration.base import Calibrator
    from lm_eval_proca.score_table import ScoreTable


@dataclass(frozen=True)
class Fit:
    """A calibrator fitted on a table, and the calibrated log-probabilities of the table's evaluation rows."""

    calibrator: Calibrator
    documents: list[int]
    """Indices of the evaluation documents."""
    log_proba: np.ndarray
    """Of shape (documents, labels)."""


def fit_all(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> tuple[dict[str, Fit], dict[str, str]]:
    """Fits by name; and for those that are not possible, why."""
    fits: dict[str, Fit] = {}
    failures: dict[str, str] = {}
    for name, calibrator in calibrators.items():
        try:
            fits[name] = _fit(table, calibrator)
        except CalibrationError as error:
            failures[name] = str(error)
    return fits, failures


def _fit(table: ScoreTable, calibrator: Calibrator) -> Fit:
    if problem := table.not_finite(("eval", calibrator.fits_on)):
        raise CalibrationError(f"{problem}; calibration needs finite scores (try another dtype).")
    scores = table.scores_of(calibrator.fits_on)
    fitted = clone(calibrator).fit(scores, labels=table.labels, origin=table.origin)
    log_proba = fitted.predict_log_proba(table.scores_of("eval"))
    return Fit(fitted, table.index_of("eval").tolist(), log_proba)
