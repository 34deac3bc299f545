"""ProCa when the restart is kept that has the highest likelihood, or the highest assignment score (Table 3)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sklearn.base import clone

from lm_eval_proca.metrics import Observation, grouped, mean_by
from lm_eval_proca.paper.analysis import Analysis, Plan
from lm_eval_proca.paper.display import Display, beside, distinct, spread_of
from lm_eval_proca.paper.observations import PROMPT, Calibrators, Tables, run_of
from lm_eval_proca.scores.fitting import accuracy_of, fit


def ablate(parameter: str, *values: str) -> Callable[..., list[Observation]]:
    """A function that observes ProCa with `parameter` at each of the values, everything else as it is given."""

    def observe(tables: Tables, calibrators: Calibrators) -> list[Observation]:
        return [
            {**run_of(table), parameter: value, "accuracy": accuracy_of(table, fit(changed, table))}
            for table in tables
            for value in values
            for changed in [clone(calibrators["proca"]).set_params(**{parameter: value})]
        ]

    return observe


class AblationDisplay(Display):
    """ProCa with one parameter at several values, per task and number of shots."""

    parameter: ClassVar[str] = "selection"
    panel_size = (3.8, 3.2)
    panel_by = ("model", "task")
    ylabel = "accuracy of ProCa (%)"
    colours: ClassVar[tuple[str, ...]] = ("#b9c4cf", "#6fb7a0", "#009e73")

    def draw(self, ax: Any, panel: Any) -> None:
        observed = self.of_panel(panel)
        shots = sorted({one["num_fewshot"] for one in observed})
        values = distinct(one[self.parameter] for one in self.observed)
        width = 0.8 / len(values)
        accuracies = grouped(observed, lambda one: (one["num_fewshot"], one[self.parameter]))
        for k, value in enumerate(values):
            means, spread = spread_of([one["accuracy"] for one in accuracies.get((n, value), [])] for n in shots)
            places = beside(len(shots), k, len(values), width)
            ax.bar(
                places,
                means,
                width * 0.92,
                yerr=spread,
                capsize=2,
                error_kw={"elinewidth": 1, "ecolor": "#555555"},
                color=self.colours[k % len(self.colours)],
                label=value.replace("_", " "),
            )
            for place, height in zip(places, means, strict=True):
                ax.text(place, 2, f"{height:.0f}", ha="center", fontsize=8)
        ax.set_xticks(range(len(shots)), [f"{n}-shot" for n in shots])
        ax.grid(axis="x", visible=False)
        ax.set_ylim(0, 102)


ANALYSIS = Analysis(
    Plan(("proca_agnews", "proca_dbpedia"), shots=(0, 1, 4, 8)),
    ablate("selection", "likelihood", "assignment"),
    mean_by(*PROMPT, "selection"),
    AblationDisplay,
)
