"""How `calibrate` words what it prints, of one prompt and of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from lm_eval_proca.compare.formats.tabular import text_table
from lm_eval_proca.metrics import Interval, LabelCounts
from lm_eval_proca.scores.record import RunRecord
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


def label_table(labels: Sequence[str], counts: Mapping[str, LabelCounts]) -> str:
    """One row per method and label: what the method gives the label, and how often the label is right."""
    rows: list[dict[str, Any]] = [
        {
            "calibrator": name,
            "label": label,
            "mean probability": counted.mean_probability and counted.mean_probability[k],
            "predicted": counted.predicted_share[k],
            "gold": counted.gold_share[k],
            "recall": counted.recall[k],
            "sd of recalls": counted.recall_sd if k == 0 else None,
        }
        for name, counted in counts.items()
        for k, label in enumerate(labels)
    ]
    return text_table(rows)


def label_tables(records: Mapping[str, RunRecord]) -> str:
    """The same for several tasks, each under its name."""
    tables = [f"{task}\n{label_table(one.labels, one.label_counts)}" for task, one in records.items()]
    return "\n\n".join(tables)
