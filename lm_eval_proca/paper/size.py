"""How much the size of the estimate set matters (Figure 7)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from lm_eval_proca.paper.analysis import Analysis
from lm_eval_proca.paper.display import lines_with_spread
from lm_eval_proca.paper.observations import Observations, Part, estimate_set
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.grid import Grid

SMALLEST_PER_LABEL = 4
NUMBER_OF_SIZES = 10
DRAWS = 5


def default_sizes(labels: int, pool: int) -> list[int]:
    """Ten sizes, evenly spaced on a log scale from four rows per label to the whole pool; fewer if that is tiny."""
    smallest = min(SMALLEST_PER_LABEL * labels, pool)
    return sorted({round(value) for value in np.geomspace(smallest, pool, NUMBER_OF_SIZES).tolist()})


class Size(Analysis):
    """Figure 7: accuracy over the size of the estimate set, one panel per task."""

    plan = Grid(("proca_sst2", "proca_mr", "proca_subj", "proca_agnews", "proca_trec"), seeds=(0,))
    requirements = (estimate_set,)
    printed = ("estimate_size", "calibrator")
    note = "at the size of the whole pool all draws are the same rows, so the spread there is zero."

    @classmethod
    def parts_of(cls, table: ScoreTable) -> Iterator[Part]:
        pool = len(table.index_of("estimate"))
        for size, draw in product(default_sizes(len(table.labels), pool), range(DRAWS)):
            rows = np.sort(np.random.default_rng(draw).choice(pool, size, replace=False))
            yield {"estimate_size": size, "draw": draw}, rows

    def draw(self, ax: Any, observed: Observations, panel: Any) -> None:
        sizes = lines_with_spread(ax, observed, "estimate_size")
        ax.set_xscale("log")
        ax.set_xticks(sizes[::3], [str(size) for size in sizes[::3]])
        ax.minorticks_off()
        ax.set_xlabel("estimate set size")
