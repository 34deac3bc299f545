"""A small lm-eval: the installed one, real in all its code, with a handful of its fourteen thousand tasks.

Indexing all built-in tasks takes lm-eval ten seconds each time; finding ours does not depend on their number.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
KEPT_TASKS = {"arc", "mmlu_pro"}

# As in lm-eval's own: setuptools, which makes an editable flat layout importable through a meta path finder.
LM_EVAL_PYPROJECT = """\
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "lm_eval"
version = "{version}"
[project.scripts]
lm_eval = "lm_eval.__main__:cli_evaluate"
[tool.setuptools.packages.find]
include = ["lm_eval*"]
[tool.setuptools.package-data]
lm_eval = ["**/*.yaml", "tasks/**/*"]
"""


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def lm_eval_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project folder from which lm-eval can be installed, or imported."""
    spec = importlib.util.find_spec("lm_eval")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent

    def uninteresting(folder: str, names: list[str]) -> set[str]:
        skipped = {"__pycache__"}
        if Path(folder) == installed / "tasks":
            skipped |= {name for name in names if (installed / "tasks" / name).is_dir() and name not in KEPT_TASKS}
        return skipped

    project = tmp_path_factory.mktemp("lm_eval_project")
    shutil.copytree(installed, project / "lm_eval", ignore=uninteresting)
    (project / "pyproject.toml").write_text(LM_EVAL_PYPROJECT.format(version=importlib.metadata.version("lm_eval")))
    return project
