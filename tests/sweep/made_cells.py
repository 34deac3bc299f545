from __future__ import annotations

from pathlib import Path
from typing import Any

from lm_eval_proca.sweep.cell import Cell
from lm_eval_proca.sweep.task_files import TaskFile
from tests.conftest import ROOT


def made_cell(task: str, *given: Any, file: Path | None = None, **more: Any) -> Cell:
    """A cell of one of our tasks, or of the task in a file."""
    return Cell(task, TaskFile(file or ROOT / "task_configs" / f"{task}.yaml"), *given, **more)
