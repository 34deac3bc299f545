"""Finished runs of several prompts: results files of one model and the same tasks, put together.

Each task is read from the logs of all runs, cross-fitted under every prompt with the same folds, and measured as a run
with several prompts (`proca.prompts`) measures it. The results file of the first run gets the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.errors import ResultsError, ScoreTableError
from lm_eval_proca.metrics import grouped, labeled, standard_error
from lm_eval_proca.runs.finished import (
    CALIBRATED_IN_RUN,
    BegunRun,
    CalibratedRun,
    Fitted,
    FittedTask,
    read_task,
    why_unchanged,
)
from lm_eval_proca.runs.output_folder import about_task, evaluated, mapping, read_document, record_of
from lm_eval_proca.runs.processes import Submit
from lm_eval_proca.runs.sample_logs import SampleLog
from lm_eval_proca.scores.fitting import recorded, suited
from lm_eval_proca.scores.identity import digest, model_identity
from lm_eval_proca.scores.prompt_sets import OnePrompt, Together, calibrate_together, sets_of
from lm_eval_proca.scores.record import EVALUATION_ROWS, RunRecord
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.scores.together import Prompts

Read = tuple[SampleLog, ScoreTable]

HIGHER_IS_BETTER = {"acc_prompts": True, "acc_sd": False, "acc_worst": True, "acc_together": True}


def runs_together(files: Sequence[Path]) -> tuple[list[list[Path]], list[str]]:
    """Results files of the same model, tasks, shots and numbers of documents; a sentence for each that is alone."""
    described: list[tuple[Path, str]] = []
    reasons: list[str] = []
    for file in files:
        try:
            described.append((file, _what_was_run(read_document(file))))
        except ResultsError as error:
            reasons.append(str(error))
    alike = [[file for file, _ in some] for some in grouped(described, lambda pair: pair[1]).values()]
    reasons += [
        f"{some[0]} was skipped: no other results file has its model, tasks, shots and numbers of documents."
        for some in alike
        if len(some) == 1
    ]
    return [some for some in alike if len(some) > 1], reasons


def _what_was_run(document: Mapping[str, Any]) -> str:
    config, tasks, shots = mapping(document, "config"), sorted(document["configs"]), mapping(document, "n-shot")
    args = config.get("model_args")
    model = model_identity(args) if isinstance(args, dict) else args
    run = [(task, shots.get(task), evaluated(document, task)) for task in tasks]
    return digest([document.get("model_name"), config.get("model"), model, run])


def begin_together(
    files: Sequence[Path],
    calibrators: Mapping[str, Calibrator],
    *,
    asked: bool = False,
    keep: Callable[[FittedTask], None] | None = None,
    submit: Submit = partial,
) -> BegunRun:
    """Begin to calibrate every task under the prompts of all files; options as in `begin_run`."""
    documents = [read_document(file) for file in files]
    run = CalibratedRun(files[0], documents[0], others=list(files[1:]))
    begun = BegunRun(run, further_rows=add_rows_over_prompts)
    for name in documents[0]["configs"]:
        reason = next(filter(None, (_why_unchanged(document, name) for document in documents)), None)
        if reason is not None:
            run.unchanged.setdefault(reason, []).append(name)
        else:
            about = [about_task(document, name) for document in documents]
            begun.tasks[name] = submit(_fit_together, files, about, name, calibrators, asked, keep)
    return begun


def _fit_together(
    files: Sequence[Path],
    documents: Sequence[Mapping[str, Any]],
    name: str,
    calibrators: Mapping[str, Calibrator],
    asked: bool,
    keep: Callable[[FittedTask], None] | None,
) -> Fitted:
    read = [read_task(file, document, name) for file, document in zip(files, documents, strict=True)]
    chosen, reasons = _one_set(files, read)
    log, tables = chosen[0][0], [table for _, table in chosen]
    together = calibrate_together(tables, calibrators if asked else suited(calibrators, len(tables[0].labels)))
    task = FittedTask(name, log, tables[0], together.fits[0], together.methods)
    if keep is not None:
        keep(task)
    return Fitted(task, _recorded(log, together), [f"{name}: {reason}" for reason in reasons])


def _why_unchanged(document: Mapping[str, Any], task: str) -> str | None:
    """As for one run; but what was cross-fitted in the run can be fitted again, from the same scores in its log."""
    reason, record = why_unchanged(document, task), record_of(document["configs"][task], task)
    again = record.estimate_source == EVALUATION_ROWS and record.prompts == 1 and record.fits
    return None if reason == CALIBRATED_IN_RUN and again else reason


def _one_set(files: Sequence[Path], read: Sequence[Read]) -> tuple[list[Read], list[str]]:
    """The logs of a task that can be put together with the first, and why others cannot."""
    given = {str(file): one for file, one in zip(files, read, strict=True)}
    sets, reasons = sets_of([OnePrompt(file, table, log.prompt_hash) for file, (log, table) in given.items()])
    chosen = next((some for some in sets if some[0].name == str(files[0])), None)
    if chosen is None:
        raise NoSet(f"its runs cannot be put together: {reasons[0].rstrip('.')}")
    return [given[one.name] for one in chosen], reasons


class NoSet(ScoreTableError):
    """Logs of one task that are not different prompts of it."""


def _recorded(log: SampleLog, together: Together) -> RunRecord:
    record = recorded(together.tables[0], together.fits[0], together.failures)
    return replace(record, prompts=len(together.tables), prompt_hash=log.prompt_hash, together=together.report)


def add_rows_over_prompts(run: CalibratedRun, task: FittedTask) -> None:
    """What a run with several prompts reports beside the accuracy of the first."""
    gold = task.table.gold_of("eval")
    for name, prompts in task.prompts.items():
        for metric, value in _measured(prompts, gold).items():
            run.document["results"][task.name][f"{metric},{name}"] = "N/A" if value is None else value
    run.document["higher_is_better"][task.name] |= HIGHER_IS_BETTER


def _measured(prompts: Prompts, gold: Any) -> dict[str, float | None]:
    over = prompts.over_prompts(gold)
    if over is None:
        return {}
    true, predicted = labeled(gold, prompts.predicted_together)
    return {
        "acc_prompts": over.mean,
        "acc_prompts_stderr": over.standard_error,
        "acc_sd": over.sd,
        "acc_worst": over.worst,
        "acc_together": float((true == predicted).mean()),
        "acc_together_stderr": standard_error(true == predicted),
    }
