"""How much the template matters: nine of SST-2 (Figure 4)."""

from __future__ import annotations

from typing import Any

from lm_eval_proca.paper.analysis import Analysis
from lm_eval_proca.paper.display import accuracies_by, distinct, looks_of, short_name, side_by_side, spread_of
from lm_eval_proca.paper.observations import Observations
from lm_eval_proca.sweep.grid import Grid


class Templates(Analysis):
    """Figure 4: every method under every template, which the task's name says; mean and spread over prompts."""

    plan = Grid(tuple(f"proca_sst2_template{k}" for k in range(1, 10)))
    panel_size = (9.0, 3.6)
    panel_by = ("model", "num_fewshot")

    def draw(self, ax: Any, observed: Observations, panel: Any) -> None:
        tasks = distinct(one["task"] for one in observed)
        names = [short_name(task) for task in tasks]
        for method, look, places in side_by_side(ax, names, looks_of(self.observed), 0.16):
            means, spread = spread_of(accuracies_by(observed, "task", tasks, calibrator=method))
            ax.errorbar(places, means, yerr=spread, fmt="o", markersize=5, capsize=3, linewidth=1.4, **look)
