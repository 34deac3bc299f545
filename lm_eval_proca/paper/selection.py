"""ProCa when the restart is kept that has the highest likelihood, or the highest assignment score (Table 3)."""

from __future__ import annotations

from typing import Any, ClassVar

from sklearn.base import clone

from lm_eval_proca.metrics import Observation
from lm_eval_proca.paper.analysis import Analysis
from lm_eval_proca.paper.display import accuracies_by, distinct, side_by_side, spread_of
from lm_eval_proca.paper.observations import Calibrators, Observations, Tables, run_of
from lm_eval_proca.scores.fitting import accuracy_of, fit
from lm_eval_proca.sweep.grid import Grid


class Ablation(Analysis):
    """ProCa with one parameter at several values, everything else as it is given; per task and number of shots."""

    values: ClassVar[tuple[str, ...]]
    """Of the parameter that `printed` names."""
    panel_size = (3.8, 3.2)
    needs = ("proca",)
    panel_by = ("model", "task")
    ylabel = "accuracy of ProCa (%)"
    colours: ClassVar[tuple[str, ...]] = ("#b9c4cf", "#6fb7a0", "#009e73")

    @classmethod
    def observe(cls, tables: Tables, calibrators: Calibrators) -> list[Observation]:
        (parameter,) = cls.printed
        return [
            {**run_of(table), parameter: value, "accuracy": accuracy_of(table, fit(changed, table))}
            for table in tables
            for value in cls.values
            for changed in [clone(calibrators["proca"]).set_params(**{parameter: value})]
        ]

    def draw(self, ax: Any, observed: Observations, panel: Any) -> None:
        (parameter,) = self.printed
        shots = sorted({one["num_fewshot"] for one in observed})
        values: list[str] = distinct(one[parameter] for one in self.observed)
        looks = {
            value: {"color": colour, "label": value.replace("_", " ")}
            for value, colour in zip(values, self.colours, strict=False)
        }
        width = 0.8 / len(looks)
        bars = {"width": width * 0.92, "capsize": 2, "error_kw": {"elinewidth": 1, "ecolor": "#555555"}}
        for value, look, places in side_by_side(ax, [f"{n}-shot" for n in shots], looks, width):
            means, spread = spread_of(accuracies_by(observed, "num_fewshot", shots, **{parameter: value}))
            ax.bar(places, means, yerr=spread, **bars, **look)
            for place, height in zip(places, means, strict=True):
                ax.text(place, 2, f"{height:.0f}", ha="center", fontsize=8)
        ax.set_ylim(0, 102)


class Selection(Ablation):
    plan = Grid(("proca_agnews", "proca_dbpedia"), shots=(0, 1, 4, 8))
    printed = ("selection",)
    values = ("likelihood", "assignment")
