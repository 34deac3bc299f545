"""Documents: what stands between two markers is written from a results file.

<!-- table: NAME VIEW -->      <!-- figure: NAME -->
…                              …
<!-- end of table -->          <!-- end of figure -->
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from lm_eval_proca.errors import ResultsError
from results.results_file import ROOT
from results.table import Table

PLACES = ("*.md", "docs/*.md", "benchmarks/*.md", "task_configs/*.md")
BLOCK = re.compile(r"^<!-- (table|figure): ([^\n]*) -->\n(?:.*?)^<!-- end of \1 -->$", re.DOTALL | re.MULTILINE)
BEGIN = re.compile(r"^<!-- (?:table|figure): [^\n]* -->$", re.MULTILINE)
FENCE = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
"""Examples: nothing is written there."""
DECIMAL = re.compile(r"(?<![\d.])\d+\.\d+(?!\.?\d)")
"""A measured number, as a rule; 1.2.3 is a version."""
CODE_OR_ADDRESS = re.compile(r"`[^`]*`|\]\([^)]*\)")
"""Numbers there are settings or names of papers."""
MEASURED = 3
"""A table with so many decimal numbers shows measurements."""
AGE = ("*Made with version ", "*Version ")
"""How the line begins that says how old the numbers above it are."""


def documents(root: Path = ROOT) -> list[Path]:
    return [path for pattern in PLACES for path in sorted(root.glob(pattern))]


def written(document: Path, tables: Mapping[str, Table], root: Path = ROOT) -> str:
    """The text of a document with its tables and figures as the results files have them."""

    def block(found: re.Match[str]) -> str:
        begin, end = found[0].splitlines()[0], found[0].splitlines()[-1]
        return f"{begin}\n{_shown(found[1], found[2].split(), document, tables, root)}\n{end}"

    parts = FENCE.split(document.read_text(encoding="utf-8"))
    if any(len(BEGIN.findall(part)) != len(BLOCK.findall(part)) for part in parts[::2]):
        raise ResultsError(f"{document} has a marker without its end.")
    parts[::2] = [BLOCK.sub(block, part) for part in parts[::2]]
    return "".join(parts)


def _shown(kind: str, words: list[str], document: Path, tables: Mapping[str, Table], root: Path) -> str:
    table = tables.get(" ".join(words[:1]))
    if kind == "figure" and table is not None and table.figure and len(words) == 1:
        return table.show_figure(document, root)
    if kind == "table" and table is not None and len(words) == 2 and words[1] in table.views:
        return table.show(words[1], root)
    known = [f"{name} {view}" for name, one in tables.items() for view in one.views]
    raise ResultsError(f"{document} has a marker `{kind}: {' '.join(words)}`; known are {', '.join(known)}.")


def undated(document: Path) -> Iterator[str]:
    """Measurements outside markers that do not say how old they are: the first line of each."""
    text = BLOCK.sub("", FENCE.sub("", document.read_text(encoding="utf-8")))
    blocks = [block for block in re.split(r"\n\s*\n", text) if block.strip()]
    for block, following in pairwise([*blocks, ""]):
        cells = "\n".join(line for line in block.splitlines() if line.startswith("|"))
        measured = len(DECIMAL.findall(CODE_OR_ADDRESS.sub("", cells))) >= MEASURED
        if (measured or block.startswith("![")) and not following.startswith(AGE):
            yield block.splitlines()[0]
