"""The page: one self-contained file, no network, from the same tables as every other format.

Whatever comes from a result file is escaped here, and a content security policy allows no script but our own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from lm_eval_proca import __version__
from lm_eval_proca.report.blocks import RAW_METHOD, Accuracy, Block
from lm_eval_proca.report.comparison import Report, as_dict
from lm_eval_proca.report.datasets import Dataset
from lm_eval_proca.report.leaderboard import Comparison, Leaderboard, Standing
from lm_eval_proca.report.tables import (
    MISSING,
    Entry,
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

escape = html.escape
OPEN_TABLES = 3
SHOTS, METHOD = "Shots", "Method"
HIDDEN_COLUMNS = (SHOTS, METHOD)
"""Of the leaderboard: shots where one number of them is chosen, methods on a phone."""
BEST_IS_LOW = (SHOTS, "Rank", "Rank in method")


def render_page(report: Report) -> str:
    """The whole page as text."""
    template, style, script = (
        importlib.resources.files("lm_eval_proca.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("page.html", "page.css", "page.js")
    )
    tables = caption_once([accuracy_table(report, model) for model in report.models])
    calibrated = [method for method in report.methods if method != RAW_METHOD]
    columns = {dataset for model in report.models for dataset in report.datasets_of(model)}
    results = {(block.model, dataset, block.shots, seed) for block in report.blocks
               for (_, dataset), accuracy in block.accuracies.items() for seed in accuracy.by_seed}  # fmt: skip
    parts = {
        "style": style,
        "script": script,
        # Browsers read CR LF as LF before they hash.
        "script_hash": base64.b64encode(hashlib.sha256(script.replace("\r\n", "\n").encode()).digest()).decode(),
        "data": _script_data({"models": report.models, "accuracies": _shown(report)}),
        "summary": f"{_count(len(report.models), 'model')} · {_count(len(columns), 'dataset')} · "
        f"{_count(len(results), 'result')}",
        "version": escape(__version__),
        "notices": _notices(report),
        "shots_options": _options(report.shots, selected=_most_complete(report.leaderboards)),
        "method_options": _options(report.methods),
        "calibrated_options": _options(calibrated, selected="proca" if "proca" in calibrated else None),
        "leaderboard": _leaderboard(report),
        "leaderboard_caption": escape(leaderboard_caption(report)),
        "order": _order(report),
        "preferences": _preferences(report),
        "tables": "".join(_model(*captioned, open_=k < OPEN_TABLES) for k, captioned in enumerate(tables)),
    }
    # In one pass: what is put in is never searched again.
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], template)


def _shown(report: Report) -> list[dict[str, object]]:
    """The accuracies, with the text of their mean: Python and JavaScript round halves differently."""
    return [
        {**one, "shown": MISSING if one["mean"] is None else percent(one["mean"])}
        for one in as_dict(report)["accuracies"]
    ]


def _script_data(document: object) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(document, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c").replace(">", "\\u003e")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _most_complete(boards: Sequence[Leaderboard]) -> int:
    """What to show first: the shots with most ranked rows, then the most shots."""
    return max(boards, key=lambda board: (sum(one.rank is not None for one in board.standings), board.shots)).shots


def _options(values: Iterable[object], selected: object = None) -> str:
    return "".join(
        f'<option value="{escape(str(value))}"{" selected" if value == selected else ""}>{escape(str(value))}</option>'
        for value in values
    )


def _notices(report: Report) -> str:
    if not report.notices:
        return ""
    items = "".join(f"<li><b>{escape(kind)}</b>: {escape(text)}</li>" for kind, text in report.notices)
    opened = " open" if report.damaged else ""
    title = f"{_count(len(report.notices), 'note')} about these results"
    return f'<details class="notices"{opened}><summary>{title}</summary><ul>{items}</ul></details>'


def _header(columns: Sequence[str], numeric: Sequence[bool], sorted_by: str | None = None) -> str:
    cells = []
    for name, is_number in zip(columns, numeric, strict=True):
        first = "ascending" if not is_number or name in BEST_IS_LOW else "descending"
        kind = _class("number" if is_number else "", name.lower() if name in HIDDEN_COLUMNS else "")
        current = ' aria-sort="ascending"' if name == sorted_by else ""
        cells.append(
            f'<th scope="col"{kind} data-first="{first}"{current}><button type="button">{escape(name)}</button></th>'
        )
    return f"<thead><tr>{''.join(cells)}</tr></thead>"


def _class(*names: str) -> str:
    used = " ".join(filter(None, names))
    return f' class="{used}"' if used else ""


def _entry(entry: Entry, kind: str = "", content: str | None = None, style: str = "") -> str:
    if content is None:
        content = f"<b>{escape(entry.text)}</b>" if entry.bold else escape(entry.text)
    if entry.spread:
        content += f"<small>±{escape(entry.spread)}</small>"
    if entry.note:
        content += f"<small>{escape(entry.note)}</small>"
    if entry.bar is not None:
        content = _bar(entry.bar) + content
    value = "" if entry.value is None else f' data-value="{escape(str(entry.value))}"'
    return f"<td{_class('number' if entry.number else '', kind)}{value}{style}>{content}</td>"


def _leaderboard(report: Report) -> str:
    columns = leaderboard_columns(report)
    names = [*columns[:2], SHOTS, *columns[2:]]
    numeric = [name not in ("Model", "Method") for name in names]
    blocks = {(block.model, block.shots): block for block in report.blocks}
    bodies = [
        _leaderboard_row(report, board, one, blocks[one.model, board.shots], f"details-{board.shots}-{k}", len(names))
        for board in report.leaderboards
        for k, one in enumerate(board.standings)
    ]
    return f'<table id="leaderboard">{_header(names, numeric, sorted_by="Rank")}{"".join(bodies)}</table>'


def _leaderboard_row(report: Report, board: Leaderboard, one: Standing, block: Block, key: str, width: int) -> str:
    rank, model, method, average, gain, *others = leaderboard_row(report, one)
    owner, slash, own = one.model.rpartition("/")
    shown = f'<span class="owner">{escape(owner + slash)}</span><wbr>{escape(own)}'
    # On a phone the method stands below the name, in place of its column.
    tag = f'<span class="tag">{escape(one.method)}</span>'
    expand = f'<button type="button" class="expand" aria-expanded="false" aria-controls="{key}">'
    share = f' style="--share:{average.value:.4f}"' if isinstance(average.value, float) else ""
    direction = "" if one.gain is None else "gain" if one.gain >= 0 else "loss"
    entries = [
        _entry(rank),
        _entry(model, "name", f"{expand}<span>{shown}</span></button>{tag}"),
        _entry(Entry(str(board.shots), value=board.shots), SHOTS.lower()),
        _entry(method, METHOD.lower()),
        _entry(average, "average" if share else "", style=share),
        _entry(gain, direction),
        *map(_entry, others),
    ]
    return (
        f'<tbody class="row" data-model="{escape(one.model)}" data-shots="{board.shots}" '
        f'data-method="{escape(one.method)}"><tr>{"".join(entries)}</tr>'
        f'<tr class="details" id="{key}" hidden><td colspan="{width}"><div class="inner">'
        f"{_details(one, block)}</div></td></tr></tbody>"
    )


def _details(one: Standing, block: Block) -> str:
    """Behind a leaderboard row: every dataset, its seeds, and its test against raw."""
    against_raw = {comparison.dataset: comparison for comparison in one.against_raw}
    head = ["Dataset", "Accuracy", "Seeds", *(["Gain", "Documents + / -", "p (Holm)"] if against_raw else [])]
    lines = [
        _detail_entries(
            dataset, block.accuracies.get((one.method, dataset)), against_raw.get(dataset), bool(against_raw)
        )
        for dataset in block.averaged
    ]
    return (
        f'<table class="plain"><thead><tr>{"".join(f"<th scope=col>{name}</th>" for name in head)}</tr></thead>'
        f"<tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>"
    )


def _detail_entries(dataset: Dataset, accuracy: Accuracy | None, against_raw: Comparison | None, tested: bool) -> str:
    entries = [Entry(dataset.name, number=False), accuracy_entry(accuracy, bold=False)]
    drawn = [_entry(entry) for entry in entries] + [f"<td>{_seeds(accuracy)}</td>"]
    if tested:
        test = against_raw.test if against_raw else None
        drawn += [
            f"<td class=number>{percent(against_raw.difference, sign=True) if against_raw else MISSING}</td>",
            f"<td class=number>{f'{test.better} / {test.worse}' if test else MISSING}</td>",
            f"<td class=number>{_p_value(against_raw.p_holm) if against_raw and test else 'no test'}</td>",
        ]
    return "".join(drawn)


def _p_value(p: float | None) -> str:
    return MISSING if p is None else "&lt; 0.001" if p < 0.001 else f"{p:.3f}"


def _seeds(accuracy: Accuracy | None) -> str:
    """A strip from 0 to 100 per cent with a tick per seed."""
    if accuracy is None:
        return MISSING
    width = 120
    ticks = "".join(
        f'<line class="seed calibrated" x1="{value * width:.1f}" x2="{value * width:.1f}" y1="2" y2="14"/>'
        for value in accuracy.values.values()
    )
    said = ", ".join(f"seed {seed}: {percent(value)}" for seed, value in accuracy.values.items())
    return (
        f'<svg width="{width}" height="16" role="img" aria-label="{escape(said)}"><title>{escape(said)}</title>'
        f'<line class="grid" x1="0" x2="{width}" y1="8" y2="8"/>{ticks}</svg>'
    )


def _scrolling(table: Table, caption: str, kinds: Sequence[str] = ()) -> str:
    numeric = [any(row[k].number for row in table.rows) for k in range(len(table.columns))]
    rows, last = [], None
    for row in table.rows:
        starts = last is not None and row[0].text != last
        last = row[0].text
        entries = (_entry(entry, kinds[k] if kinds else "") for k, entry in enumerate(row))
        rows.append(f"<tr{_class('first' if starts else '')}>{''.join(entries)}</tr>")
    head = _header(table.columns, numeric)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table class="plain">{head}<tbody>{"".join(rows)}</tbody></table></div>'
        + (f'<p class="quiet">{escape(caption)}</p>' if caption else "")
    )


def _order(report: Report) -> str:
    table = order_table(report)
    if table is None:
        return ""
    drawn = _scrolling(table, table.caption, kinds=["", "", "", "order", "order"])
    return f'<section aria-labelledby="order-title"><h2 id="order-title">{escape(table.title)}</h2>{drawn}</section>'


def _preferences(report: Report) -> str:
    """The table of preferred labels, its points as bars to both sides of the gold share."""
    tables = preference_tables(report)
    if not tables:
        return ""
    drawn = [
        f"<h3>{escape(table.title)}</h3>{_scrolling(_with_bars(table), caption)}"
        for table, caption in caption_once(tables)
    ]
    return (
        '<section aria-labelledby="preferences-title"><h2 id="preferences-title">Who prefers which label</h2>'
        f"{''.join(drawn)}</section>"
    )


def _with_bars(table: Table) -> Table:
    points = slice(4, len(table.columns) - 1)
    widest = max(abs(float(entry.value or 0)) for row in table.rows for entry in row[points]) or 1.0
    rows = [
        [
            replace(entry, bar=float(entry.value or 0) / widest) if k in range(*points.indices(len(row))) else entry
            for k, entry in enumerate(row)
        ]
        for row in table.rows
    ]
    return replace(table, rows=rows)


def _bar(share: float) -> str:
    """To the right for more than the gold share, to the left for less; 1 is the longest in its table."""
    half = 30
    start, length = half + min(0.0, share) * half, abs(share) * half
    return (
        f'<svg class="preference" width="{2 * half}" height="10" aria-hidden="true"><line class="grid" x1="{half}" '
        f'x2="{half}" y1="0" y2="10"/><rect class="{"more" if share > 0 else "less"}" x="{start:.1f}" y="1" '
        f'width="{length:.1f}" height="8"/></svg>'
    )


def _model(table: Table, caption: str, open_: bool) -> str:
    opened = " open" if open_ else ""
    return (
        f'<details class="model"{opened}><summary>{escape(table.title)}</summary>{_scrolling(table, caption)}</details>'
    )
