"""Finished runs of `lm_eval --log_samples`: every fixed-label task of a results file, calibrated from its sample log.

One task is read, cross-fitted and measured before the next, so memory holds the scores of one sample log.
Calibrated rows come beside what lm-eval measured. Only a raw accuracy that counts documents without gold is replaced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.metrics import labeled, standard_error
from lm_eval_proca.runs import groups
from lm_eval_proca.runs.groups import RAW_ACCURACY, RECALL_SD, STDERR
from lm_eval_proca.runs.output_folder import ACCURACY, evaluated, mapping, read_document, record_of, samples_file
from lm_eval_proca.runs.sample_logs import Correct, SampleLog, UnclearTarget, read_log
from lm_eval_proca.scores.fitting import RAW, Fit, fit_all, predictions, recorded, suited
from lm_eval_proca.scores.record import RunRecord, documents_hash
from lm_eval_proca.scores.score_table import NO_GOLD, ScoreTable
from lm_eval_proca.scores.together import Prompts

CALIBRATED_IN_RUN = "calibrated by the run itself"
NO_CHOICES = "they do not score choices"


class VaryingChoices(ScoreTableError):
    """A log whose documents have no fixed list of labels."""


class Skipped(NamedTuple):
    """A task without calibrated rows. `damaged`: its files are not what lm-eval wrote."""

    task: str
    reason: str
    damaged: bool


@dataclass(frozen=True)
class CalibratedRun:
    """A results file of lm-eval with calibrated rows in it, and what has none.

    `others`: results files of further prompts, if several are put together.
    `unchanged`: tasks that need no calibration or cannot have it, by reason. `skipped`: tasks whose samples could not
    be used. `failures`: calibrators whose fit failed, by reason and task.
    """

    file: Path
    document: dict[str, Any]
    calibrated: list[str] = field(default_factory=list)
    unchanged: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    failures: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    others: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class FittedTask:
    """One task of a results file: its scores, and what the calibrators make of them.

    With several prompts, this is the first of them; `prompts` has all, by filter. `replaced` are filters of the log
    that calibrated in the run and do not count any more.
    """

    name: str
    log: SampleLog
    table: ScoreTable
    fits: Mapping[str, Fit]
    prompts: Mapping[str, Prompts] = field(default_factory=dict)
    replaced: frozenset[str] = frozenset()

    @cached_property
    def correct(self) -> Correct:
        """What a comparison would read of its calibrated log."""
        documents = sorted((sample.doc_id, sample.doc_hash) for sample in self.log.samples)
        gold = self.table.gold_of("eval")
        with_gold = [document for document, label in zip(documents, gold, strict=True) if label != NO_GOLD]
        found = predictions(self.table, self.fits)
        by_filter = {name: np.equal(*labeled(gold, predicted)) for name, _, predicted in found}
        return Correct(documents_hash(with_gold), by_filter)


def why_unchanged(document: Mapping[str, Any], task: str) -> str | None:
    """Why a task of a results file is left as it is, before its samples are looked at."""
    metrics, config = document["results"].get(task, {}), document["configs"][task]
    if any(f"{ACCURACY},{name}" in metrics for name in CALIBRATORS) or record_of(config, task).fits:
        return CALIBRATED_IN_RUN
    return None if config.get("output_type", "multiple_choice") == "multiple_choice" and metrics else NO_CHOICES


def calibrate_run(
    file: Path,
    calibrators: Mapping[str, Calibrator],
    *,
    asked: bool = False,
    wanted: Callable[[str], bool] = lambda task: True,
    keep: Callable[[FittedTask], None] = lambda task: None,
    done: Callable[[], None] = lambda: None,
) -> CalibratedRun:
    """Calibrate the wanted tasks of a results file, then its groups.

    `asked`: the user named the calibrators, so that a task for which one is not meant says why. `keep` is given each
    task before the next is read; `done` is called after each sample log.
    """
    run = CalibratedRun(file, read_document(file))
    records: dict[str, RunRecord] = {}
    for name in filter(wanted, run.document["configs"]):
        if (reason := why_unchanged(run.document, name)) is not None:
            run.unchanged.setdefault(reason, []).append(name)
            continue
        try:
            log, table = read_task(file, run.document, name)
        except ScoreTableError as error:
            run.skipped.append(skipped(name, error))
        else:
            fits, failures = fit_all(table, calibrators if asked else suited(calibrators, len(table.labels)))
            task = FittedTask(name, log, table, fits)
            records[name] = recorded(table, fits, failures)
            add_rows(run, task, records[name])
            keep(task)
        done()
    run.notes.extend(groups.add_group_rows(run.document, records))
    return run


def skipped(task: str, error: ScoreTableError) -> Skipped:
    """A task whose samples cannot be used."""
    damaged = not isinstance(error, (UnclearTarget, VaryingChoices))
    return Skipped(task, str(error).rstrip("."), damaged)


def read_task(file: Path, document: Mapping[str, Any], task: str) -> tuple[SampleLog, ScoreTable]:
    """The log of a task and its scores, if they belong to the results file."""
    path = samples_file(file, task)
    if not path.is_file():
        raise ScoreTableError(f"there is no {path.name} beside {file} (run lm_eval with --log_samples)")
    log = read_log(path, document, task)
    if not log.has_fixed_labels:
        raise VaryingChoices("its choices differ from document to document, or from input to input")
    table = log.table()
    expected, found = evaluated(document, task), len(table.index)
    if expected not in (None, found):
        raise ScoreTableError(
            f"{path} has {found} documents, but {file} says {expected}; it was cut, or is of another run"
        )
    # As lm-eval counts: a document without a gold label is wrong.
    logged = float(np.mean(np.argmax(table.scores, axis=1) == table.gold))
    measured = document["results"][task].get(RAW_ACCURACY, logged)
    if not isinstance(measured, (int, float)) or not math.isclose(logged, measured, abs_tol=groups.SAME):
        raise ScoreTableError(
            f"the accuracy of {path} is {logged:.4f}, but {file} says {measured}; they are not of one run"
        )
    return log, table


def add_rows(run: CalibratedRun, task: FittedTask, record: RunRecord) -> None:
    """Put the numbers of a task into the document."""
    metrics, config = run.document["results"][task.name], run.document["configs"][task.name]
    gold = task.table.gold_of("eval")
    unlabeled = int((gold == NO_GOLD).sum())
    for name, right in task.correct.by_filter.items():
        if len(right) and (name != RAW or (RAW_ACCURACY in metrics and unlabeled)):
            metrics[f"{ACCURACY},{name}"] = float(right.mean())
            metrics[f"{STDERR},{name}"] = standard_error(right) if len(right) > 1 else "N/A"
        if len(right):
            metrics[f"{RECALL_SD},{name}"] = record.label_counts[name].recall_sd
    groups.lower_is_better(run.document, task.name)
    config["metadata"] = {**mapping(config, "metadata"), "proca": record.as_json()}
    if unlabeled:
        run.notes.append(
            f"{unlabeled} of the {len(gold)} documents of {task.name} have no gold label; they are calibrated, "
            f"and no accuracy counts them (lm-eval counts them as wrong)."
        )
    if task.fits:
        run.calibrated.append(task.name)
    if (reason := task.table.not_finite()) is not None:
        run.skipped.append(Skipped(task.name, reason, damaged=True))
    else:
        for name, reason in record.not_calibrated.items():
            run.failures.setdefault(reason, {}).setdefault(task.name, []).append(name)
