"""The page: one self-contained file, no network, from the same tables as every other format.

What is in it is decided here, what it looks like in page.html. The template escapes whatever comes from a result file,
and a content security policy allows no script but our own.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from lm_eval_proca import __version__
from lm_eval_proca.compare import tables
from lm_eval_proca.compare.blocks import Accuracy, Block
from lm_eval_proca.compare.columns import Dataset
from lm_eval_proca.compare.comparison import Report
from lm_eval_proca.compare.formats.structured import accuracies
from lm_eval_proca.compare.leaderboard import Leaderboard
from lm_eval_proca.compare.names import without_ensemble

SCALE_PARTS = 20
"""Strips begin and end at multiples of 5 points."""
STRIP_MARGIN = 8


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
    scale = _scale(report)
    return environment.get_template("page.html").render(
        report=report,
        style=Markup(style),
        script=Markup(script),
        # Browsers read CR LF as LF before they hash.
        script_hash=base64.b64encode(hashlib.sha256(script.replace("\r\n", "\n").encode()).digest()).decode(),
        data={"models": report.models, "accuracies": list(_accuracies(report)), "scale": scale},
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
        prompt_order=tables.prompt_order_table(report),
        single_methods=[one for one in report.methods if not _is_ensemble(report, one)],
        scale=scale,
        place=partial(_place, scale),
        preferences=tables.caption_once(tables.preference_tables(report)),
        tables=tables.caption_once([tables.accuracy_table(report, model) for model in report.models]),
        accuracy_entry=tables.accuracy_entry,
        percent=tables.percent,
        missing=tables.MISSING,
    )


def _accuracies(report: Report) -> Iterator[dict[str, Any]]:
    """The accuracies, with the text of their mean: Python and JavaScript round halves differently."""
    for one in accuracies(report):
        made_of = {"made_of": without_ensemble(one["method"])} if one.get("together") else {}
        yield {**one, **made_of, "shown": tables.number(one["mean"], tables.percent).text}


def _scale(report: Report) -> tuple[float, float]:
    """Where strips begin and end: prompts differ by a few points, which nobody sees between 0 and 100."""
    if not report.several_prompts:
        return 0.0, 1.0
    values = [value for block in report.blocks for one in block.accuracies.values() for value in one.values.values()]
    low, high = math.floor(min(values) * SCALE_PARTS), math.ceil(max(values) * SCALE_PARTS)
    return low / SCALE_PARTS, max(high, low + 1) / SCALE_PARTS


def _place(scale: tuple[float, float], value: float, width: int) -> str:
    """Where a value stands in a strip of this width; what is drawn there has room at both ends."""
    low, high = scale
    return f"{STRIP_MARGIN + (width - 2 * STRIP_MARGIN) * (value - low) / (high - low):.1f}"


def _is_ensemble(report: Report, method: str) -> bool:
    return any(one.together for block in report.blocks for (of, _), one in block.accuracies.items() if of == method)


def _number_of_results(report: Report) -> int:
    accuracies = [(block, *item) for block in report.blocks for item in block.accuracies.items()]
    return len(
        {(block.model, block.shots, dataset, seed) for block, (_, dataset), one in accuracies for seed in one.by_seed}
    )


def _ensembles(block: Block, method: str, dataset: Dataset) -> list[Accuracy]:
    """What all prompts together make of a method."""
    found = block.accuracies.items()
    return [one for (of, on), one in found if on == dataset and one.together and without_ensemble(of) == method]


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
                "entries": tables.leaderboard_row(report, one),
                "details": [
                    (d, block.accuracies.get((one.method, d)), against_raw.get(d), _ensembles(block, one.method, d))
                    for d in board.datasets
                ],
            }
