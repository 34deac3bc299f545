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
    _check_finite(table, ("eval", calibrator.fits_on))
    scores = table.scores_of(calibrator.fits_on)
    fitted = clone(calibrator).fit(scores, labels=table.labels, origin=table.origin)
    log_proba = fitted.predict_log_proba(table.scores_of("eval"))
    return Fit(fitted, table.index_of("eval").tolist(), log_proba)


def _check_finite(table: ScoreTable, roles: tuple[str, ...]) -> None:
    finite = np.isfinite(table.scores)
    bad = np.flatnonzero(np.isin(table.role, roles) & ~finite.all(axis=1))
    if len(bad):
        row, label = bad[0], int(np.argmin(finite[bad[0]]))
        others = f" (and further ones for {len(bad) - 1} documents)" if len(bad) > 1 else ""
        raise CalibrationError(
            f"The model gave {table.scores[row, label]} as the score of label {table.labels[label]!r} for "
            f"{table.role[row].replace('_', '-')} document {table.index[row]}{others}; calibration needs finite "
            f"scores (try another dtype)."
        )
