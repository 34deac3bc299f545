"""How much label proportions and orders of demonstrations matter (Figure 6)."""

from __future__ import annotations

from typing import Any

from lm_eval_proca.metrics import Observation, mean_by
from lm_eval_proca.paper.analysis import Analysis, Plan
from lm_eval_proca.paper.display import Display, accuracies_by, beside, looks_of, percent
from lm_eval_proca.paper.observations import PROMPT, Calibrators, Tables, observe_methods, two_labels
from lm_eval_proca.scores.score_table import ScoreTable


def proportions(tables: Tables, calibrators: Calibrators) -> list[Observation]:
    """Accuracy of every method per number of positive demonstrations and order (two labels)."""
    return observe_methods(
        tables,
        calibrators,
        lambda one: {"positives": (one.demonstration_counts or (0, 0))[1], "order": one.order_seed},
    )


def chosen_demonstrations(table: ScoreTable) -> str | None:
    record = table.record
    if record.demonstration_counts is None or record.order_seed is None:
        return "not run with the settings demonstration_counts and order_seed"
    return None


class ProportionDisplay(Display):
    """Figure 6: a box per method and label proportion, over the orders of the demonstrations."""

    panel_size = (11.0, 3.8)
    panel_by = PROMPT

    def draw(self, ax: Any, panel: Any) -> None:
        observed = self.of_panel(panel)
        shots = observed[0]["num_fewshot"]
        positives = sorted({one["positives"] for one in observed})
        looks = looks_of(self.observed)
        width = 0.82 / len(looks)
        for k, (method, look) in enumerate(looks.items()):
            groups = accuracies_by(observed, method, "positives", positives)
            colour = look["color"]
            boxes = ax.boxplot(
                [percent(group) for group in groups],
                positions=beside(len(positives), k, len(looks), width),
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
        ax.set_xticks(range(len(positives)), [f"{shots - p}:{p}" for p in positives])
        ax.set_xlim(-0.6, len(positives) - 0.4)
        ax.grid(axis="x", visible=False)
        ax.set_xlabel(f"negative : positive among {shots} demonstrations")


ANALYSIS = Analysis(
    Plan(("proca_sst2",), shots=(8,), seeds=(0,), orders=12),
    proportions,
    mean_by(*PROMPT, "positives", "calibrator"),
    ProportionDisplay,
    [two_labels, chosen_demonstrations],
)
