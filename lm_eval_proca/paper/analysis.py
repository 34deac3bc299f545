"""What an analysis is: the runs that it needs, what it measures on their tables, how that is printed and drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from lm_eval_proca.metrics import Observation
from lm_eval_proca.paper.display import Display
from lm_eval_proca.paper.observations import Calibrators, Requirement, Tables
from lm_eval_proca.sweep.cell import Cell, GivenSettings
from lm_eval_proca.sweep.task_files import TaskFile


@dataclass(frozen=True)
class Plan:
    """Every task at every number of shots under every seed, with the same settings: the runs of the paper."""

    tasks: tuple[str, ...]
    """Names of tasks or groups."""
    shots: tuple[int, ...] = (4,)
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    settings: GivenSettings = ()
    orders: int = 0
    """If any: every proportion of positive demonstrations in so many orders, a cell for each (two labels)."""

    def cells(self, task_files: Mapping[str, TaskFile], limit: int | None = None) -> list[Cell]:
        return [
            Cell(task, shots, seed, limit, (*self.settings, *varied), file)
            for (task, file), shots, seed in product(task_files.items(), self.shots, self.seeds)
            for varied in self._proportions(shots) or [()]
        ]

    def _proportions(self, shots: int) -> list[GivenSettings]:
        return [
            (("demonstration_counts", f"{shots - positives}/{positives}"), ("order_seed", order))
            for positives, order in product(range(shots + 1), range(self.orders))
        ]


@dataclass(frozen=True)
class Analysis:
    """One analysis; `ANALYSIS` in its module."""

    plan: Plan
    observe: Callable[[Tables, Calibrators], list[Observation]]
    """Every accuracy, with what it belongs to."""
    printed: Callable[[Sequence[Observation]], list[Observation]]
    """What the command prints of them."""
    display: Callable[..., Display]
    requirements: Sequence[Requirement] = ()
    """What a table must have."""
    clouds: Callable[[Tables], list[Observation]] | None = None
    """Single documents, for displays that show them."""
    note: str = ""
    """What must be known to read the result."""
