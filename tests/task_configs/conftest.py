"""The shipped task files, loaded by lm-eval itself and fed with real rows from a local folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks import TaskManager

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def task_configs() -> Path:
    return REPOSITORY / "task_configs"


@pytest.fixture(scope="session")
def paper() -> str:
    source = REPOSITORY.parent / "shared" / "paper" / "prototypical-calibration.tex"
    if not source.is_file():
        pytest.skip(f"no source of the paper at {source}")
    return source.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def load_task(task_configs: Path, real_data: Path) -> Callable[[str], ConfigurableTask]:
    """Each task as a run gets it, built once."""
    metadata = {"proca.data_dir": str(real_data)}
    manager = TaskManager(include_path=str(task_configs), include_defaults=False, metadata=metadata)

    @cache
    def load(name: str) -> ConfigurableTask:
        return manager.load(name)["tasks"][name]

    return load
