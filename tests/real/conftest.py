from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT


@pytest.fixture
def lm_eval_cli(smollm2: Path, real_data: Path, lm_eval_project: Path) -> Callable[..., subprocess.CompletedProcess]:
    """The real `lm_eval` command on the real model and rows, on one or several processes of one thread each."""

    def run(*arguments: str, processes: int = 1, model: str = "hf-shared-prefix") -> subprocess.CompletedProcess:
        return subprocess.run(
            command(smollm2, *arguments, processes=processes, model=model),
            env=environment(real_data, lm_eval_project),
            capture_output=True,
            text=True,
            timeout=400,
        )

    return run


def environment(real_data: Path, lm_eval_project: Path) -> dict[str, str]:
    path = os.pathsep.join([str(lm_eval_project), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "PROCA_DATA_DIR": str(real_data), "OMP_NUM_THREADS": "1"}


def command(smollm2: Path, *arguments: str, processes: int = 1, model: str = "hf-shared-prefix") -> list[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    return [
        sys.executable,
        *launcher,
        "-m",
        "lm_eval",
        "--model",
        model,
        "--model_args",
        f"pretrained={smollm2},dtype=float32",
        "--device",
        "cpu",
        *arguments,
    ]


def results_in(folder: Path) -> dict:
    (file,) = folder.rglob("results_*.json")
    return json.loads(file.read_text())
