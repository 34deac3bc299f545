"""What all analyses give: rows, one dict per measurement, that a CSV file, a printed table and a figure share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.score_table import ScoreTable

Row = dict[str, Any]


def prompt_of(table: ScoreTable) -> Row:
    """Which run a measurement belongs to, and how many evaluation rows it rests on."""
    metadata = table.metadata
    return {
        "model": PurePath(str(metadata.get("model", "unknown"))).name,
        "task": str(metadata.get("task", "unknown")),
        "num_fewshot": metadata.get("num_fewshot"),
        "seed": metadata.get("seed"),
        "eval_rows": int((table.role == "eval").sum()),
    }


def mean_by(*columns: str) -> Callable[[Sequence[Row]], list[Row]]:
    """A function that gives mean and standard deviation of `accuracy` over all rows that agree in these columns."""

    def mean_of_groups(rows: Sequence[Row]) -> list[Row]:
        groups: dict[tuple[Any, ...], list[float]] = {}
        for row in rows:
            groups.setdefault(tuple(row[column] for column in columns), []).append(row["accuracy"])
        means = []
        for key, found in groups.items():
            spread = {"accuracy": float(np.mean(found)), "std": float(np.std(found)), "n": len(found)}
            means.append({**dict(zip(columns, key, strict=True)), **spread})
        return means

    return mean_of_groups


def only(*columns: str) -> Callable[[Sequence[Row]], list[Row]]:
    """A function that gives the rows with these columns alone, each once."""

    def chosen(rows: Sequence[Row]) -> list[Row]:
        found: list[Row] = []
        for row in rows:
            part = {column: row[column] for column in columns}
            if part not in found:
                found.append(part)
        return found

    return chosen


def need_two_labels(table: ScoreTable, analysis: str) -> None:
    if len(table.labels) != 2:
        raise ScoreTableError(
            f"The analysis `{analysis}` is for tasks with two labels, {table.metadata.get('task')} has "
            f"{len(table.labels)}; choose a table of SST-2, MR, Subj, AP or RTE."
        )


def need_estimate_set(table: ScoreTable, analysis: str, *, labeled: bool = False) -> None:
    gold = table.gold_of("estimate")
    if not len(gold) or (labeled and (gold < 0).any()):
        kind = "an estimate set with known labels" if labeled else "an estimate set"
        raise ScoreTableError(
            f"The analysis `{analysis}` needs {kind}, which the scores of {table.metadata.get('task')} do not have; "
            f"take a score table of a calibrated task whose estimate set is drawn from a labeled split."
        )
