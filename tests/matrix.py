"""The fast tests on every Python we promise, with the lowest and the highest versions of every dependency range.

`make test-matrix` runs all cells, `python -m tests.matrix 3.10 3.13-lowest` some of them. uv resolves the versions
and keeps one environment per cell in .matrix; the environments share files through its cache. "Lowest" is the lowest
version that has a wheel for that Python. PyPI's torch brings the CUDA libraries, several gigabytes; where
UV_TORCH_BACKEND=cpu works it saves them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".matrix"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
RESOLUTIONS = {"lowest": "lowest-direct", "highest": "highest"}
EXTRAS = ("demo", "plots", "dev")
TESTS = (
    *("lm_eval_proca/calibration", "lm_eval_proca/metrics.py", "tests/calibration", "tests/compare"),
    *("tests/task_configs", "tests/models", "tests/cli", "tests/harness/test_command_line.py"),
    *(str(file.relative_to(ROOT)) for file in sorted(ROOT.glob("tests/test_*.py"))),
)


class Cell(NamedTuple):
    python: str
    end: str

    def __str__(self) -> str:
        return f"{self.python}-{self.end}"

    @property
    def requirements(self) -> Path:
        return FOLDER / f"{self}.txt"

    @property
    def environment(self) -> Path:
        return FOLDER / str(self)


class Result(NamedTuple):
    passed: bool
    summary: str
    seconds: float


class StepFailed(Exception):
    pass


def all_pythons() -> None:
    """pyenv hides every Python but one unless it is told otherwise."""
    if shutil.which("pyenv"):
        versions = subprocess.run(["pyenv", "versions", "--bare"], capture_output=True, text=True).stdout.split()
        os.environ.setdefault("PYENV_VERSION", ":".join(versions))


def ranges() -> dict[str, str]:
    """Name and range of all that we depend on directly."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    dependencies = text[text.index("\ndependencies = [") : text.index("\n[project.scripts]")]
    return dict(re.findall(r'"([\w-]+)(?:\[\w+\])?(>=[^"]+)"', dependencies))


def uv(what: str, *arguments: str | Path) -> None:
    done = subprocess.run([sys.executable, "-m", "uv", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        raise StepFailed(what)


def install(cell: Cell) -> None:
    only_wheels = [f"--only-binary={name}" for name in ranges()]
    extras = [f"--extra={extra}" for extra in EXTRAS]
    uv(
        *("no versions found", "pip", "compile", "pyproject.toml", *extras, *only_wheels),
        *("--resolution", RESOLUTIONS[cell.end], "--python-version", cell.python, "--output-file", cell.requirements),
    )
    uv("no such Python", "venv", "--allow-existing", "--python", cell.python, cell.environment)
    uv("not installed", "pip", "sync", "--python", cell.environment, cell.requirements)
    uv("not installed", "pip", "install", "--python", cell.environment, "--no-deps", "--editable", ".")


def run(cell: Cell) -> Result:
    start = time.monotonic()
    try:
        install(cell)
    except StepFailed as failed:
        return Result(False, str(failed), time.monotonic() - start)
    command = [str(cell.environment / "bin" / "python"), "-m", "pytest", "-q", "-m", "not slow", *TESTS]
    log = FOLDER / f"{cell}.log"
    with log.open("w") as stream:
        tests = subprocess.run([*command, "-p", "no:cacheprovider"], cwd=ROOT, stdout=stream, stderr=stream)
    last = log.read_text().strip().rpartition("\n")[2]
    return Result(tests.returncode == 0, last.strip("= ").rpartition(" in ")[0] or last, time.monotonic() - start)


def versions(cell: Cell) -> dict[str, str]:
    lines = cell.requirements.read_text().splitlines() if cell.requirements.exists() else []
    return dict(line.split("==") for line in lines if "==" in line)


def markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])


def main(chosen: list[str]) -> int:
    every = [Cell(python, end) for python in PYTHONS for end in RESOLUTIONS]
    cells = [cell for cell in every if not chosen or str(cell) in chosen or cell.python in chosen]
    all_pythons()
    FOLDER.mkdir(exist_ok=True)
    results = {}
    for cell in cells:
        results[cell] = run(cell)
        print(f"{cell}: {results[cell].summary}", flush=True)

    found = {cell: versions(cell) for cell in cells}
    rows = [[name, bound, *(found[cell].get(name, "") for cell in cells)] for name, bound in ranges().items()]
    print("\n" + markdown(["", "range", *map(str, cells)], rows) + "\n")
    rows = [
        [str(cell), "passed" if one.passed else "FAILED", one.summary, f"{one.seconds:.0f} s"]
        for cell, one in results.items()
    ]
    print(markdown(["Python and versions", "", "tests", "time"], rows))
    failed = [cell for cell in cells if not results[cell].passed]
    print("\n".join(f"{cell}: see {FOLDER / str(cell)}.log" for cell in failed))
    return len(failed) > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
