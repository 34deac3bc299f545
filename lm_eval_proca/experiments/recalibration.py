"""Fit calibrators on the scores of a finished run and measure them on its evaluation rows: no model needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import softmax
from sklearn.base import clone

from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.score_table import ScoreTable
from lm_eval_proca.statistics import Interval, accuracy, measures

if TYPE_CHECKING:
    from lm_eval_proca.calibration.base import Calibrator

Params = Mapping[str, Mapping[str, Any]]

RAW = "none"
"""lm-eval's name for scores that no filter has changed."""


@dataclass(frozen=True)
class Measured:
    """How one method does on the evaluation rows; the raw scores have no calibrator."""

    name: str
    calibrator: Calibrator | None
    measures: dict[str, Interval]


def recalibrate(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> list[Measured]:
    """Raw scores, then every calibrator that the table can fit, measured on the evaluation rows."""
    scores, gold = table.scores_of("eval"), table.gold_of("eval")
    with np.errstate(invalid="ignore"):  # of scores that are not finite, which have no probabilities
        raw = softmax(scores, axis=1)
    found = [Measured(RAW, None, measures(gold, raw, np.argmax(scores, axis=1)))]
    for name, calibrator in calibrators.items():
        if can_fit(calibrator, table):
            fitted = fit(calibrator, table)
            log_proba = fitted.predict_log_proba(scores)
            found.append(Measured(name, fitted, measures(gold, np.exp(log_proba), np.argmax(log_proba, axis=1))))
    return found


def make_calibrators(names: Iterable[str], params: Params | None = None) -> dict[str, Calibrator]:
    """Unfitted calibrators by name; `params` maps a name to keyword arguments of its class."""
    return _make({name: (name, {}) for name in names}, params or {})


def calibrators_of_run(table: ScoreTable, params: Params | None = None) -> dict[str, Calibrator]:
    """Unfitted calibrators with the names and parameters of the run's filters, some of them changed by `params`.

    A table without a record of filters gets one calibrator of each kind.
    """
    filters = table.metadata.get("filters") or {name: [{"function": name}] for name in CALIBRATORS}
    kinds = {
        name: (step["function"], {key: value for key, value in step.items() if key != "function"})
        for name, steps in filters.items()
        for step in steps
        if step["function"] in CALIBRATORS
    }
    return _make(kinds, params or {})


def _make(kinds: Mapping[str, tuple[str, Mapping[str, Any]]], params: Params) -> dict[str, Calibrator]:
    unused = sorted(set(params) - set(kinds))
    if unused:
        raise CalibrationError(
            f"There are parameters for {', '.join(unused)}, which is not among the calibrators {', '.join(kinds)}."
        )
    made = {}
    for name, (kind, given) in kinds.items():
        cls = get_calibrator(kind)
        arguments = {**given, **params.get(name, {})}
        known = cls().get_params()
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            raise CalibrationError(
                f"The calibrator {name} has no parameter {', '.join(unknown)}; it has {', '.join(known) or 'none'}."
            )
        made[name] = cls(**arguments)
        made[name].check_params()
    return made


def has_estimate_set(table: ScoreTable) -> bool:
    """False for lm-eval's own sample logs, where the unlabeled evaluation rows stand in."""
    return bool((table.role == "estimate").any())


def role_to_fit(calibrator: Calibrator, table: ScoreTable) -> str:
    """Which rows of the table a calibrator is fitted on."""
    return "eval" if calibrator.fits_on == "estimate" and not has_estimate_set(table) else calibrator.fits_on


def not_finite(table: ScoreTable) -> str | None:
    """Why a table cannot be calibrated: which of its scores is no finite number."""
    unusable = np.argwhere(~np.isfinite(table.scores))
    if not len(unusable):
        return None
    row, label = unusable[0]
    others = f" (and {len(unusable) - 1} more)" if len(unusable) > 1 else ""
    return (
        f"the score of {table.labels[label]!r} for {table.role[row].replace('_', '-')} document {table.index[row]} is "
        f"{table.scores[row, label]}{others}"
    )


def can_fit(calibrator: Calibrator, table: ScoreTable) -> bool:
    """Whether the table has the rows that this calibrator is fitted on, and finite scores."""
    return bool((table.role == role_to_fit(calibrator, table)).any()) and not_finite(table) is None


def fit(calibrator: Calibrator, table: ScoreTable, *, rows: np.ndarray | None = None) -> Calibrator:
    """A copy of the calibrator, fitted on the rows of the table that it wants; it never sees a label.

    `rows` takes some of them, by their positions in document order.
    """
    if not can_fit(calibrator, table):
        raise CalibrationError(
            f"{type(calibrator).__name__} is fitted on finite scores of {calibrator.fits_on.replace('_', '-')} inputs, "
            f"which this table does not have; only a run of a calibrated task with --metadata proca.scores_dir=DIR "
            f"keeps them."
        )
    scores = table.scores_of(role_to_fit(calibrator, table))
    return clone(calibrator).fit(
        scores if rows is None else scores[rows], labels=table.metadata.get("labels"), origin=table.origin
    )


def accuracy_of(table: ScoreTable, calibrator: Calibrator | None = None) -> float:
    """Accuracy on the evaluation rows: of a fitted calibrator, or of the raw scores as lm-eval computes it."""
    scores = table.scores_of("eval")
    return accuracy(
        table.gold_of("eval"), np.argmax(scores, axis=1) if calibrator is None else calibrator.predict(scores)
    )


def accuracies(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> dict[str, float]:
    """Accuracy of the raw scores and of each calibrator that the table can fit."""
    possible = {name: calibrator for name, calibrator in calibrators.items() if can_fit(calibrator, table)}
    return {RAW: accuracy_of(table)} | {
        name: accuracy_of(table, fit(calibrator, table)) for name, calibrator in possible.items()
    }
