"""How much label proportions and orders of demonstrations matter (Figure 6)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lm_eval_proca.paper.analysis import Analysis
from lm_eval_proca.paper.display import accuracies_by, looks_of, percent, side_by_side
from lm_eval_proca.paper.observations import Observations, Part, two_labels
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.grid import Grid


def chosen_demonstrations(table: ScoreTable) -> str | None:
    if table.record.demonstration_counts is None or table.record.order_seed is None:
        return "not run with the settings demonstration_counts and order_seed"
    return None


class Proportions(Analysis):
    """Figure 6: a box per method and label proportion, over the orders of the demonstrations."""

    plan = Grid(("proca_sst2",), shots=(8,), seeds=(0,), orders=12)
    requirements = (two_labels, chosen_demonstrations)
    printed = ("positives", "calibrator")
    panel_size = (11.0, 3.8)

    @classmethod
    def parts_of(cls, table: ScoreTable) -> Iterator[Part]:
        _, positives = table.record.demonstration_counts or (0, 0)
        yield {"positives": positives, "order": table.record.order_seed}, None

    def draw(self, ax: Any, observed: Observations, panel: Any) -> None:
        shots = observed[0]["num_fewshot"]
        positives = sorted({one["positives"] for one in observed})
        looks = looks_of(self.observed)
        width = 0.82 / len(looks)
        for method, look, places in side_by_side(ax, [f"{shots - p}:{p}" for p in positives], looks, width):
            colour = look["color"]
            boxes = ax.boxplot(
                [percent(group) for group in accuracies_by(observed, "positives", positives, calibrator=method)],
                positions=places,
                widths=width * 0.8,
                patch_artist=True,
                manage_ticks=False,
                boxprops={"facecolor": colour, "alpha": 0.55, "edgecolor": colour},
                medianprops={"color": "#222222", "linewidth": 1.4},
                whiskerprops={"color": colour},
                capprops={"color": colour},
                flierprops={"marker": ".", "markersize": 4, "markerfacecolor": colour, "markeredgecolor": colour},
            )
            boxes["boxes"][0].set_label(look["label"])
        ax.set_xlim(-0.6, len(positives) - 0.4)
        ax.set_xlabel(f"negative : positive among {shots} demonstrations")
