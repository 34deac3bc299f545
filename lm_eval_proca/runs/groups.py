"""Calibrated rows of groups: averaged over their tasks as lm-eval averages the raw row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lm_eval_proca.metrics import added
from lm_eval_proca.runs.output_folder import ACCURACY, evaluated, leaves
from lm_eval_proca.scores.fitting import RAW
from lm_eval_proca.scores.record import RunRecord

STDERR, RECALL_SD = f"{ACCURACY}_stderr", "recall_sd"
"""Of lm-eval's metrics, `acc_norm` and the like mean nothing for calibrated scores and stay on the raw row."""

AVERAGED = (ACCURACY, "acc_prompts", "acc_together")
"""What a group averages; the last two if its tasks have several prompts."""

RAW_ACCURACY = f"{ACCURACY},{RAW}"

SAME = 1e-9
"""Two sums of the same numbers in another order differ by less."""

NAMED = 5
"""So many tasks are named where a sentence is about many."""


def add_group_rows(document: dict[str, Any], records: Mapping[str, RunRecord]) -> list[str]:
    """Give every group of a results file the rows that its tasks have got; a sentence for each that it cannot have.

    `records` are of the tasks that were calibrated after the run.
    """
    notes: list[str] = []
    results = document["results"]
    for group in document.get("group_subtasks") or {}:
        tasks = [task for task in leaves(document["group_subtasks"], group) if RAW_ACCURACY in results.get(task, {})]
        calibrated = [task for task in tasks if task in records]
        if group in tasks or RAW_ACCURACY not in results.get(group, {}) or not calibrated:
            continue
        sizes = [evaluated(document, task) for task in tasks]
        try:
            if partly := [task for task in calibrated if has_unlabeled(records[task])]:
                raise _Unknown(f"its raw row counts documents without a gold label as wrong ({some_of(partly)})")
            raw, *values = (results[name][RAW_ACCURACY] for name in (group, *tasks))
            by_size = _weighs_by_size(raw, values, sizes)
        except _Unknown as reason:
            notes.append(f"{group}: no calibrated row, since {reason}.")
            continue
        for name in dict.fromkeys(name for task in calibrated for name in records[task].label_counts):
            missing = [task for task in tasks if f"{ACCURACY},{name}" not in results[task]]
            if missing:
                of = f"{len(missing)} of the {len(tasks)} tasks in its raw row"
                notes.append(f"{group}: no row for {name}, since {of} have none ({some_of(missing)}).")
                continue
            of_tasks = [results[task] for task in tasks]
            averaged = [metric for metric in AVERAGED if all(f"{metric},{name}" in one for one in of_tasks)]
            row: dict[str, Any] = {}
            for metric in averaged[1:] if name == RAW else averaged:
                row |= _average(f"{metric}{{}},{name}", of_tasks, sizes, by_size)
                document.setdefault("higher_is_better", {}).setdefault(group, {})[metric] = True
            if calibrated == tasks and len({records[task].labels for task in tasks}) == 1:
                row[f"{RECALL_SD},{name}"] = added(records[task].label_counts[name] for task in tasks).recall_sd
                lower_is_better(document, group)
            results[group].update(row)
            (document.get("groups") or {}).get(group, {}).update(row)
    return notes


def some_of(names: Sequence[str], shown: int = NAMED) -> str:
    """The first of many names, for a sentence."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def has_unlabeled(record: RunRecord) -> bool:
    """Whether documents without a gold label were evaluated; lm-eval counts them as wrong."""
    return record.label_counts[RAW].documents != record.eval_rows


def lower_is_better(document: dict[str, Any], name: str) -> None:
    """lm-eval's table shows an arrow for each metric."""
    document.setdefault("higher_is_better", {}).setdefault(name, {})[RECALL_SD] = False


class _Unknown(Exception):
    """Why a group's average cannot be made, in words."""


def _weighs_by_size(raw: float, values: Sequence[float], sizes: Sequence[Any]) -> bool:
    """Whether a group weighs its tasks by their documents.

    No results file of lm-eval has the group's `weight_by_size`; only its raw average can show it.
    """
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        raise _Unknown("the results file does not say how many documents its tasks have")
    by_size = math.isclose(raw, np.average(values, weights=sizes), abs_tol=SAME)
    alike = math.isclose(raw, np.mean(values), abs_tol=SAME)
    if not by_size and not alike:
        raise _Unknown("its raw accuracy is not the average of its tasks")
    if by_size and alike and len(set(sizes)) > 1:
        either = "and its raw accuracy is the same either way"
        raise _Unknown(f"the results file does not say whether it weighs its tasks by size, {either}")
    return by_size


def _average(key: str, tasks: Sequence[Mapping[str, Any]], sizes: Sequence[Any], by_size: bool) -> dict[str, Any]:
    """`key` has a place for what stands between a metric and its filter in a results file."""
    from lm_eval.api.metrics import aggregate_subtask_metrics, pooled_sample_stderr, unweighted_mean_stderr

    value, error = key.format(""), key.format("_stderr")
    average = aggregate_subtask_metrics([task[value] for task in tasks], sizes, by_size)
    row: dict[str, Any] = {value: float(average), error: "N/A"}
    stderrs = [task[error] for task in tasks]
    if "N/A" not in stderrs:
        pooled = pooled_sample_stderr(stderrs, sizes) if by_size else unweighted_mean_stderr(stderrs)
        row[error] = float(pooled)
    return row
