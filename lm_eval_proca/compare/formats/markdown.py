"""For READMEs and model cards: GitHub's tables."""

from __future__ import annotations

import html
import re

from lm_eval_proca.compare.comparison import Report
from lm_eval_proca.compare.tables import Entry, all_tables, caption_once


def render(report: Report) -> str:
    parts = []
    for table, caption in caption_once(all_tables(report)):
        lines = [_row([escape(name) for name in table.columns]), _row(["---:" if n else ":---" for n in table.numeric])]
        lines += [_row([_entry(entry) for entry in row]) for row in table.rows]
        parts += [f"### {escape(table.title)}", "\n".join(lines), *([escape(caption)] if caption else [])]
    if report.notices:
        parts.append("\n".join(f"- **{notice.kind}**: {escape(notice.text)}" for notice in report.notices))
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    """Names may hold anything; nothing of them may become markup."""
    return re.sub(r"([\\`*\[\]|~])", r"\\\1", html.escape(text, quote=False))


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _entry(entry: Entry) -> str:
    text = f"**{escape(entry.text)}**" if entry.bold else escape(entry.text)
    return text + (f" ±{entry.spread}" if entry.spread else "") + (f" {escape(entry.note)}" if entry.note else "")
