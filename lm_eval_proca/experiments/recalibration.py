"""Fit calibrators on the scores of a finished run and measure them on its evaluation rows: no model needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator, make_calibrator
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.fitting import RAW, Fit, fit_all, predictions
from lm_eval_proca.score_table import ScoreTable
from lm_eval_proca.statistics import Interval, LabelBias, accuracy, label_bias, measures

if TYPE_CHECKING:
    from lm_eval_proca.calibration.base import Calibrator

Params = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Measured:
    """How one method does on the evaluation rows; the raw scores have no fit."""

    name: str
    fit: Fit | None
    measures: dict[str, Interval]
    bias: LabelBias


def recalibrate(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> tuple[list[Measured], dict[str, str]]:
    """Raw scores, then every calibrator that the table can fit, measured on the evaluation rows; and why not others."""
    gold = table.gold_of("eval")
    fits, failures = fit_all(table, calibrators)
    found = [
        Measured(name, fits.get(name), measures(gold, proba, predicted), label_bias(gold, proba, predicted))
        for name, proba, predicted in predictions(table, fits)
    ]
    return found, failures


def make_calibrators(names: Iterable[str], params: Params | None = None) -> dict[str, Calibrator]:
    """Unfitted calibrators by name; `params` maps a name to keyword arguments of its class."""
    return _make({name: (name, {}) for name in names}, params or {})


def calibrators_of_samples(params: Params | None = None) -> dict[str, Calibrator]:
    """One of each kind that needs scores of evaluation rows only, which is all that lm-eval logs."""
    kinds = {name: get_calibrator(name) for name in CALIBRATORS}
    possible = [name for name, kind in kinds.items() if kind.fits_on == "estimate" and not kind.uses_representations]
    return make_calibrators(possible, params)


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
    return {name: make_calibrator(kind, {**given, **params.get(name, {})}) for name, (kind, given) in kinds.items()}


def accuracy_of(table: ScoreTable, fit: Fit | None = None) -> float:
    """Accuracy on the evaluation rows: of a fit, or of the raw scores as lm-eval computes it."""
    scores = table.scores_of("eval") if fit is None else fit.log_proba
    return accuracy(table.gold_of("eval"), np.argmax(scores, axis=1))


def accuracies(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> dict[str, float]:
    """Accuracy of the raw scores and of each calibrator that the table can fit."""
    fits, _ = fit_all(table, calibrators)
    return {RAW: accuracy_of(table)} | {name: accuracy_of(table, one) for name, one in fits.items()}
