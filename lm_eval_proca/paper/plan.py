"""The runs that each of the paper's analyses needs, as cells that resume where they stopped."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from lm_eval_proca.sweep.cell import Cell, GivenSettings

SEEDS = (0, 1, 2, 3, 4)
"""The paper averages over five prompts."""

PROPORTION_SHOTS = 8
ORDERS = 12
"""Figure 6: the orders of demonstrations per proportion."""


@dataclass(frozen=True)
class Plan:
    """Every task at every number of shots under every seed, with the same settings."""

    tasks: tuple[str, ...]
    shots: tuple[int, ...] = (4,)
    seeds: tuple[int, ...] = SEEDS
    settings: GivenSettings = ()
    orders: int = 0
    """If any: every proportion of positive demonstrations in so many orders, a cell for each (two labels)."""

    def cells(self, limit: int | None = None) -> list[Cell]:
        return [
            Cell(task, shots, seed, limit, (*self.settings, *varied))
            for task, shots, seed in product(self.tasks, self.shots, self.seeds)
            for varied in self._proportions(shots) or [()]
        ]

    def _proportions(self, shots: int) -> list[GivenSettings]:
        return [
            (("demonstration_counts", f"{shots - positives}/{positives}"), ("order_seed", order))
            for positives, order in product(range(shots + 1), range(self.orders))
        ]


NINE = tuple(f"proca_{name}" for name in ("sst2", "sst5", "mr", "subj", "ap", "agnews", "dbpedia", "rte", "trec"))

PAPER: dict[str, Plan] = {
    "boundaries": Plan(("proca_sst2",), seeds=(0, 1)),
    "thresholds": Plan(("proca_sst2",), seeds=(0, 1, 2, 3)),
    "templates": Plan(tuple(f"proca_sst2_template{k}" for k in range(1, 10))),
    # 450 rows of one label at the most extreme level of 500: the pool must hold that many of each label.
    "imbalance": Plan(("proca_sst2", "proca_subj"), settings=(("estimate_size", 1200),)),
    "proportions": Plan(("proca_sst2",), shots=(PROPORTION_SHOTS,), seeds=(0,), orders=ORDERS),
    "selection": Plan(("proca_agnews", "proca_dbpedia"), shots=(0, 1, 4, 8)),
    "size": Plan(("proca_sst2", "proca_mr", "proca_subj", "proca_agnews", "proca_trec"), seeds=(0,)),
    "formats": Plan(("proca_sst2", "proca_agnews", "proca_ap"), shots=(0, 4)),
    "prototypes": Plan(NINE, shots=(0, 4), seeds=(0, 1, 2)),
}
