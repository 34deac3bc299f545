"""Scored documents on their way from every process into one score table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lm_eval_proca.errors import DistributedError, ScoreTableError
from lm_eval_proca.score_table import NO_GOLD, ROLES, ScoreTable


@dataclass(frozen=True)
class Row:
    """One scored document, as processes exchange it; `truncated` is None where the model does not tell."""

    role: str
    index: int
    gold: int
    scores: list[float]
    truncated: bool | None


class Shard(NamedTuple):
    """What one process has scored, and its bad news, if it has any: a sentence on which all processes stop."""

    rows: list[Row]
    problem: str | None


def merge(shards: Sequence[Shard], expected: Mapping[str, Sequence[int]], *, task: str) -> list[Row]:
    """Every expected document once, by role and index; every rank may hold every document (tensor parallelism)."""
    for shard in shards:
        if shard.problem is not None:
            raise ScoreTableError(shard.problem)
    by_document: dict[tuple[str, int], Row] = {}
    for shard in shards:
        for row in shard.rows:
            by_document.setdefault((row.role, row.index), row)
    wanted = [(role, index) for role, indices in expected.items() for index in indices]
    missing = [document for document in wanted if document not in by_document]
    if missing:
        role, index = missing[0]
        raise DistributedError(
            f"{task}: {len(missing)} documents were scored by none of the {len(shards)} processes, the first is "
            f"{role.replace('_', '-')} document {index}; stock `--model hf` loses documents on several nodes (local "
            f"rank with global world size), use `--model hf-shared-prefix` there."
        )
    return sorted(by_document.values(), key=lambda row: (ROLES.index(row.role), row.index))


def score_table(rows: Sequence[Row], metadata: dict[str, Any]) -> ScoreTable:
    """The rows as a table; the gold labels of estimate rows go into a column of their own."""
    roles = np.array([row.role for row in rows])
    gold = np.array([row.gold for row in rows], dtype=np.int64)
    return ScoreTable(
        role=roles,
        index=np.array([row.index for row in rows], dtype=np.int64),
        gold=np.where(roles == "eval", gold, NO_GOLD),
        estimate_gold=np.where(roles == "estimate", gold, NO_GOLD),
        scores=np.array([row.scores for row in rows], dtype=np.float64),
        metadata=metadata,
    )
