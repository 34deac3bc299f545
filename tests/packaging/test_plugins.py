"""Calibrators of a user's own package: installed by pip, found by their entry point, in fresh interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.score_tables import made_table

CALIBRATOR = """
from lm_eval_proca import Calibrator
from lm_eval_proca.calibration.base import number

class MedianCalibrator(Calibrator):
    _allowed = {"strength": number(0)}

    def __init__(self, *, strength=1.0):
        self.strength = strength

    def _fit(self, scores):
        import numpy as np
        self.median_ = np.median(scores, axis=0)

    def _calibrate(self, scores):
        return scores - self.strength * self.median_
"""
PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "median-calibration"
version = "1"
[project.entry-points."lm_eval_proca.calibrators"]
median = "median_calibration:MedianCalibrator"
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(repository: Path, tmp_path: Path, lm_eval_project: Path) -> Run:
    """Run Python with packages of the folder `installed` beside this one and lm-eval."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(map(str, (repository, lm_eval_project, tmp_path / "installed")))
        return subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )

    return run


@pytest.fixture
def table(tmp_path: Path) -> str:
    path = tmp_path / "table.parquet"
    made_table().save(path)
    return str(path)


def rows_of(printed: str) -> dict[str, str]:
    """The line of each calibrator in the first table that `calibrate` prints."""
    return {line.split()[0]: line for line in printed.split("\n\n")[0].splitlines() if line.strip()}


def install(project: Path, target: Path) -> None:
    """As a user does; the module shows a class that another module defines."""
    (project / "median_calibration").mkdir(parents=True)
    (project / "pyproject.toml").write_text(PYPROJECT)
    (project / "median_calibration" / "__init__.py").write_text("from median_calibration.median import *\n")
    (project / "median_calibration" / "median.py").write_text(CALIBRATOR)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, str(project)], check=True)


def test_an_installed_package_adds_its_calibrator(run: Run, table: str, tmp_path: Path) -> None:
    install(tmp_path / "project", tmp_path / "installed")
    command = ["-m", "lm_eval_proca.cli", "calibrate", table, "--calibrators"]
    done = run(*command, "bc,median", "--param", "median.strength=0")
    assert done.returncode == 0, done.stderr
    rows = rows_of(done.stdout)
    assert {"none", "bc", "median"} <= rows.keys()
    assert rows["median"].split()[1:] == rows["none"].split()[1:] != rows["bc"].split()[1:]
    wrong = run(*command, "median", "--param", "median.strength=-1")
    assert "'strength' parameter of MedianCalibrator must be a number of at least 0" in wrong.stderr

    filters = "import lm_eval_proca_discovery; from lm_eval.filters import filter_registry as f; print(f.get('median'))"
    assert "CalibrationFilter" in run("-c", filters).stdout

    done = run(*command, "median", "--save", "median.json")
    assert done.returncode == 0, done.stderr
    load = "from lm_eval_proca import load_calibrator; print(load_calibrator('median.json').fit_report()['method'])"
    assert run("-c", load).stdout == "median\n"
    (tmp_path / "installed").rename(tmp_path / "uninstalled")
    assert "There is no calibrator named 'median'; the known ones are bc" in run("-c", load).stderr


def test_a_leaderboard_of_a_finished_sweep_has_a_row_for_a_new_package(
    run: Run, tmp_path: Path, tiny_gpt2: Path, data_dir: Path
) -> None:
    """The sweep knew nothing of the package; one command, without a model."""
    cli = ["-m", "lm_eval_proca.cli"]
    sweep = ["sweep", "--model_args", f"pretrained={tiny_gpt2}", "--device", "cpu", "--tasks", "proca_sst2"]
    sweep += ["--num_fewshot", "0", "--seeds", "0", "--limit", "30", "--output_path", "finished", "--metadata"]
    done = run(*cli, *sweep, f"proca.data_dir={data_dir}", "proca.estimate_size=40", "proca.calibrators=bc/proca_h")
    assert done.returncode == 0, done.stderr
    install(tmp_path / "project", tmp_path / "installed")
    done = run(*cli, "calibrate", "finished", "--output", "again")
    assert done.returncode == 0, done.stderr
    board = done.stdout.split("Leaderboard")[1].split("Accuracy and gain")[0]
    assert {line.split()[2] for line in board.splitlines()[4:] if line.strip()} == {"raw", "bc", "median", "proca_h"}
    named = run(*cli, "calibrate", "finished", "--calibrators", "none,median", "--output", "named")
    assert " median " in named.stdout
    compared = run(*cli, "compare", "named", "--format", "csv")
    assert {line.split(",")[2] for line in compared.stdout.splitlines()[1:]} == {"raw", "median"}


BROKEN = {
    "absent": ("nowhere_to_be_found:Calibrator", "ModuleNotFoundError: No module named 'nowhere_to_be_found'"),
    "unnamed": ("broken:Unnamed", "AttributeError: module 'broken' has no attribute 'Unnamed'"),
    "other": ("broken:Other", "CalibrationError: it is no subclass of lm_eval_proca.Calibrator"),
    "unfinished": ("broken:Unfinished", "TypeError: Can't instantiate abstract class Unfinished"),
    "demanding": ("broken:Demanding", "TypeError: Demanding.__init__() missing 1 required"),
    "elsewhere": ("broken:Elsewhere", "CalibrationError: it has fits_on='train'; give one of estimate, content_free"),
    "proca": ("broken:Fine", "CalibrationError: its name is taken, give it another"),
    "none": ("broken:Fine", "CalibrationError: its name is taken, give it another"),
}
MODULE = """
from lm_eval_proca import BatchCalibrator, Calibrator

class Other: pass
class Unfinished(Calibrator): pass
class Demanding(BatchCalibrator):
    def __init__(self, wish): self.wish = wish
class Elsewhere(BatchCalibrator): fits_on = "train"
class Fine(BatchCalibrator): pass
"""


def test_a_broken_package_costs_its_own_row_and_one_sentence(run: Run, table: str, tmp_path: Path) -> None:
    described = tmp_path / "installed" / "broken-1.dist-info"
    described.mkdir(parents=True)
    (described.parent / "broken.py").write_text(MODULE)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1\n")
    points = {**{name: address for name, (address, _) in BROKEN.items()}, "fine": "broken:Fine"}
    lines = [f"{name} = {address}" for name, address in points.items()]
    (described / "entry_points.txt").write_text("\n".join(["[lm_eval_proca.calibrators]", *lines, ""]))
    options = ["--calibrators", "bc,fine,proca", "--param", "proca.n_init=2"]
    done = run("-m", "lm_eval_proca.cli", "calibrate", table, *options)
    assert done.returncode == 0, done.stderr
    assert {"none", "bc", "fine", "proca"} <= rows_of(done.stdout).keys()
    told = done.stderr.splitlines()
    for name, (address, reason) in BROKEN.items():
        [sentence] = [line for line in told if f"The calibrator {name} = {address} of an installed package" in line]
        assert reason in sentence
    assert "Traceback" not in done.stderr
    known = run("-c", "from lm_eval_proca.calibration.registry import CALIBRATORS; print(*CALIBRATORS)").stdout.split()
    assert known == ["bc", "bc_prob", "conca", "domain", "proca", "proca_a", "proca_h", "ucpa", "fine"]
