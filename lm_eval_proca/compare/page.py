"""The page: one self-contained file, no network, from the same tables as every other format.

What is in it is decided here, what it looks like in page.html. The template escapes whatever comes from a result file,
and a content security policy allows no script but our own.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Iterator, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from lm_eval_proca import __version__
from lm_eval_proca.compare import tables
from lm_eval_proca.compare.comparison import Report
from lm_eval_proca.compare.formats.structured import accuracies
from lm_eval_proca.compare.leaderboard import Leaderboard


def render_page(report: Report) -> str:
    """The whole page as text."""
    environment = Environment(loader=PackageLoader("lm_eval_proca", "compare"), autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False}
    style, script = (
        importlib.resources.files("lm_eval_proca.compare").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.css", "page.js")
    )
    columns = tables.leaderboard_columns(report)
    columns.insert(2, "Shots")
    return environment.get_template("page.html").render(
        report=report,
        style=Markup(style),
        script=Markup(script),
        # Browsers read CR LF as LF before they hash.
        script_hash=base64.b64encode(hashlib.sha256(script.replace("\r\n", "\n").encode()).digest()).decode(),
        data={"models": report.models, "accuracies": list(_accuracies(report))},
        datasets=len({dataset for block in report.blocks for dataset in block.datasets}),
        results=_number_of_results(report),
        version=__version__,
        shots=[board.shots for board in report.leaderboards],
        first_shots=_most_complete(report.leaderboards),
        columns=columns,
        numeric_columns=[name not in ("Model", "Method") for name in columns],
        best_is_low=("Shots", "Rank", "Rank in method"),
        rows=_rows(report),
        leaderboard_caption=tables.leaderboard_caption(report),
        order=tables.order_table(report),
        preferences=tables.caption_once(tables.preference_tables(report)),
        tables=tables.caption_once([tables.accuracy_table(report, model) for model in report.models]),
        accuracy_entry=tables.accuracy_entry,
        percent=tables.percent,
        missing=tables.MISSING,
    )


def _accuracies(report: Report) -> Iterator[dict[str, Any]]:
    """The accuracies, with the text of their mean: Python and JavaScript round halves differently."""
    for one in accuracies(report):
        yield {**one, "shown": tables.number(one["mean"], tables.percent).text}


def _number_of_results(report: Report) -> int:
    accuracies = [(block, *item) for block in report.blocks for item in block.accuracies.items()]
    return len(
        {(block.model, block.shots, dataset, seed) for block, (_, dataset), one in accuracies for seed in one.by_seed}
    )


def _most_complete(boards: Sequence[Leaderboard]) -> int:
    """What to show first: the shots with most ranked rows, then the most shots."""
    return max(boards, key=lambda board: (sum(one.rank is not None for one in board.standings), board.shots)).shots


def _rows(report: Report) -> Iterator[dict[str, Any]]:
    """Every line of every leaderboard, and what opens below it: dataset, accuracy, comparison with raw."""
    blocks = {(block.model, block.shots): block for block in report.blocks}
    for board in report.leaderboards:
        for number, one in enumerate(board.standings):
            accuracies = blocks[one.model, board.shots].accuracies
            against_raw = {comparison.dataset: comparison for comparison in one.against_raw}
            yield {
                "id": f"details-{board.shots}-{number}",
                "shots": board.shots,
                "standing": one,
                "entries": tables.leaderboard_row(report, one),
                "details": [(d, accuracies.get((one.method, d)), against_raw.get(d)) for d in board.datasets],
            }
