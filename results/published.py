"""Published label probabilities as runs that exist already: written as lm-eval would have logged them, then calibrated.

$PROCA_MCQ is a folder with a Parquet file for each model: the data of Zheng et al. (2024), in the columns dataset,
shots, subject, index, gold and probabilities.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import yaml

from lm_eval_proca.errors import ResultsError
from lm_eval_proca.runs.output_folder import result_files
from lm_eval_proca.scores.identity import PROCEDURE
from results.output_folders import Matrix, write_output
from results.sweeps import call

SMALLEST_PROBABILITY = 1e-12
"""Some are 0 after rounding."""


@dataclass(frozen=True)
class PublishedRuns:
    """A run for each model and number of shots, and `lm-eval-proca calibrate` on all of them."""

    folder: Path = Path(".results", "mcq")
    variable: str = "PROCA_MCQ"

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def calibrated(self) -> Path:
        """Its name says how it was fitted, so that fits of an earlier version are not taken for those of this one."""
        return self.folder / f"calibrated-{PROCEDURE}"

    @property
    def command(self) -> str:
        return f"lm-eval-proca calibrate {self.runs} --output {self.calibrated}"

    @property
    def is_given(self) -> bool:
        return self.variable in os.environ

    def run(self) -> None:
        for file in sorted(Path(os.environ[self.variable]).glob("*.parquet")):
            write_runs(file, self.runs)
        print(f"$ {self.command}", flush=True)
        if self._missing():
            # It prints a row for every task of every run.
            with (self.folder / "calibrate.log").open("w") as log, redirect_stdout(log):
                call(shlex.split(self.command))

    def results(self) -> list[Path]:
        """The results files with calibrated rows."""
        if missing := self._missing():
            raise ResultsError(f"{len(missing)} runs have no calibrated results, such as {missing[0]}.")
        return result_files([self.calibrated])

    def procedures(self) -> list[int]:
        return [PROCEDURE] * len(self.results())

    def _missing(self) -> list[Path]:
        targets = [self.calibrated / file.relative_to(self.runs) for file in result_files([self.runs])]
        return [target for target in targets if not target.exists()]


def write_runs(file: Path, output: Path) -> None:
    """The runs of one model, a folder for each number of shots; what is written already stays."""
    import pandas as pd

    for shots, of_shots in pd.read_parquet(file).groupby("shots"):
        folder = output / f"{shots}-shot"
        if any((folder / file.stem).glob("results_*.json")):  # which is written last
            continue
        tasks = {}
        for (dataset, subject), rows in of_shots.sort_values("index").groupby(["dataset", "subject"], observed=True):
            scores = np.log(np.clip(np.stack(rows["probabilities"]), SMALLEST_PROBABILITY, None))
            name = f"mmlu_{subject}" if dataset == "mmlu" else dataset
            tasks[name] = Matrix(scores, rows["gold"].to_numpy(), "ABCDE"[: scores.shape[1]])
        write_output(folder, file.stem, tasks, groups=mmlu_groups(tasks), shots=int(shots), letters=0)


def mmlu_groups(tasks: Iterable[str]) -> dict[str, list[str]]:
    """lm-eval's group `mmlu` and its four parts, as its YAML files say, with those of its subjects that are here."""
    import lm_eval

    here = set(tasks)
    groups: dict[str, list[str]] = {}
    for file in sorted((Path(lm_eval.__file__).parent / "tasks" / "mmlu" / "default").glob("mmlu_*.yaml")):
        task = yaml.safe_load(file.read_text(encoding="utf-8"))
        if task["task"] in here:
            groups.setdefault(task["tag"].removesuffix("_tasks"), []).append(task["task"])
    return {"mmlu": list(groups), **groups} if groups else {}
