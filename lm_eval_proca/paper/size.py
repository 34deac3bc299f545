"""How much the size of the estimate set matters (Figure 7)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from lm_eval_proca.metrics import mean_by
from lm_eval_proca.paper.analysis import Analysis, Plan
from lm_eval_proca.paper.display import Display, lines_with_spread
from lm_eval_proca.paper.observations import PROMPT, Part, estimate_set, observe_parts
from lm_eval_proca.scores.score_table import ScoreTable

SMALLEST_PER_LABEL = 4
NUMBER_OF_SIZES = 10
DRAWS = 5


def _smaller_parts(table: ScoreTable) -> Iterator[Part]:
    """Several draws of each of the default sizes; at the last, the whole pool, all draws are the same rows."""
    pool = len(table.index_of("estimate"))
    for chosen, draw in product(default_sizes(len(table.labels), pool), range(DRAWS)):
        rows = np.sort(np.random.default_rng(draw).choice(pool, chosen, replace=False))
        yield {"estimate_size": chosen, "draw": draw}, rows


def default_sizes(labels: int, pool: int) -> list[int]:
    """Ten sizes, evenly spaced on a log scale from four rows per label to the whole pool; fewer if that is tiny."""
    smallest = min(SMALLEST_PER_LABEL * labels, pool)
    return sorted({round(value) for value in np.geomspace(smallest, pool, NUMBER_OF_SIZES).tolist()})


class SizeDisplay(Display):
    """Figure 7: accuracy over the size of the estimate set, one panel per task."""

    panel_by = PROMPT

    def draw(self, ax: Any, panel: Any) -> None:
        observed = self.of_panel(panel)
        lines_with_spread(ax, observed, "estimate_size")
        ax.set_xscale("log")
        sizes = sorted({one["estimate_size"] for one in observed})
        ax.set_xticks(sizes[::3], [str(size) for size in sizes[::3]])
        ax.minorticks_off()
        ax.set_xlabel("estimate set size")


ANALYSIS = Analysis(
    Plan(("proca_sst2", "proca_mr", "proca_subj", "proca_agnews", "proca_trec"), seeds=(0,)),
    partial(observe_parts, parts_of=_smaller_parts),
    mean_by(*PROMPT, "estimate_size", "calibrator"),
    SizeDisplay,
    [estimate_set],
    note="at the size of the whole pool all draws are the same rows, so the spread there is zero.",
)
