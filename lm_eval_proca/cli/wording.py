"""How `calibrate` words what it prints, of one prompt and of several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from lm_eval_proca.metrics import Interval
from lm_eval_proca.scores.score_table import ScoreTable


def headline(table: ScoreTable, which: str | None) -> str:
    """What was scored; `which` prompt of it, or how many."""
    record = table.record
    parts = [record.task, PurePath(record.model or "").name]
    parts += [f"{record.num_fewshot}-shot"] if record.num_fewshot is not None else []
    evaluated, estimated = (int((table.role == role).sum()) for role in ("eval", "estimate"))
    parts += [which or "", f"{evaluated} evaluation rows, {len(table.labels)} labels"]
    if estimated:
        parts.append(f"{estimated} estimate rows ({record.estimate_source})")
    return ", ".join(part for part in parts if part)


def folds_in_words(folds: int) -> Iterator[str]:
    """Nothing where there were other rows to fit on."""
    if folds > 1:
        yield (
            f"without an estimate set, the unlabeled evaluation rows are cross-fitted in {folds} folds: every document "
            f"is calibrated by a fit that has not seen it."
        )


def number(measure: Interval) -> str:
    if measure.value is None:
        return ""
    return f"{measure.value:.4f}" + ("" if measure.low is None else f" [{measure.low:.3f}, {measure.high:.3f}]")
