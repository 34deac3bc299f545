"""Finished runs of `lm_eval --log_samples`: every fixed-label task of a results file, calibrated from its sample log.

A task is read, cross-fitted and measured in one call, of which several may run in other processes: memory holds the
scores of one sample log for each of them.
Calibrated rows come beside what lm-eval measured. Only a raw accuracy that counts documents without gold is replaced.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.errors import ResultsError, ScoreTableError
from lm_eval_proca.metrics import labeled, standard_error
from lm_eval_proca.runs import groups
from lm_eval_proca.runs.groups import RAW_ACCURACY, RECALL_SD, STDERR
from lm_eval_proca.runs.output_folder import (
    ACCURACY,
    about_task,
    evaluated,
    mapping,
    read_document,
    record_of,
    samples_file,
)
from lm_eval_proca.runs.processes import Later, Submit, processes
from lm_eval_proca.runs.sample_logs import Correct, SampleLog, UnclearTarget, read_log
from lm_eval_proca.scores.fitting import RAW, Fit, fit_all, predictions, recorded, suited
from lm_eval_proca.scores.record import RunRecord, documents_hash
from lm_eval_proca.scores.score_table import NO_GOLD, ScoreTable
from lm_eval_proca.scores.together import Prompts

CALIBRATED_IN_RUN = (
    "calibrated by the run itself; for other calibrators give its score tables (--metadata proca.scores_dir=DIR keeps "
    "them), or the sweep folder that it is in"
)
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
    answers: dict[Path, Correct] = field(default_factory=dict)
    """By sample log, what a comparison would read of it once it has calibrated rows."""


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
        """Right and wrong answers, as they are read from its calibrated log."""
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


class Fitted(NamedTuple):
    """A task, what is recorded of its fits, and what else there is to say."""

    task: FittedTask
    record: RunRecord
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class BegunRun:
    """A run whose tasks are being calibrated, here or in other processes."""

    run: CalibratedRun
    tasks: dict[str, Later] = field(default_factory=dict)
    """By name, what gives a task as `Fitted`, or raises why its samples cannot be used."""
    further_rows: Callable[[CalibratedRun, FittedTask], None] = lambda run, task: None

    def finish(
        self, done: Callable[[], None] = lambda: None, note: Callable[[FittedTask], None] = lambda task: None
    ) -> CalibratedRun:
        """Put in the rows of all tasks and then of groups; `done` is called after each sample log, and `note` is given
        each task."""
        run, records = self.run, dict[str, RunRecord]()
        for name, later in self.tasks.items():
            try:
                task, records[name], notes = later()
            except ScoreTableError as error:
                run.skipped.append(skipped(name, error))
            else:
                run.notes.extend(notes)
                run.answers[task.log.path] = task.correct
                add_rows(run, task, records[name])
                self.further_rows(run, task)
                note(task)
            for _ in (run.file, *run.others):
                done()
        run.notes.extend(groups.add_group_rows(run.document, records))
        return run


def begin_run(
    file: Path,
    calibrators: Mapping[str, Calibrator],
    *,
    asked: bool = False,
    wanted: Callable[[str], bool] = lambda task: True,
    keep: Callable[[FittedTask], None] | None = None,
    submit: Submit = partial,
) -> BegunRun:
    """Begin to calibrate the wanted tasks of a results file, by `submit`.

    `asked`: the user named the calibrators, so that a task for which one is not meant says why. `keep` is given each
    task in the process that has fitted it.
    """
    begun = BegunRun(CalibratedRun(file, document := read_document(file)))
    for name in filter(wanted, document["configs"]):
        if (reason := why_unchanged(document, name)) is not None:
            begun.run.unchanged.setdefault(reason, []).append(name)
        else:
            about = about_task(document, name)  # the document gets rows while other processes read theirs
            begun.tasks[name] = submit(_fit_task, file, about, name, calibrators, asked, keep)
    return begun


def calibrate_run(file: Path, calibrators: Mapping[str, Calibrator], **options: Any) -> CalibratedRun:
    """Calibrate the wanted tasks of a results file, then its groups; `options` are those of :func:`begin_run`."""
    return begin_run(file, calibrators, **options).finish()


def calibrated_in_order(
    beginnings: Iterable[Callable[[Submit], BegunRun]],
    jobs: int,
    done: Callable[[], None],
    note: Callable[[FittedTask], None] = lambda task: None,
) -> Iterator[CalibratedRun | ResultsError]:
    """Each run in its turn, or why there is none; the next are begun before it ends, so that no process is idle."""
    waiting: deque[BegunRun | ResultsError] = deque()

    def first() -> CalibratedRun | ResultsError:
        begun = waiting.popleft()
        try:
            return begun if isinstance(begun, ResultsError) else begun.finish(done, note)
        except ResultsError as error:
            return error

    with processes(jobs) as submit:
        for begin in beginnings:
            try:
                waiting.append(begin(submit))
            except ResultsError as error:
                waiting.append(error)
            while len(waiting) > 1 and sum(map(_tasks_of, list(waiting)[1:])) >= jobs:
                yield first()
        while waiting:
            yield first()


def _tasks_of(begun: BegunRun | ResultsError) -> int:
    return 0 if isinstance(begun, ResultsError) else len(begun.tasks)


def _fit_task(
    file: Path,
    document: Mapping[str, Any],
    name: str,
    calibrators: Mapping[str, Calibrator],
    asked: bool,
    keep: Callable[[FittedTask], None] | None,
) -> Fitted:
    log, table = read_task(file, document, name)
    fits, failures = fit_all(table, calibrators if asked else suited(calibrators, len(table.labels)))
    task = FittedTask(name, log, table, fits)
    if keep is not None:
        keep(task)
    return Fitted(task, recorded(table, fits, failures))


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
