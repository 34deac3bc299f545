"""Score tables with known truth: a label adds to its own score, the prompt pulls everything to the last label."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lm_eval_proca.scores.record import RunRecord
from lm_eval_proca.scores.score_table import NO_GOLD, ScoreTable


def made_table(
    task: str = "proca_sst2",
    *,
    shots: int = 4,
    seed: int = 0,
    labels: int = 2,
    bias: float = 2.0,
    separation: float = 2.5,
    eval_rows: int = 200,
    estimate_rows: int = 300,
    hidden: bool = False,
    **record: Any,
) -> ScoreTable:
    rng = np.random.default_rng([seed, shots, labels])

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        gold = rng.integers(labels, size=n)
        scores = rng.normal(-4.0, 1.0, (n, 1)) + rng.normal(0.0, 0.7, (n, labels))
        scores[np.arange(n), gold] += separation
        scores[:, -1] += bias
        return gold, scores

    eval_gold, eval_scores = draw(eval_rows)
    estimate_gold, estimate_scores = draw(estimate_rows)
    content_free = np.full((3, labels), -5.0)
    content_free[:, -1] += bias / 2
    role = np.repeat(["eval", "estimate", "content_free"], [eval_rows, estimate_rows, 3])
    states = rng.normal(size=(2, len(role), 16))
    states[:, : eval_rows + estimate_rows] += 2 * np.eye(16)[np.concatenate([eval_gold, estimate_gold])]
    return ScoreTable(
        role=role,
        index=np.concatenate([np.arange(eval_rows), np.arange(estimate_rows), np.arange(3)]),
        gold=np.concatenate([eval_gold, np.full(estimate_rows + 3, NO_GOLD)]),
        estimate_gold=np.concatenate([np.full(eval_rows, NO_GOLD), estimate_gold, np.full(3, NO_GOLD)]),
        scores=np.vstack([eval_scores, estimate_scores, content_free]),
        representations=states.astype(np.float16).swapaxes(0, 1) if hidden else None,
        record=RunRecord(
            **{
                "task": task,
                "representation": {"layers": ["0.667", "-1"]} if hidden else {},
                "model": "somewhere/made-model",
                "num_fewshot": shots,
                "seed": seed,
                "labels": ("Negative", "Positive") if labels == 2 else tuple(f"label{k}" for k in range(labels)),
                "estimate_source": "split:train",
                "filters": {
                    "none": [{"function": "take_first"}],
                    "bc": [{"function": "bc"}],
                    "conca": [{"function": "conca"}],
                    "proca": [{"function": "proca", "n_init": 5}],
                },
                **record,
            }
        ),
    )


def without(table: ScoreTable, *roles: str) -> ScoreTable:
    return some_rows(table, np.flatnonzero(~np.isin(table.role, roles)))


def some_rows(table: ScoreTable, rows: np.ndarray) -> ScoreTable:
    """These rows of the file, in this order."""
    columns = {name: getattr(table, name)[rows] for name in ("role", "index", "gold", "estimate_gold", "scores")}
    return replace(table, **columns)


def made_prompts(count: int = 3, *, noise: float = 1.5, **known: Any) -> list[ScoreTable]:
    """Runs with one prompt each on the same documents: every prompt has its own noise and its own bias."""
    first = made_table(**{"bias": 0.0, "separation": 1.0, **known})
    rng = np.random.default_rng(count)
    tables = []
    for k in range(count):
        scores = first.scores + rng.normal(scale=noise, size=first.scores.shape)
        scores[:, -1] += k - 1
        hashes = {"prompt_hash": f"prompt {k}", "documents_hash": "documents", "unlabeled_hash": f"rows of {k}"}
        tables.append(replace(first, scores=scores, record=replace(first.record, seed=k, **hashes)))
    return tables
