"""For people at a terminal."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from lm_eval_proca.compare.comparison import Report
from lm_eval_proca.compare.tables import Entry, all_tables, caption_once, leaderboard_table


def render(report: Report, width: int | None = None, color: bool = False, *, only_leaderboards: bool = False) -> str:
    """Tables as wide as they need to be, or folded to `width`."""
    target = io.StringIO()
    # A table is folded on a terminal only; no table has 1000 columns.
    console = Console(file=target, width=width or 1000, force_terminal=color, highlight=False)
    words = width or 120
    boards = [leaderboard_table(report, board) for board in report.leaderboards]
    for table, caption in caption_once(boards if only_leaderboards else all_tables(report)):
        title = Text(table.title, style="bold")
        drawn = RichTable(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for name, is_number in zip(table.columns, table.numeric, strict=True):
            drawn.add_column(Text(name), justify="right" if is_number else "left", overflow="fold")
        for row in table.rows:
            drawn.add_row(*(_text(entry, color) for entry in row))
        console.print(drawn)
        if caption:
            console.print(Text(caption, style="dim"), width=words)
            console.print()
    for notice in report.notices:
        console.print(Text.assemble((f"{notice.kind}: ", "bold yellow"), notice.text), width=words)
    return target.getvalue()


def _text(entry: Entry, color: bool) -> Text:
    best_without_bold = entry.bold and not color
    text = Text(f"*{entry.text}" if best_without_bold else entry.text, style="bold" if entry.bold else "")
    if entry.spread:
        text.append(f" ±{entry.spread}", style="not bold dim")
    if entry.note:
        text.append(f" {entry.note}", style="not bold")
    return text
