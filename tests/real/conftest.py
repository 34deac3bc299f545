from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.launch import SECONDS, launchers


@pytest.fixture(scope="session")
def lm_eval_cli(smollm2: Path, real_data: Path, lm_eval_project: Path) -> Callable[..., subprocess.CompletedProcess]:
    """The real `lm_eval` command on the real model and rows, on one or several processes of one thread each."""

    def run(
        *arguments: str, processes: int = 1, launcher: Sequence[str] = (), model: str = "hf-shared-prefix"
    ) -> subprocess.CompletedProcess:
        return subprocess.run(
            command(launcher or launchers(processes=processes)[0], smollm2, *arguments, model=model),
            env=environment(real_data, lm_eval_project),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )

    return run


def environment(real_data: Path, lm_eval_project: Path) -> dict[str, str]:
    path = os.pathsep.join([str(lm_eval_project), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "PROCA_DATA_DIR": str(real_data), "OMP_NUM_THREADS": "1"}


def command(launcher: Sequence[str], smollm2: Path, *arguments: str, model: str = "hf-shared-prefix") -> list[str]:
    model_args = f"pretrained={smollm2},dtype=float32"
    return [*launcher, "-m", "lm_eval", "--model", model, "--model_args", model_args, "--device", "cpu", *arguments]


def results_in(folder: Path) -> dict:
    (file,) = folder.rglob("results_*.json")
    return json.loads(file.read_text())
