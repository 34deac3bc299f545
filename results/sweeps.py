"""The runs that tables are made of: a command as documents show it, and the cells that it fills."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from lm_eval_proca import cli
from lm_eval_proca.cli import analyze, sweep
from lm_eval_proca.cli.demo import packaged_model
from lm_eval_proca.cli.options import model_of, names, settings_of
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.scores.identity import IDENTITY_FILE
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.cell import Cell, Model, cell_folder, is_finished
from lm_eval_proca.sweep.grid import Grid
from lm_eval_proca.sweep.self_labelled import first_pass

SMOLLM2 = "SMOLLM2"
DTYPE = "dtype=bfloat16,softmax_dtype=float32"
"""As most models are run; on processors with instructions for it, it is faster than float32."""
SMOLLM2_ARGS = f"${SMOLLM2},{DTYPE}"
EVERY_METHOD = "proca.calibrators=conca/domain/bc/bc_prob/ucpa/proca/proca_a/proca_h"
VARIABLE = re.compile(r"\$(\w+)")
INTERRUPTED = 130
ASSIGNMENT = f"{SMOLLM2}=$(lm-eval-proca demo --print-model-args)"


UNFINISHED = "The runs did not finish; what happened is said above. The same command goes on from here."


@dataclass(frozen=True)
class Runs(ABC):
    """A command of one model, whose `--model_args` are a variable: no path of a machine is in it."""

    command: str
    model: str
    """What tables call the model."""

    _module: ClassVar[ModuleType]
    """Of the command."""

    @property
    def variable(self) -> str:
        [name] = VARIABLE.findall(self.command)
        return str(name)

    @property
    def is_given(self) -> bool:
        return self.variable in {SMOLLM2, *os.environ}

    @abstractmethod
    def run(self) -> None:
        """Run what is not finished. If nothing is left, no model is loaded."""

    def tables(self) -> list[ScoreTable]:
        """The score tables of all cells, those of each cell in the order of its prompts."""
        return [table for cell in self._cells for table in self._tables_of(cell)]

    def procedures(self) -> list[int]:
        """The `PROCEDURE` of every finished cell."""
        found = [folder / IDENTITY_FILE for cell in self._all_cells if (folder := self._find(cell)) is not None]
        return [int(json.loads(file.read_text(encoding="utf-8"))["versions"]["procedure"]) for file in found]

    @property
    def _words(self) -> list[str]:
        found = packaged_model() if self.variable == SMOLLM2 and SMOLLM2 not in os.environ else {}
        model_args = os.environ.get(self.variable) or ",".join(f"{key}={value}" for key, value in found.items())
        return shlex.split(VARIABLE.sub(lambda _: model_args, self.command))

    @cached_property
    def _args(self) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        self._module.add_arguments(parser)
        return parser.parse_args(self._words[2:])

    @property
    @abstractmethod
    def _lm(self) -> Model: ...

    @property
    @abstractmethod
    def _cells(self) -> list[Cell]: ...

    @property
    def _all_cells(self) -> list[Cell]:
        return self._cells

    @property
    @abstractmethod
    def _folder(self) -> Path:
        """Where the cells are."""

    def _tables_of(self, cell: Cell) -> list[ScoreTable]:
        files = self._folder_of(cell).glob("scores/*.parquet")
        tables = sorted(map(ScoreTable.load, files), key=lambda table: table.record.prompt)
        return [replace(table, record=replace(table.record, model=self.model)) for table in tables]

    def _folder_of(self, cell: Cell) -> Path:
        folder = self._find(cell)
        if folder is None:
            raise ResultsError(f"{cell.name} of {self.model} is not finished in {self._folder}.")
        return folder

    def _find(self, cell: Cell) -> Path | None:
        """The cell that the command would make now, or else the newest that an earlier version made of it."""
        exact = cell_folder(self._folder, self._lm, cell)
        earlier = exact.parent.glob(f"{cell.name}-{'[0-9a-f]' * 12}")
        by_age = sorted(earlier, key=lambda folder: (folder / IDENTITY_FILE).stat().st_mtime, reverse=True)
        return next(filter(is_finished, [exact, *by_age]), None)


@dataclass(frozen=True)
class Sweep(Runs):
    """`lm-eval-proca sweep`. Sweeps with the same settings share their cells, whatever tasks each of them names."""

    _module: ClassVar[ModuleType] = sweep

    def run(self) -> None:
        print(f"$ {self.command}", flush=True)
        call(self._words)

    def tables_of_first_passes(self) -> list[ScoreTable]:
        """Of a self-labelled sweep: the cells at 0 shots that it begins with."""
        return [table for cell in map(first_pass, self._cells) for table in self._tables_of(cell)]

    @property
    def _self_labelled(self) -> bool:
        return bool(self._args.demonstrations == sweep.SELF)

    @cached_property
    def _lm(self) -> Model:
        return model_of(self._args, self._args.model_args[0])

    @cached_property
    def _cells(self) -> list[Cell]:
        args = self._args
        settings = settings_of(args)
        grid = Grid(names(args.tasks), args.num_fewshot, args.seeds, settings, args.estimate, self._self_labelled)
        return grid.cells(args.include_path, args.limit)

    @property
    def _all_cells(self) -> list[Cell]:
        return [*(map(first_pass, self._cells) if self._self_labelled else ()), *self._cells]

    @property
    def _folder(self) -> Path:
        return Path(self._args.output_path)


@dataclass(frozen=True)
class AnalysisRuns(Runs):
    """The runs that `lm-eval-proca analyze NAME --model_args …` makes; what it fits and draws, tables do themselves."""

    _module: ClassVar[ModuleType] = analyze

    def run(self) -> None:
        print(f"$ {self.command}", flush=True)
        _, failures = analyze.tables_of_model({self._args.name: self._cells}, self._args)
        if failures:
            raise ResultsError(" ".join([*failures, UNFINISHED]))

    @cached_property
    def _lm(self) -> Model:
        return model_of(self._args, self._args.model_args)

    @cached_property
    def _cells(self) -> list[Cell]:
        return analyze.cells_of(self._args.name, self._args)

    @property
    def _folder(self) -> Path:
        return analyze.runs_folder(self._args)


def call(words: Sequence[str]) -> None:
    """Run one of our commands, in this process."""
    status = cli.main(words[1:])
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    if status:
        raise ResultsError(UNFINISHED)
