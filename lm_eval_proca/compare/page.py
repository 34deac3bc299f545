"""The page: one self-contained file, no network, from the same tables as every other format.

What is in it is decided here, what it looks like in page.html. The template escapes whatever comes from a result file,
and a content security policy allows no script but our own.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from lm_eval_proca import __version__
from lm_eval_proca.compare.comparison import Report
from lm_eval_proca.compare.formats.structured import accuracies
from lm_eval_proca.compare.leaderboard import Leaderboard
from lm_eval_proca.compare.tables import (
    MISSING,
    Table,
    accuracy_entry,
    accuracy_table,
    caption_once,
    leaderboard_caption,
    leaderboard_columns,
    leaderboard_row,
    order_table,
    percent,
    preference_tables,
)

SHOTS = "Shots"
BEST_IS_LOW = (SHOTS, "Rank", "Rank in method")


def render_page(report: Report) -> str:
    """The whole page as text."""
    environment = Environment(loader=PackageLoader("lm_eval_proca", "compare"), autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    style, script = (
        importlib.resources.files("lm_eval_proca.compare").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js")
    )
    before, after = leaderboard_columns(report)[:2], leaderboard_columns(report)[2:]
    columns = [*before, SHOTS, *after]
    return environment.get_template("page.html").render(
        report=report,
        style=Markup(style),
        script=Markup(script),
        # Browsers read CR LF as LF before they hash.
        script_hash=base64.b64encode(hashlib.sha256(script.replace("\r\n", "\n").encode()).digest()).decode(),
        data={"models": report.models, "accuracies": _shown(report)},
        datasets=len({dataset for model in report.models for dataset in report.datasets_of(model)}),
        results=_number_of_results(report),
        version=__version__,
        first_shots=_most_complete(report.leaderboards),
        columns=columns,
        numeric_columns=[name not in ("Model", "Method") for name in columns],
        best_is_low=BEST_IS_LOW,
        rows=_rows(report),
        leaderboard_caption=leaderboard_caption(report),
        order=order_table(report),
        preferences=[(_with_bars(table), caption) for table, caption in caption_once(preference_tables(report))],
        tables=caption_once([accuracy_table(report, model) for model in report.models]),
        accuracy_entry=accuracy_entry,
        percent=percent,
        missing=MISSING,
    )


def _shown(report: Report) -> list[dict[str, object]]:
    """The accuracies, with the text of their mean: Python and JavaScript round halves differently."""
    return [{**one, "shown": MISSING if one["mean"] is None else percent(one["mean"])} for one in accuracies(report)]


def _number_of_results(report: Report) -> int:
    return len(
        {
            (block.model, dataset, block.shots, seed)
            for block in report.blocks
            for (_, dataset), accuracy in block.accuracies.items()
            for seed in accuracy.by_seed
        }
    )


def _most_complete(boards: Sequence[Leaderboard]) -> int:
    """What to show first: the shots with most ranked rows, then the most shots."""
    return max(boards, key=lambda board: (sum(one.rank is not None for one in board.standings), board.shots)).shots


def _rows(report: Report) -> Iterator[dict[str, Any]]:
    """Every line of every leaderboard, and what opens below it: dataset, accuracy, comparison with raw."""
    blocks = {(block.model, block.shots): block for block in report.blocks}
    for board in report.leaderboards:
        for number, one in enumerate(board.standings):
            block = blocks[one.model, board.shots]
            against_raw = {comparison.dataset: comparison for comparison in one.against_raw}
            yield {
                "id": f"details-{board.shots}-{number}",
                "shots": board.shots,
                "standing": one,
                "entries": leaderboard_row(report, one),
                "details": [
                    (dataset, block.accuracies.get((one.method, dataset)), against_raw.get(dataset))
                    for dataset in block.averaged
                ],
            }


def _with_bars(table: Table) -> Table:
    """The table of preferred labels, its points as bars to both sides of the gold share."""
    points = range(4, len(table.columns) - 1)
    widest = max(abs(float(row[k].value or 0)) for row in table.rows for k in points) or 1.0
    rows = [
        [replace(one, bar=float(one.value or 0) / widest) if k in points else one for k, one in enumerate(row)]
        for row in table.rows
    ]
    return replace(table, rows=rows)
