"""The import graph of the package, drawn from its code: one way, without cycles, and as CONTRIBUTING.md shows it.

`python -m tests.test_imports` draws it there again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from tests.conftest import ROOT

PACKAGE = "lm_eval_proca"
DOCUMENT = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- import graph: python -m tests.test_imports -->\n", "<!-- end of the import graph -->\n"

LAYERS = (
    ("cli",),
    ("paper", "compare", "classify"),
    ("sweep", "runs"),
    ("harness", "models"),
    ("scores",),
    ("calibration", "crossed"),
    ("metrics", "distributed"),
    ("files", "representations"),
    ("errors",),
)
"""A folder or module may import what stands below it. A new one gets its place here."""


def imported(file: Path) -> Iterator[str]:
    """Every module or name that a file imports, at the top or inside a function; not what only type checkers read."""

    def visit(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                yield from visit(child)
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}, line {node.lineno}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child)

    yield from visit(ast.parse(file.read_text(encoding="utf-8")))


def part_of(name: str) -> str | None:
    """The folder or module at the top of the package that a dotted name is in."""
    top, _, rest = name.partition(".")
    part = rest.partition(".")[0]
    return part if top == PACKAGE and part not in ("", "__version__") else None


def import_graph() -> dict[str, set[str]]:
    """Which folders and modules of the package import which others."""
    graph: dict[str, set[str]] = {}
    for file in sorted((ROOT / PACKAGE).rglob("*.py")):
        part = file.relative_to(ROOT / PACKAGE).parts[0].removesuffix(".py")
        found = {other for name in imported(file) if (other := part_of(name)) is not None}
        graph.setdefault(part, set()).update(found - {part})
    assert not graph.pop("__init__"), "the package itself resolves its names when they are asked for"
    return graph


def in_order(names: set[str]) -> list[str]:
    return [name for layer in LAYERS for name in layer if name in names]


def drawn() -> str:
    graph = import_graph()
    width = max(map(len, graph))
    lines = [
        f"{name:{width}}  ->  {', '.join(in_order(graph[name]))}" if graph[name] else name
        for name in in_order(set(graph))
    ]
    return "```\n" + "\n".join(lines) + "\n```\n"


def test_imports_point_one_way_without_cycles() -> None:
    graph = import_graph()
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    assert set(graph) <= set(level), "a new folder or module: give it a place in LAYERS"
    assert set().union(*graph.values()) <= set(graph), "a name of the package itself, or a module that is not there"
    upwards = [(a, b) for a, others in graph.items() for b in others if level[a] >= level[b]]
    assert upwards == []
    TopologicalSorter(graph).prepare()  # raises if there is a cycle


def test_the_graph_in_contributing_is_that_of_the_code() -> None:
    shown = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert shown == drawn(), "draw it again: python -m tests.test_imports"


if __name__ == "__main__":
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    DOCUMENT.write_text(before + BEGIN + drawn() + END + rest.partition(END)[2], encoding="utf-8")
