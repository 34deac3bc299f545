"""Fit calibrators on the scores of a finished run and measure them on its evaluation rows: no model needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.fitting import Fit, fit_all, predictions
from lm_eval_proca.run_files import RAW
from lm_eval_proca.score_table import ScoreTable
from lm_eval_proca.statistics import Interval, LabelBias, accuracy, label_bias, measures


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


def accuracy_of(table: ScoreTable, fit: Fit | None = None) -> float:
    """Accuracy on the evaluation rows: of a fit, or of the raw scores as lm-eval computes it."""
    scores = table.scores_of("eval") if fit is None else fit.log_proba
    return accuracy(table.gold_of("eval"), np.argmax(scores, axis=1))


def accuracies(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> dict[str, float]:
    """Accuracy of the raw scores and of each calibrator that the table can fit."""
    fits, _ = fit_all(table, calibrators)
    return {RAW: accuracy_of(table)} | {name: accuracy_of(table, one) for name, one in fits.items()}
