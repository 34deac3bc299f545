"""The tables themselves, before any format draws them: rows of entries, and the words around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from lm_eval_proca.compare.blocks import DECIMALS, Accuracy, Average, method_order
from lm_eval_proca.compare.comparison import Report
from lm_eval_proca.compare.leaderboard import SIGNIFICANCE_LEVEL, Leaderboard, Standing, Tally
from lm_eval_proca.metrics import grouped, mean

DASH = "\N{EN DASH}"
MISSING = DASH
FEWER_SEEDS = "†"
NOT_AVERAGED = "‡"
WORST = "≥"

ENSEMBLE_CAPTION = (
    "A method xN answers with all N prompts of a run together; raw under each of them is what it is compared with."
)
EXACT_TEST = (
    "an exact paired test over the same documents (McNemar's, with the differences of a document summed over seeds)"
)
CROSSED_TEST = (
    "a paired test with prompts and documents as crossed sources of error (under one prompt, McNemar's exact test over "
    "the same documents)"
)
PREFERENCE_CAPTION = (
    "Share of predictions minus share of gold labels, in points: above 0 the model prefers the label. SD of recalls: "
    "standard deviation of recall over the labels, 0 without selection bias (Zheng et al., 2024), in points. Documents "
    "of all tasks and seeds with these labels are counted together."
)


@dataclass(frozen=True)
class Entry:
    """`value` is what a sortable table sorts by; `spread` is a standard deviation; `note` follows in small print.

    `bar`, between -1 and 1, is drawn beside it on the page.
    """

    text: str
    value: float | str | None = None
    spread: str = ""
    note: str = ""
    bold: bool = False
    number: bool = True
    bar: float | None = None


@dataclass(frozen=True)
class Table:
    """One table; every row has as many entries as there are columns."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    caption: str

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        return [any(entry.number for entry in column) for column in zip(*self.rows, strict=True)]


def percent(fraction: float, sign: bool = False) -> str:
    return f"{100 * fraction:{'+' if sign else ''}.{DECIMALS}f}"


def word(text: str) -> Entry:
    return Entry(text, value=text, number=False)


def number(value: float | None, shown: Callable[[Any], str] = str) -> Entry:
    return Entry(MISSING) if value is None else Entry(shown(value), value=value)


def points(fraction: float) -> str:
    return percent(fraction, sign=True)


def accuracy_table(report: Report, model: str) -> Table:
    """The paper's table for one model: shots and methods down, datasets across."""
    datasets = report.datasets_of(model)
    blocks = report.blocks_of(model)
    rows = []
    for block in blocks:
        best = {dataset: block.best(dataset) for dataset in (*datasets, None)}
        for method in block.methods:
            entries = [
                accuracy_entry(block.accuracies.get((method, one)), method in best[one], one in block.averaged)
                for one in datasets
            ]
            average = average_entry(block.average(method), method in best[None])
            rows.append([number(block.shots), word(method), *entries, average])
    what, one = ("prompts", "prompt") if report.several_prompts else ("seeds", "seed")
    caption = (
        f"Accuracy in per cent: mean ± standard deviation (n-1) over {what}; no ± with one {one}. Bold or *: best "
        f"method for that number of shots. {average_caption(report)}"
    )
    if report.several_prompts:
        caption += f" {WORST}: the worst prompt. {ENSEMBLE_CAPTION}"
    if any(accuracy.fewer_seeds for block in blocks for accuracy in block.accuracies.values()):
        caption += f" {fewer_seeds_caption(report)}"
    if any(dataset not in block.averaged for block in blocks for _, dataset in block.accuracies):
        caption += (
            f" {NOT_AVERAGED}: not in the average. The task has several columns because its results differ in their "
            f"conditions; the average takes the one with most models, then most results."
        )
    names = [dataset.name for dataset in datasets]
    return Table(model, ["Shots", "Method", *names, "Average"], rows, caption)


def fewer_seeds_caption(report: Report) -> str:
    what = "prompts" if report.several_prompts else "seeds"
    return f"{FEWER_SEEDS}: fewer {what} than other results with as many shots, or an average over such."


def average_caption(report: Report) -> str:
    text = f"Average: over all tasks with results for that number of shots; {DASH} where a row lacks one of them."
    averages = (one.average for board in report.leaderboards for one in board.standings)
    partial = next((average for average in averages if average.partial), None)
    if partial is None:
        return text
    some, every = partial.present, partial.expected
    return f"{text} ({some} of {every}): the row has {some} of the {every} tasks compared here."


def accuracy_entry(accuracy: Accuracy | None, bold: bool, averaged: bool = True) -> Entry:
    if accuracy is None:
        return Entry(MISSING)
    spread = "" if accuracy.sd is None else percent(accuracy.sd)
    note = (FEWER_SEEDS if accuracy.fewer_seeds else "") + ("" if averaged else NOT_AVERAGED)
    if accuracy.several and accuracy.sd is not None:
        note = f"{note} {WORST}{percent(accuracy.worst)}".strip()
    return Entry(percent(accuracy.mean), value=accuracy.mean, spread=spread, note=note, bold=bold)


def average_entry(average: Average, bold: bool = False) -> Entry:
    counted = f"({average.present} of {average.expected})" if average.partial else ""
    fewer = FEWER_SEEDS if average.fewer_seeds and average.mean is not None else ""
    return replace(number(average.mean, percent), note=f"{fewer} {counted}".strip(), bold=bold)


def leaderboard_columns(report: Report) -> list[str]:
    """One model has nobody to be ranked or tested against."""
    among_models = ["Rank in method", f"W{DASH}L vs models"] if len(report.models) > 1 else []
    return ["Rank", "Model", "Method", "Average", "Gain", f"W{DASH}L vs raw", *among_models]


def leaderboard_row(report: Report, one: Standing) -> list[Entry]:
    average = average_entry(one.average)
    if one.interval is not None:
        low, high = map(percent, one.interval)
        average = replace(average, note=f"[{low}, {high}] {average.note}".strip())
    entries = [number(one.rank), word(one.model), word(one.method), average]
    entries += [number(one.gain, points), tally_entry(one.raw_tally)]
    if len(report.models) > 1:
        entries += [number(one.model_rank), tally_entry(one.model_tally)]
    return entries


def tally_entry(tally: Tally | None) -> Entry:
    if tally is None:
        return Entry(MISSING)
    tested = tally.significant_wins is not None
    note = f"({tally.significant_wins}{DASH}{tally.significant_losses})" if tested else "(no test)"
    return Entry(f"{tally.wins}{DASH}{tally.losses}", value=tally.wins - tally.losses, note=note)


def leaderboard_caption(report: Report) -> str:
    between = ", or than another model's under the same method, summed over models" if len(report.models) > 1 else ""
    what, test = "seeds", EXACT_TEST
    if report.several_prompts:
        what, test = "prompts", CROSSED_TEST
    caption = (
        f"Accuracy and gain over raw in per cent, ranked within one number of shots. {average_caption(report)} It is "
        f"over the {what} that all models have, with a 95 % interval over {what} and documents where these are "
        f"logged; gains, wins and losses are over those that both sides have. "
        f"W{DASH}L: datasets on which the mean is higher{DASH}lower than raw{between}; in brackets "
        f"those significant at {SIGNIFICANCE_LEVEL:g} by {test}, Holm-adjusted over the leaderboard; (no test): "
        f"documents not logged or not the same."
    )
    if report.several_prompts:
        caption += f" {ENSEMBLE_CAPTION}"
    fewer_seeds = any(one.average.fewer_seeds for board in report.leaderboards for one in board.standings)
    return f"{caption} {fewer_seeds_caption(report)}" if fewer_seeds else caption


def leaderboard_table(report: Report, board: Leaderboard) -> Table:
    over = ", ".join(dataset.name for dataset in board.datasets)
    title = f"Leaderboard, {board.shots} shot{'' if board.shots == 1 else 's'}: average over {over}"
    rows = [leaderboard_row(report, one) for one in board.standings]
    return Table(title, leaderboard_columns(report), rows, leaderboard_caption(report))


def order_table(report: Report) -> Table | None:
    """How calibration changes the order of models; None where there is nothing to order."""
    rows = []
    for board in report.leaderboards:
        for change in board.order_changes:
            raw, calibrated = (" > ".join(map(" = ".join, order)) for order in (change.raw_order, change.order))
            which = [number(board.shots), word(change.method), number(change.kendall_tau, "{:+.2f}".format)]
            rows.append([*which, word(raw), word("unchanged" if calibrated == raw else calibrated)])
    caption = (
        "Kendall's tau-b between the models' raw and calibrated averages: +1 same order, -1 reversed. Models "
        "without an average are left out."
    )
    columns = ["Shots", "Method", "Kendall's tau", "Raw order", "Order under the method"]
    return Table("Order of models", columns, rows, caption) if rows else None


def prompt_order_table(report: Report) -> Table | None:
    """How often the order of two models changes with the prompt; None where no two models have several prompts."""
    rows = []
    for board in report.leaderboards:
        ranked = grouped((one for one in board.standings if one.rank is not None), lambda one: one.method)
        for method in sorted(ranked, key=method_order):
            for better, worse in pairwise(ranked[method]):
                compared = better.against_models.get(worse.model, ())
                changes = [one.order_changes for one in compared for _ in range(one.prompts)]
                known = [one for one in changes if one is not None]
                if known and len(known) == len(changes):
                    pair = [number(board.shots), word(method), word(f"{better.model} > {worse.model}")]
                    gap = number(mean(one.difference for one in compared), points)
                    rows.append([*pair, number(mean(known), percent), gap, tally_entry(Tally.of(compared))])
    caption = (
        "Models that follow each other in the leaderboard of a method; difference in points. Changes: the share "
        "of prompts, in per cent, under which the order of the two on a dataset is not that of their means; a tie "
        "counts half."
    )
    columns = ["Shots", "Method", "Models", "Changes", "Difference", f"W{DASH}L"]
    return Table("Order of models, prompt by prompt", columns, rows, caption) if rows else None


def preference_tables(report: Report) -> list[Table]:
    """Who prefers which label: one table per list of label words, which is for the page; others have it as data."""
    tables = []
    for labels in dict.fromkeys(one.labels for one in report.preferences):
        alike = [one for one in report.preferences if one.labels == labels]
        widest = max(abs(surplus) for one in alike for surplus in one.predicted_minus_gold) or 1.0
        rows = []
        for one in alike:
            bars = [replace(number(s, points), bar=s / widest) for s in one.predicted_minus_gold]
            which = [number(one.shots), word(one.model), word(one.method), number(one.documents)]
            rows.append([*which, *bars, number(one.recall_sd, percent)])
        title = f"Preferred labels: {', '.join(alike[0].tasks[:3])}{', …' if len(alike[0].tasks) > 3 else ''}"
        columns = ["Shots", "Model", "Method", "Documents", *labels, "SD of recalls"]
        tables.append(Table(title, columns, rows, PREFERENCE_CAPTION))
    return tables


def all_tables(report: Report) -> list[Table]:
    """In reading order: leaderboards, order of models, then one table per model."""
    orders = (order_table(report), prompt_order_table(report))
    return [
        *(leaderboard_table(report, board) for board in report.leaderboards),
        *(order for order in orders if order is not None),
        *(accuracy_table(report, model) for model in report.models),
    ]


def caption_once(tables: Sequence[Table]) -> list[tuple[Table, str]]:
    """Each table with its caption, which is left out where the next table's says the same."""
    following = [*(table.caption for table in tables), None][1:]
    return [(one, "" if one.caption == after else one.caption) for one, after in zip(tables, following, strict=True)]
