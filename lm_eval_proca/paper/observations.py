"""What the analyses share: what they observe on a score table, and on which tables they can."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from lm_eval_proca.metrics import Observation
from lm_eval_proca.scores.score_table import ScoreTable

Requirement = Callable[[ScoreTable], "str | None"]
"""Why a table is not for an analysis, in words; None if it is."""


def prompt_of(table: ScoreTable) -> Observation:
    """Which run an accuracy belongs to, and how many evaluation rows it rests on."""
    record = table.record
    return {
        "model": PurePath(record.model or "unknown").name,
        "task": record.task,
        "num_fewshot": record.num_fewshot,
        "seed": record.seed,
        "eval_rows": int((table.role == "eval").sum()),
    }


def observe(table: ScoreTable, accuracies: Mapping[str, float], **conditions: Any) -> list[Observation]:
    """One observation per method, with what else is known about it."""
    run = {**prompt_of(table), **conditions}
    return [{**run, "calibrator": name, "accuracy": accuracy} for name, accuracy in accuracies.items()]


def only(*columns: str) -> Callable[[Sequence[Observation]], list[Observation]]:
    """A function that gives the observations with these columns alone, each once."""

    def chosen(observations: Sequence[Observation]) -> list[Observation]:
        found: list[Observation] = []
        for one in observations:
            part = {column: one[column] for column in columns}
            if part not in found:
                found.append(part)
        return found

    return chosen


def usable(tables: Sequence[ScoreTable], requirements: Sequence[Requirement]) -> tuple[list[ScoreTable], list[str]]:
    """The tables that an analysis can use; of the others the task and why not, each once."""
    fitting: list[ScoreTable] = []
    reasons: dict[str, None] = {}
    for table in tables:
        reason = next(filter(None, (why_not(table) for why_not in (finite_scores, *requirements))), None)
        if reason is None:
            fitting.append(table)
        else:
            reasons[f"{table.record.task} ({reason})"] = None
    return fitting, list(reasons)


def finite_scores(table: ScoreTable) -> str | None:
    reason = table.not_finite()
    return reason and f"{table.record.num_fewshot} shots, seed {table.record.seed}: {reason}"


def two_labels(table: ScoreTable) -> str | None:
    return None if len(table.labels) == 2 else f"{len(table.labels)} labels, not two"


def estimate_set(table: ScoreTable) -> str | None:
    return None if (table.role == "estimate").any() else "no estimate set"


def labeled_estimate_set(table: ScoreTable) -> str | None:
    return estimate_set(table) or ("estimate rows without labels" if (table.gold_of("estimate") < 0).any() else None)


def chosen_demonstrations(table: ScoreTable) -> str | None:
    record = table.record
    return (
        None
        if record.demonstration_counts is not None and record.order_seed is not None
        else "not run with the settings demonstration_counts and order_seed"
    )
