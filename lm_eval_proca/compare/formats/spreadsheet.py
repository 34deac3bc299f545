"""For spreadsheets and data frames: CSV, one line per model, shots, method and dataset, and one for each average."""

from __future__ import annotations

from typing import Any

from lm_eval_proca.compare.comparison import Report
from lm_eval_proca.compare.formats.tabular import csv_text

COLUMNS = (
    "model", "shots", "method", "dataset", "accuracy", "sd", "seeds", "best", "in_average", "gain", "p_value", "p_holm",
    "rank", "low", "high",
)  # fmt: skip
OF_PROMPTS = ("prompts", "worst", "order_changes")
"""Where a run has several prompts; `order_changes` is against raw too."""


def render(report: Report) -> str:
    """Accuracies are fractions, as in lm-eval; empty means missing; `gain` and the p-values are against raw.

    `low` and `high` are the 95 % interval of an average.
    """
    lines: list[dict[str, object]] = []
    standings = {(board.shots, one.model, one.method): one for board in report.leaderboards for one in board.standings}
    for block in report.blocks:
        for method in block.methods:
            standing = standings[block.shots, block.model, method]
            against_raw = {one.dataset: one for one in standing.against_raw}
            common: dict[str, Any] = {"model": _plain(block.model), "shots": block.shots, "method": _plain(method)}
            for dataset in report.datasets_of(block.model):
                line = {**common, "dataset": _plain(dataset.name), "in_average": int(dataset in block.averaged)}
                found = block.accuracies.get((method, dataset))
                if found is not None:
                    line |= {"accuracy": found.mean, "sd": found.sd, "seeds": len(found.by_seed)}
                    line |= {"best": int(method in block.best(dataset))}
                    line |= {"prompts": len(found.by_prompt), "worst": found.worst}
                if comparison := against_raw.get(dataset):
                    p_value = comparison.test and comparison.test.p_value
                    line |= {"gain": comparison.difference, "p_value": p_value, "p_holm": comparison.p_holm}
                    line |= {"order_changes": comparison.order_changes}
                lines.append(line)
            average = {"dataset": "average", "accuracy": standing.average.mean, "best": int(method in block.best(None))}
            low, high = standing.interval or (None, None)
            lines.append({**common, **average, "gain": standing.gain, "rank": standing.rank, "low": low, "high": high})
    columns = COLUMNS + OF_PROMPTS if report.several_prompts else COLUMNS
    return csv_text([{name: line.get(name) for name in columns} for line in lines], columns)


def _plain(text: str) -> str:
    """A spreadsheet would run a name that begins like a formula."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
