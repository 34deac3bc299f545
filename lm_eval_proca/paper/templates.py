"""How much the template matters: nine of SST-2 (Figure 4)."""

from __future__ import annotations

from typing import Any

from lm_eval_proca.metrics import mean_by
from lm_eval_proca.paper.analysis import Analysis, Plan
from lm_eval_proca.paper.display import Display, accuracies_by, beside, distinct, looks_of, short_name, spread_of
from lm_eval_proca.paper.observations import PROMPT, observe_methods


class TemplateDisplay(Display):
    """Figure 4: every method under every template, mean and standard deviation over prompts."""

    panel_size = (9.0, 3.6)
    panel_by = ("model", "num_fewshot")

    def draw(self, ax: Any, panel: Any) -> None:
        observed = self.of_panel(panel)
        tasks = distinct(one["task"] for one in observed)
        looks = looks_of(self.observed)
        for k, (method, look) in enumerate(looks.items()):
            means, spread = spread_of(accuracies_by(observed, method, "task", tasks))
            places = beside(len(tasks), k, len(looks), 0.16)
            ax.errorbar(places, means, yerr=spread, fmt="o", markersize=5, capsize=3, linewidth=1.4, **look)
        ax.grid(axis="x", visible=False)
        ax.set_xticks(range(len(tasks)), [short_name(task) for task in tasks])


ANALYSIS = Analysis(
    Plan(tuple(f"proca_sst2_template{k}" for k in range(1, 10))),
    observe_methods,  # the task's name says the template
    mean_by(*PROMPT, "calibrator"),
    TemplateDisplay,
)
