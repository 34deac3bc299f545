"""The walk of one document in CONTRIBUTING.md: at most ten hops, and every function that it names exists."""

from __future__ import annotations

import ast
import re

from tests.conftest import ROOT

ROW = re.compile(r"^\| \d+ \| `([\w/.]+)` \| `(\w+)` \| ", re.MULTILINE)


def functions_of(file: str) -> set[str]:
    nodes = ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8")))
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef)}


def test_the_walk_names_functions_that_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = ROW.findall(text.partition("<!-- walk -->")[2].partition("<!-- end of the walk -->")[0])
    assert 5 <= len(walk) <= 10
    for file, function in walk:
        assert function in functions_of(file), f"{function} is not in {file}"


def test_folders_that_are_named_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:lm_eval_proca|tests|task_configs)/[\w/]+(?:\.py)?)`", text))
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]
