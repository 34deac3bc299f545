"""Two small datasets, and sweeps as processes of their own that can be killed."""

from __future__ import annotations

import json
import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from lm_eval_proca.calibration.registry import CALIBRATORS

RUN = """
import os, sys
log = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.dup2(log, 1), os.dup2(log, 2)
from lm_eval_proca.cli import main
sys.exit(main({argv!r}))
"""


@pytest.fixture(scope="session")
def two_datasets(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `proca.data_dir` for proca_sst2 and proca_mr."""
    folder = tmp_path_factory.mktemp("two_datasets")
    for file in (data_dir / "sst2").glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        (folder / "sst2").mkdir(exist_ok=True)
        (folder / "sst2" / file.name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        (folder / "mr").mkdir(exist_ok=True)
        renamed = ({"text": row["sentence"].upper(), "label": row["label"]} for row in rows)
        (folder / "mr" / file.name).write_text("".join(json.dumps(row) + "\n" for row in renamed))
    return folder


@pytest.fixture(scope="session")
def start_command() -> Callable[[list[str], Path], BaseProcess]:
    """Starts `lm-eval-proca …` as a process; its output goes to a file.

    The processes are forked from a server that has imported torch, lm-eval and the calibrators once: a sweep is killed
    and started again many times here.
    """
    context = multiprocessing.get_context("forkserver")
    preload = ["lm_eval.models.huggingface", "lm_eval_proca.sweep.generation", "lm_eval_proca.sweep.grid"]
    preload += [address.partition(":")[0] for address in CALIBRATORS.values()]
    context.set_forkserver_preload(preload)

    def start(argv: list[str], log: Path) -> BaseProcess:
        process = context.Process(target=exec, args=(RUN.format(log=str(log), argv=argv),))
        process.start()
        return process

    return start
