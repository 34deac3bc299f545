"""Calibrated rows of groups: averaged over their tasks as lm-eval averages the raw row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lm_eval_proca.metrics import recall_sd, recalls
from lm_eval_proca.runs.output_folder import ACCURACY, evaluated, leaves, record_of
from lm_eval_proca.scores.fitting import RAW

STDERR, RECALL_SD = f"{ACCURACY}_stderr", "recall_sd"
"""Of lm-eval's metrics, `acc_norm` and the like mean nothing for calibrated scores and stay on the raw row."""

RAW_ACCURACY = f"{ACCURACY},{RAW}"

SAME = 1e-9
"""Two sums of the same numbers in another order differ by less."""

Confusions = Mapping[str, Mapping[str, np.ndarray]]
"""By task and filter; see :func:`lm_eval_proca.metrics.confusion`."""


def add_group_rows(document: dict[str, Any], confusions: Confusions) -> list[str]:
    """Give every group of a results file the rows that its tasks have got; a sentence for each that it cannot have."""
    notes: list[str] = []
    results = document["results"]
    for group in document.get("group_subtasks") or {}:
        tasks = [task for task in leaves(document["group_subtasks"], group) if RAW_ACCURACY in results.get(task, {})]
        calibrated = [task for task in tasks if task in confusions]
        if group in tasks or RAW_ACCURACY not in results.get(group, {}) or not calibrated:
            continue
        sizes = [evaluated(document, task) for task in tasks]
        by_size = _weighs_by_size(results[group][RAW_ACCURACY], [results[task][RAW_ACCURACY] for task in tasks], sizes)
        if isinstance(by_size, str):
            notes.append(f"{group}: no calibrated row, since {by_size}.")
            continue
        for name in dict.fromkeys(name for task in calibrated for name in confusions[task]):
            missing = [task for task in tasks if f"{ACCURACY},{name}" not in results[task]]
            if missing:
                some = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
                notes.append(
                    f"{group}: no row for {name}, since {len(missing)} of the {len(tasks)} tasks in its raw row have "
                    f"none ({some})."
                )
                continue
            row = {} if name == RAW else _average(name, [results[task] for task in tasks], sizes, by_size)
            if calibrated == tasks and (deviation := _recall_sd(document, tasks, confusions, name)) is not None:
                row[f"{RECALL_SD},{name}"] = deviation
                lower_is_better(document, group)
            results[group].update(row)
            (document.get("groups") or {}).get(group, {}).update(row)
    return notes


def _recall_sd(document: Mapping[str, Any], tasks: Sequence[str], confusions: Confusions, name: str) -> float | None:
    """Over all documents of the tasks; None where their labels differ."""
    if len({record_of(document["configs"][task], task).labels for task in tasks}) > 1:
        return None
    together = np.sum([confusions[task][name] for task in tasks], axis=0)
    return recall_sd(recalls(np.diagonal(together), together.sum(axis=1)))


def lower_is_better(document: dict[str, Any], name: str) -> None:
    """lm-eval's table shows an arrow for each metric."""
    document.setdefault("higher_is_better", {}).setdefault(name, {})[RECALL_SD] = False


def _weighs_by_size(raw: float, values: Sequence[float], sizes: Sequence[Any]) -> bool | str:
    """Whether a group weighs its tasks by their documents, or why that is not known.

    A results file of lm-eval does not have the group's `weight_by_size`; only its raw average can show it.
    """
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return "the results file does not say how many documents its tasks have"
    by_size = math.isclose(raw, np.average(values, weights=sizes), abs_tol=SAME)
    alike = math.isclose(raw, np.mean(values), abs_tol=SAME)
    if by_size and alike and len(set(sizes)) > 1:
        return (
            "the results file does not say whether it weighs its tasks by size, and its raw accuracy is the same "
            "either way"
        )
    return by_size if by_size or alike else "its raw accuracy is not the average of its tasks"


def _average(name: str, tasks: Sequence[Mapping[str, Any]], sizes: Sequence[Any], by_size: bool) -> dict[str, Any]:
    from lm_eval.api.metrics import aggregate_subtask_metrics, pooled_sample_stderr, unweighted_mean_stderr

    stderrs = [task[f"{STDERR},{name}"] for task in tasks]
    stderr = (
        "N/A"
        if "N/A" in stderrs
        else float(pooled_sample_stderr(stderrs, sizes) if by_size else unweighted_mean_stderr(stderrs))
    )
    accuracies = [task[f"{ACCURACY},{name}"] for task in tasks]
    average = aggregate_subtask_metrics(accuracies, sizes if by_size else [1] * len(tasks), by_size)
    return {f"{ACCURACY},{name}": float(average), f"{STDERR},{name}": stderr}
