"""Fit calibrators on the scores of a finished run and measure them on its evaluation rows: no model needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import softmax

from lm_eval_proca.calibration.metrics import accuracy, brier_score, expected_calibration_error, macro_f1
from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.score_table import ScoreTable

if TYPE_CHECKING:
    from lm_eval_proca.calibration.base import Calibrator

Params = Mapping[str, Mapping[str, Any]]

RAW = "none"
"""lm-eval's name for scores that no filter has changed."""


ECE_BINS = 15


class Interval(NamedTuple):
    """A measure and its 95 % bootstrap interval over evaluation rows (not over prompts or estimate sets)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Measured:
    """How one method does on the evaluation rows; the raw scores have no calibrator."""

    name: str
    calibrator: Calibrator | None
    measures: dict[str, Interval]


def calibrate(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> list[Measured]:
    """Raw scores, then every calibrator that the table can fit, measured on the evaluation rows."""
    scores, gold = table.scores_of("eval"), table.gold_of("eval")
    resamples = draw_resamples(len(gold))
    found = [Measured(RAW, None, measure(gold, softmax(scores, axis=1), np.argmax(scores, axis=1), resamples))]
    for name, calibrator in calibrators.items():
        if can_fit(calibrator, table):
            fitted = fit(calibrator, table)
            log_proba = fitted.predict_log_proba(scores)
            measures = measure(gold, np.exp(log_proba), np.argmax(log_proba, axis=1), resamples)
            found.append(Measured(name, fitted, measures))
    return found


def draw_resamples(rows: int, *, n_resamples: int = 1000, random_state: int = 0) -> np.ndarray:
    """How often each row is in each resample, shape (n_resamples, rows): those of `bootstrap_interval`."""
    rng = np.random.default_rng(random_state)
    counts = [np.bincount(rng.integers(rows, size=rows), minlength=rows) for _ in range(n_resamples)]
    return np.array(counts, dtype=np.float64)


def measure(gold: np.ndarray, proba: np.ndarray, predicted: np.ndarray, resamples: np.ndarray) -> dict[str, Interval]:
    """Accuracy, macro-F1, Brier score and expected calibration error with bootstrap intervals.

    All four are functions of sums over rows, so that matrix products give them for all resamples at once.
    """
    labels = np.eye(proba.shape[1])
    right = (predicted == gold).astype(np.float64)
    squared_error = np.square(proba - labels[gold]).sum(axis=1)
    confidence = proba.max(axis=1)
    surplus = (proba.argmax(axis=1) == gold) - confidence
    bins = np.clip(np.ceil(confidence * ECE_BINS).astype(int) - 1, 0, ECE_BINS - 1)

    hits = resamples @ (labels[gold] * right[:, None])
    occurrences = resamples @ (labels[gold] + labels[predicted])
    f1 = np.divide(2 * hits, occurrences, out=np.zeros_like(hits), where=occurrences > 0)
    resampled = {
        "accuracy": resamples @ right / len(gold),
        "macro_f1": f1.sum(axis=1) / (occurrences > 0).sum(axis=1),
        "brier": resamples @ squared_error / len(gold),
        "ece": np.abs(resamples @ (np.eye(ECE_BINS)[bins] * surplus[:, None])).sum(axis=1) / len(gold),
    }
    values = {
        "accuracy": accuracy(gold, predicted),
        "macro_f1": macro_f1(gold, predicted),
        "brier": brier_score(gold, proba),
        "ece": expected_calibration_error(gold, proba, n_bins=ECE_BINS),
    }
    return {
        name: Interval(value, *np.quantile(resampled[name], [0.025, 0.975]).tolist()) for name, value in values.items()
    }


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


def can_fit(calibrator: Calibrator, table: ScoreTable) -> bool:
    """Whether the table has the rows that this calibrator is fitted on."""
    return bool((table.role == role_to_fit(calibrator, table)).any())


def fit(calibrator: Calibrator, table: ScoreTable) -> Calibrator:
    """Fit on the rows of the table that the calibrator wants; it never sees a label."""
    if not can_fit(calibrator, table):
        raise CalibrationError(
            f"{type(calibrator).__name__} is fitted on {calibrator.fits_on.replace('_', '-')} inputs, and there is no "
            f"score of one; only a run of a calibrated task with --metadata proca.scores_dir=DIR keeps them."
        )
    scores = table.scores_of(role_to_fit(calibrator, table))
    return calibrator.fit(scores, labels=table.metadata.get("labels"), origin=table.origin)


def accuracy_of(table: ScoreTable, calibrator: Calibrator | None = None) -> float:
    """Accuracy on the evaluation rows: of a fitted calibrator, or of the raw scores as lm-eval computes it."""
    scores, gold = table.scores_of("eval"), table.gold_of("eval")
    predicted = np.argmax(scores, axis=1) if calibrator is None else calibrator.predict(scores)
    return float(np.mean(predicted == gold))


def accuracies(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> dict[str, float]:
    """Accuracy of the raw scores and of each calibrator that the table can fit."""
    possible = {name: calibrator for name, calibrator in calibrators.items() if can_fit(calibrator, table)}
    return {RAW: accuracy_of(table)} | {
        name: accuracy_of(table, fit(calibrator, table)) for name, calibrator in possible.items()
    }
