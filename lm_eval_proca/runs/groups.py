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

SAME = 1e-9
"""Two sums of the same numbers in another order differ by less."""

Confusions = Mapping[str, Mapping[str, np.ndarray]]
"""By task and filter; see :func:`lm_eval_proca.metrics.confusion`."""


def add_group_rows(document: dict[str, Any], confusions: Confusions) -> list[str]:
    """Give every group of a results file the rows that its tasks have got; a sentence for each that it cannot have."""
    notes: list[str] = []
    results, configs = document["results"], document["configs"]
    for group in document.get("group_subtasks") or {}:
        tasks = [
            task for task in leaves(document["group_subtasks"], group) if f"{ACCURACY},{RAW}" in results.get(task, {})
        ]
        sizes = [evaluated(document, task) for task in tasks]
        raw = results.get(group, {}).get(f"{ACCURACY},{RAW}")
        calibrated = [task for task in tasks if task in confusions]
        if group in tasks or raw is None or not calibrated:
            continue
        by_size = _weighs_by_size(raw, [results[task][f"{ACCURACY},{RAW}"] for task in tasks], sizes)
        if by_size is None:
            notes.append(f"{group}: no calibrated row, since its raw accuracy is not the average of its tasks.")
            continue
        for name in dict.fromkeys(name for task in calibrated for name in confusions[task]):
            missing = [task for task in tasks if f"{ACCURACY},{name}" not in results[task]]
            if missing:
                some = ", ".join(missing[:5]) + (", …" if len(missing) > 5 else "")
                notes.append(f"{group}: no row for {name}, which {len(missing)} of its tasks have not ({some}).")
                continue
            row = {} if name == RAW else _average(name, [results[task] for task in tasks], sizes, by_size)
            if calibrated == tasks and len({record_of(configs[task], task).labels for task in tasks}) == 1:
                together = np.sum([confusions[task][name] for task in tasks], axis=0)
                row[f"{RECALL_SD},{name}"] = recall_sd(recalls(np.diagonal(together), together.sum(axis=1)))
                lower_is_better(document, group)
            results[group].update(row)
            (document.get("groups") or {}).get(group, {}).update(row)
    return notes


def lower_is_better(document: dict[str, Any], name: str) -> None:
    """lm-eval's table shows an arrow for each metric."""
    document.setdefault("higher_is_better", {}).setdefault(name, {})[RECALL_SD] = False


def _weighs_by_size(raw: float, values: Sequence[float], sizes: Sequence[int | None]) -> bool | None:
    """How a group weighs its tasks, which the results file does not say: its raw average does, if it is one."""
    known = [size for size in sizes if size is not None]
    if len(known) == len(values) and math.isclose(raw, np.average(values, weights=known), abs_tol=SAME):
        return True
    return False if math.isclose(raw, np.mean(values), abs_tol=SAME) else None


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
