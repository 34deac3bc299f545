"""For papers: `booktabs` tables in the style of the paper's own, standard deviations as subscripts."""

from __future__ import annotations

from lm_eval_proca.compare.comparison import Report
from lm_eval_proca.compare.tables import DASH, FEWER_SEEDS, NOT_AVERAGED, WORST, Entry, Table, all_tables

_ESCAPES = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    DASH: "--", "±": r"$\pm$", WORST: r"$\geq$", FEWER_SEEDS: r"$^{\dagger}$", NOT_AVERAGED: r"$^{\ddagger}$",
}  # fmt: skip


def render(report: Report) -> str:
    comments = [f"% {notice.kind}: {notice.text}" for notice in report.notices]
    return "\n".join([r"% Needs \usepackage{booktabs}.", *comments, *map(_table, all_tables(report))])


def escape(text: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in text)


def _table(table: Table) -> str:
    lines = [
        r"\begin{table}\small\centering",
        rf"\caption{{{escape(table.title)}. {escape(table.caption)}}}",
        rf"\begin{{tabular}}{{{''.join('r' if is_number else 'l' for is_number in table.numeric)}}}",
        r"\toprule",
        " & ".join(escape(name) for name in table.columns) + r" \\",
        r"\midrule",
        *(" & ".join(_entry(entry) for entry in row) + r" \\" for row in table.rows),
        r"\bottomrule",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _entry(entry: Entry) -> str:
    text = rf"\textbf{{{escape(entry.text)}}}" if entry.bold else escape(entry.text)
    if entry.spread:
        text += rf"$_{{{entry.spread}}}$"
    if entry.note:
        text += ("" if entry.note.startswith((FEWER_SEEDS, NOT_AVERAGED)) else "~") + escape(entry.note)
    return text
