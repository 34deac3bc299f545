"""Private modules of other packages: only those that CONTRIBUTING.md lists with a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from lm_eval_proca_discovery import AFTER_IMPORT
from tests.conftest import ROOT


def imported(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def is_private(module: str) -> bool:
    return module != "__future__" and any(part.startswith("_") for part in module.split("."))


def test_private_modules_are_listed_with_a_reason():
    files = [*(ROOT / "lm_eval_proca").rglob("*.py"), ROOT / "lm_eval_proca_discovery.py"]
    used = set().union(*map(imported, files)) | set(AFTER_IMPORT)
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Private modules of others")[2]
    listed = re.findall(r"^\| `([\w.]+)` \| \S", section.partition("\n## ")[0], re.MULTILINE)
    assert {module for module in used if is_private(module)} == set(listed)
