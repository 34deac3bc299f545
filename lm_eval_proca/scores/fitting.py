"""From a score table to calibrated scores of its evaluation rows, and how good they are: in a run, after it, and in
analyses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import softmax
from sklearn.base import clone

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import BUILT_IN, CALIBRATORS, default_names, get_calibrator, make_calibrator
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.metrics import Interval, LabelCounts, accuracy, count_labels, measures
from lm_eval_proca.scores.record import RunRecord
from lm_eval_proca.scores.score_table import ScoreTable

RAW = "none"
"""lm-eval's name for scores that no filter has changed."""

FOLDS = 5
FOLD_SEED = 0
ROWS_PER_LABEL = 5
"""Fewer evaluation rows than this per label are not worth a fit on themselves, which sees four fifths of them."""

Params = Mapping[str, Mapping[str, Any]]
"""Keyword arguments of calibrators, by their names."""

# ------------------------------------------------------------------ which calibrators


def make_calibrators(names: Iterable[str], params: Params | None = None) -> dict[str, Calibrator]:
    """By name; `none`, the raw scores, is a name that needs no calibrator."""
    return _made({name: {"function": name} for name in names if name != RAW}, params or {})


def calibrators_of_documents(
    params: Params | None = None, *, names: Iterable[str] | None = None, representations: bool = True
) -> dict[str, Calibrator]:
    """Those of `names`, by default of the default ones, that are fitted on documents; other inputs are more requests.

    What lm-eval logs has no `representations`.
    """
    kinds = {name: get_calibrator(name) for name in (default_names() if names is None else names)}
    suited = [name for name, kind in kinds.items() if representations or not kind.uses_representations]
    return make_calibrators([name for name in suited if kinds[name].fits_on == "estimate"], params)


def suited(calibrators: Mapping[str, Calibrator], n_labels: int) -> dict[str, Calibrator]:
    """The calibrators that a task with so many labels gets by default."""
    return {name: one for name, one in calibrators.items() if n_labels >= one.min_labels}


def calibrators_of_run(table: ScoreTable, params: Params | None = None) -> dict[str, Calibrator]:
    """Unfitted calibrators with the names and parameters of the run's filters, some of them changed by `params`.

    A table without a record of filters gets the default calibrators; every table, those of installed packages.
    """
    filters = table.record.filters
    if not filters:
        return suited(make_calibrators(default_names(), params), len(table.labels))
    chosen = {name: step for name, steps in filters.items() for step in steps if step["function"] in CALIBRATORS}
    of_packages = {name: {"function": name} for name in default_names() if name not in BUILT_IN}
    return _made(of_packages | chosen, params or {})


def _made(steps: Mapping[str, Mapping[str, Any]], params: Params) -> dict[str, Calibrator]:
    unused = sorted(set(params) - set(steps))
    if unused:
        raise CalibrationError(
            f"There are parameters for {', '.join(unused)}, which is not among the calibrators {', '.join(steps)}."
        )
    return {name: calibrator_of_step(step, params.get(name, {})) for name, step in steps.items()}


def calibrator_of_step(step: Mapping[str, Any], changed: Mapping[str, Any] | None = None) -> Calibrator:
    """From the step of a filter, as a YAML has it: the name of a calibrator, and beside it the parameters."""
    params = {key: value for key, value in step.items() if key != "function"}
    return make_calibrator(step["function"], {**params, **(changed or {})})


# ------------------------------------------------------------------ fits


@dataclass(frozen=True)
class Fit:
    """A calibrator fitted on a table, and the calibrated log-probabilities of the table's evaluation rows.

    Where the evaluation rows are the only unlabeled ones they are cross-fitted: a document is calibrated by a fit that
    has not seen it. `calibrator` is then the fit on all of them, for its report and for new documents.
    """

    calibrator: Calibrator
    documents: list[int]
    """Indices of the evaluation documents."""
    log_proba: np.ndarray
    """Of shape (documents, labels)."""
    folds: int = 1


def fit_all(
    table: ScoreTable, calibrators: Mapping[str, Calibrator], **options: Any
) -> tuple[dict[str, Fit], dict[str, str]]:
    """Fits by name; and for those that fail, why: no fit may cost the other rows of a paid run.

    `options` are those of :func:`fit`.
    """
    fits: dict[str, Fit] = {}
    failures: dict[str, str] = {}
    for name, calibrator in calibrators.items():
        try:
            fits[name] = fit(calibrator, table, **options)
        except CalibrationError as error:
            failures[name] = str(error)
        except Exception as error:  # of a calibrator that is anybody's own, or of a library below
            failures[name] = f"its fit failed with {type(error).__name__}: {' '.join(str(error).split())}"
    return fits, failures


def in_words(failures: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each reason why calibrators have no row."""
    for reason in dict.fromkeys(failures.values()):
        yield f"no row for {', '.join(name for name, why in failures.items() if why == reason)}: {reason}"


def fit(calibrator: Calibrator, table: ScoreTable, *, rows: np.ndarray | None = None, no_states: str = "") -> Fit:
    """A copy of the calibrator, fitted on the rows of the table that it wants, and what it makes of evaluation rows.

    `rows` takes some of the documents that it is fitted on, by their positions in document order, and leaves
    other inputs alone; `no_states` says why the table has no representations, if that is known better than the
    calibrator can tell.
    """
    role = role_to_fit(calibrator, table)
    rows = rows if role in ("estimate", "eval") else None
    _check(calibrator, table, role)
    documents = table.index_of("eval").tolist()
    folds = fold_of_rows(len(documents), len(table.labels)) if role == "eval" else None
    if no_states and calibrator.uses_representations:
        raise CalibrationError(no_states)
    fitted = _fitted(calibrator, table, role, rows)
    if folds is None:
        return Fit(fitted, documents, fitted.predict_log_proba(**_given(table, fitted, "eval")))
    pool = np.arange(len(documents)) if rows is None else rows
    log_proba = np.empty((len(documents), len(table.labels)))
    for fold in range(FOLDS):
        unseen = np.flatnonzero(folds == fold)
        part = _fitted(calibrator, table, role, pool[folds[pool] != fold])
        log_proba[unseen] = part.predict_log_proba(**_given(table, part, "eval", unseen))
    return Fit(fitted, documents, log_proba, FOLDS)


def label_documents(calibrator: Calibrator, table: ScoreTable, role: str) -> np.ndarray:
    """Log-probabilities of the labels that a calibrator, fitted on a table, gives to its documents of a role."""
    fitted = fit(calibrator, table).calibrator
    return fitted.predict_log_proba(**_given(table, fitted, role))


def predictions(table: ScoreTable, fits: Mapping[str, Fit]) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Name, label probabilities and predicted labels of the raw scores and of every fit, for the evaluation rows."""
    scores = table.scores_of("eval")
    with np.errstate(invalid="ignore"):  # of scores that are not finite, which have no probabilities
        yield RAW, softmax(scores, axis=1), np.argmax(scores, axis=1)
    for name, one in fits.items():
        yield name, np.exp(one.log_proba), np.argmax(one.log_proba, axis=1)


def recorded(table: ScoreTable, fits: Mapping[str, Fit], failures: Mapping[str, str]) -> RunRecord:
    """The record of the run behind a table, with what was fitted on it."""
    gold = table.gold_of("eval")
    return replace(
        table.record,
        folds=max((one.folds for one in fits.values()), default=1),
        fits={name: one.calibrator.fit_report() for name, one in fits.items()},
        not_calibrated=dict(failures),
        label_counts={name: count_labels(gold, proba, found) for name, proba, found in predictions(table, fits)},
    )


def fold_of_rows(rows: int, labels: int) -> np.ndarray:
    """The fold of each evaluation row, in document order: seeded, as equal in size as can be."""
    if rows < ROWS_PER_LABEL * labels:
        raise CalibrationError(
            f"{rows} evaluation documents are too few to calibrate {labels} labels on themselves; score at least "
            f"{ROWS_PER_LABEL * labels}, or give unlabeled rows of their own."
        )
    return np.random.default_rng(FOLD_SEED).permutation(np.arange(rows) % FOLDS)


def role_to_fit(calibrator: Calibrator, table: ScoreTable) -> str:
    """Which rows of the table a calibrator is fitted on; without an estimate set, the unlabeled evaluation rows."""
    has_estimate_set = bool((table.role == "estimate").any())
    return "eval" if calibrator.fits_on == "estimate" and not has_estimate_set else calibrator.fits_on


def _fitted(calibrator: Calibrator, table: ScoreTable, role: str, rows: np.ndarray | None) -> Calibrator:
    known = {"representation": table.record.representation} if calibrator.uses_representations else {}
    origin = table.record.origin | known
    return clone(calibrator).fit(
        **_given(table, calibrator, role, rows), labels=table.record.labels or None, origin=origin
    )


def _given(table: ScoreTable, calibrator: Calibrator, role: str, rows: np.ndarray | None = None) -> dict[str, Any]:
    chosen = slice(None) if rows is None else rows
    given = {"X": table.scores_of(role)[chosen]}
    if calibrator.uses_representations and (states := table.representations_of(role)) is not None:
        given["representations"] = states[:, chosen]
    return given


def _check(calibrator: Calibrator, table: ScoreTable, role: str) -> None:
    if not (table.role == role).any():
        scored_by = "a run that asks for it (proca.calibrators=domain)" if role == "domain" else "a calibrated task"
        raise CalibrationError(
            f"{type(calibrator).__name__} is fitted on scores of {role.replace('_', '-')} inputs, which only the score "
            f"table of {scored_by} has (--metadata proca.scores_dir=DIR)."
        )
    if (reason := table.not_finite(("eval", role))) is not None:
        raise CalibrationError(f"{reason}; calibration needs finite scores (try another dtype).")


# ------------------------------------------------------------------ how good


@dataclass(frozen=True)
class Measured:
    """How one method does on the evaluation rows; the raw scores have no fit."""

    name: str
    fit: Fit | None
    measures: dict[str, Interval]
    bias: LabelCounts


def recalibrate(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> tuple[list[Measured], dict[str, str]]:
    """Raw scores, then every calibrator that the table can fit, measured on the evaluation rows; and why not others."""
    fits, failures = fit_all(table, calibrators)
    return measured(table, fits), failures


def measured(table: ScoreTable, fits: Mapping[str, Fit]) -> list[Measured]:
    """Raw scores and every fit."""
    gold = table.gold_of("eval")
    return [
        Measured(name, fits.get(name), measures(gold, proba, predicted), count_labels(gold, proba, predicted))
        for name, proba, predicted in predictions(table, fits)
    ]


def accuracy_of(table: ScoreTable, fit: Fit | None = None) -> float:
    """Accuracy on the evaluation rows: of a fit, or of the raw scores as lm-eval computes it."""
    scores = table.scores_of("eval") if fit is None else fit.log_proba
    return accuracy(table.gold_of("eval"), np.argmax(scores, axis=1))


def accuracies(table: ScoreTable, calibrators: Mapping[str, Calibrator], **options: Any) -> dict[str, float]:
    """Accuracy of the raw scores and of each calibrator that the table can fit; `options` are those of :func:`fit`."""
    fits, _ = fit_all(table, calibrators, **options)
    return {RAW: accuracy_of(table)} | {name: accuracy_of(table, one) for name, one in fits.items()}
