"""What the analyses share: which runs they are given, on which tables they can work, what they observe there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import PurePath
from typing import Any

import numpy as np

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.metrics import Observation, grouped
from lm_eval_proca.scores.identity import digest, weights_and_rest
from lm_eval_proca.scores.record import RunRecord
from lm_eval_proca.scores.score_table import ScoreTable

Tables = Sequence[ScoreTable]
Observations = Sequence[Observation]
Calibrators = Mapping[str, Calibrator]
"""Unfitted, by name."""

Requirement = Callable[[ScoreTable], "str | None"]
"""Why a table is not for an analysis, in words; None if it is."""

Part = tuple[Observation, "np.ndarray | None"]
"""What is special about a fit, and the rows of the estimate set that it is given; None is all of them."""

VARIED = frozenset({"demonstration_counts", "order_seed"})
"""Settings in which the runs of one analysis differ on purpose."""

_RUN = ("model", "task", "num_fewshot", "seed", "demonstration_counts", "order_seed", "prompt")
WHICH_RUN = attrgetter(*(f"record.{name}" for name in _RUN))
WHAT_WAS_SCORED = attrgetter("record.documents_hash", "record.prompt_hash", "record.unlabeled_hash")

LONGEST_VALUE = 24

PROMPT = ("model", "task", "num_fewshot")
"""The columns that observations share which differ in the seed alone."""

# ------------------------------------------------------------------ runs


def runs_of(tables: Tables) -> tuple[list[ScoreTable], list[str]]:
    """The tables with a name for each model and each task that no other has; of tables left out, the task and why.

    Weights that differ in path, arguments or content are different models. Runs of a task that differ in limit,
    estimate size, version or anything else but shots, seed and demonstrations are different tasks.
    """
    records = [table.record for table in tables]
    models = _told_apart([(record.model or "unknown", _arguments(record)) for record in records])
    tasks = _told_apart([(record.task, _conditions(record)) for record in records])
    named = zip(tables, models, tasks, strict=True)
    tables = [replace(table, record=replace(table.record, model=model, task=task)) for table, model, task in named]
    kept, repeated = [], []
    for (model, task, shots, seed, *_), alike in grouped(tables, WHICH_RUN).items():
        if len(set(map(WHAT_WAS_SCORED, alike))) > 1:
            raise ResultsError(
                f"{task} was run by {model} with {shots} shots and seed {seed} on different prompts or unlabeled rows; "
                f"analyze these runs apart."
            )
        kept.append(alike[0])
        repeated += [f"{task} (the same run in {len(alike)} tables)"] * (len(alike) > 1)
    return kept, list(dict.fromkeys(repeated))


def _arguments(record: RunRecord) -> dict[str, Any]:
    """What tells models of one name apart."""
    return {**weights_and_rest(dict(record.identity.get("model", {})))[1], "weights": record.model_hash}


def _conditions(record: RunRecord) -> dict[str, Any]:
    """What tells runs of one task apart, what a reader knows best first."""
    task, settings, versions = (record.identity.get(part, {}) for part in ("task", "settings", "versions"))
    return {
        "limit": record.limit,
        "estimate_size": record.estimate_size,
        "estimate_source": "file" if record.generated else record.estimate_source,
        "version": record.task_version,
        **{key: value for key, value in settings.items() if key not in VARIED},
        "labels": "/".join(record.labels) if record.vary != "templates" else None,  # which may have their own words
        **{**task, **versions, "documents": record.documents_hash},
    }


def _told_apart(things: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """A name for each path: as much of its end as no other path has, then the details in which equal paths differ."""
    paths, names = {path for path, _ in things}, []
    for path, details in things:
        parts = PurePath(path).parts
        ends = ["/".join(parts[start:]) for start in reversed(range(len(parts)))]
        shared = {end: sum(f"/{other}".endswith(f"/{end}") for other in paths) for end in ends}
        name = next((end for end in ends if shared[end] == 1), path)
        names.append(name + _differing(details, [other for known, other in things if known == path]))
    return names


def _differing(details: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> str:
    shown = []
    for key in dict.fromkeys(key for other in others for key in other):
        alike = [other for other in others if other.get(key) == details.get(key)]
        if len(alike) < len(others):
            text = str(details.get(key))
            shown.append(f"{key}={text if len(text) <= LONGEST_VALUE else digest(text, 6)}")
            others = alike
    return f" ({', '.join(shown)})" if shown else ""


# ------------------------------------------------------------------ requirements


def usable(tables: Tables, requirements: Sequence[Requirement]) -> tuple[list[ScoreTable], list[str]]:
    """The tables that an analysis can use; of the others the task and why not, each once."""
    fitting: list[ScoreTable] = []
    reasons: dict[str, None] = {}
    for table in tables:
        reason = next(filter(None, (why_not(table) for why_not in (finite_scores, gold_labels, *requirements))), None)
        if reason is None:
            fitting.append(table)
        else:
            reasons[f"{table.record.task} ({reason})"] = None
    return fitting, list(reasons)


def finite_scores(table: ScoreTable) -> str | None:
    reason = table.not_finite()
    return reason and f"{table.record.num_fewshot} shots, seed {table.record.seed}: {reason}"


def gold_labels(table: ScoreTable) -> str | None:
    return None if (table.gold_of("eval") >= 0).any() else "no gold labels"


def two_labels(table: ScoreTable) -> str | None:
    return None if len(table.labels) == 2 else f"{len(table.labels)} labels, not two"


def estimate_set(table: ScoreTable) -> str | None:
    return None if (table.role == "estimate").any() else "no estimate set"


def labeled_estimate_set(table: ScoreTable) -> str | None:
    return estimate_set(table) or ("estimate rows without labels" if (table.gold_of("estimate") < 0).any() else None)


# ------------------------------------------------------------------ observations


def run_of(table: ScoreTable) -> Observation:
    """Which run an accuracy belongs to, and how many evaluation rows it counts."""
    record = table.record
    run = {"model": record.model, "task": record.task, "num_fewshot": record.num_fewshot, "seed": record.seed}
    return {**run, "eval_rows": int((table.gold_of("eval") >= 0).sum())}


def observe(table: ScoreTable, accuracies: Mapping[str, float], **conditions: Any) -> list[Observation]:
    """One observation per method, with what else is known about it."""
    run = {**run_of(table), **conditions}
    return [{**run, "calibrator": name, "accuracy": accuracy} for name, accuracy in accuracies.items()]


def only(observed: Observations, *columns: str) -> list[Observation]:
    """The observations with these columns alone, each once."""
    parts = [{column: one[column] for column in columns} for one in observed]
    return [part for k, part in enumerate(parts) if part not in parts[:k]]
