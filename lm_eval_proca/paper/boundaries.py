"""Decision boundaries of two-label tasks (section 2 of the paper, Figure 2).

With two labels everything happens on one line: P(positive), where "positive" is the label of index 1. The
conventional boundary is 0.5; a calibrator's boundary lies wherever its prediction changes along the line.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import expit, log_expit

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.metrics import Observation, grouped, labeled, mean
from lm_eval_proca.paper import display
from lm_eval_proca.paper.analysis import Analysis
from lm_eval_proca.paper.observations import PROMPT, Calibrators, Observations, Tables, only, run_of, two_labels
from lm_eval_proca.scores.fitting import RAW, accuracy_of, fit_all
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.grid import Grid

CONVENTIONAL = 0.5
STEPS = 4000


def positive_log_odds(table: ScoreTable) -> np.ndarray:
    """log P(positive) / P(negative) of each evaluation row."""
    scores = table.scores_of("eval")
    return scores[:, 1] - scores[:, 0]


def decision_boundaries(calibrator: Calibrator, log_odds: np.ndarray) -> list[float]:
    """Every P(positive) within the range of some log-odds at which the prediction of a fitted calibrator changes.

    Two Gaussians of unequal width meet twice, so ProCa may have two.
    """

    def predict(odds: np.ndarray) -> np.ndarray:
        return calibrator.predict(np.column_stack([log_expit(-odds), log_expit(odds)]))

    line = np.linspace(log_odds.min(), log_odds.max(), STEPS)
    predicted = predict(line)
    changes = np.flatnonzero(predicted[1:] != predicted[:-1])
    left, right, before = line[changes], line[changes + 1], predicted[changes]
    for _ in range(30 if len(changes) else 0):
        middle = (left + right) / 2
        same = predict(middle) == before
        left, right = np.where(same, middle, left), np.where(same, right, middle)
    return expit((left + right) / 2).tolist()


class Boundaries(Analysis):
    """Figure 2: the score clouds of each prompt with the conventional and ProCa's boundary, and a bar chart.

    The horizontal axis is P(positive) on a log-odds scale, which shows clouds that lie near 0 or 1.
    """

    plan = Grid(("proca_sst2",), seeds=(0, 1))
    requirements = (two_labels,)
    panel_size = (4.2, 3.4)
    shared_legend = False

    @classmethod
    def observe(cls, tables: Tables, calibrators: Calibrators) -> list[Observation]:
        """Per prompt and method, the boundary and the accuracy it gives.

        A calibrator that also reads hidden states has no boundary on a line of scores.
        """
        observed: list[Observation] = []
        for table in tables:
            run, odds = run_of(table), positive_log_odds(table)
            observed.append({**run, "calibrator": RAW, "boundaries": [CONVENTIONAL], "accuracy": accuracy_of(table)})
            for name, one in fit_all(table, calibrators)[0].items():
                found = [] if one.calibrator.uses_representations else decision_boundaries(one.calibrator, odds)
                observed.append({**run, "calibrator": name, "boundaries": found, "accuracy": accuracy_of(table, one)})
        return observed

    @classmethod
    def observe_documents(cls, tables: Tables) -> list[Observation]:
        """P(positive) of every evaluation row, with the word of its true label."""
        return [
            {**run_of(table), "label": int(label), "word": table.labels[label], "p_positive": float(expit(odds))}
            for table in tables
            for label, odds in zip(*labeled(table.gold_of("eval"), positive_log_odds(table)), strict=True)
        ]

    def summary(self) -> list[Observation]:
        return only(self.observed, *PROMPT, "seed", "calibrator", "boundaries", "accuracy")

    def panels(self) -> dict[Any, list[Observation]]:
        return {**grouped(self.clouds, display.prompt_of), None: self.observed}

    def title(self, panel: Any) -> str:
        return display.titles_of(self.observed)[panel] if panel else "what the boundaries give"

    def draw(self, ax: Any, observed: Observations, panel: Any) -> None:
        if panel is None:
            self._draw_bars(ax)
            return
        line, top = self._draw_clouds(ax, observed)
        for one in self.observed:
            if display.prompt_of(one) == panel and one["calibrator"] in (RAW, "proca"):
                conventional = one["calibrator"] == RAW
                name = "conventional boundary" if conventional else "ProCa's boundary"
                colour = "#e67700" if conventional else display.COLOURS["proca"]
                for k, place in enumerate(display.log_odds(one["boundaries"])):
                    look = {"color": colour, "linestyle": "--", "linewidth": 1.8, "label": None if k else name}
                    ax.axvline(place, ymax=0.64, **look)
        ticks = display.probability_ticks(line[0], line[-1])
        ax.set_xticks(display.log_odds(ticks), [f"{tick:g}" for tick in ticks])
        ax.set_yticks([])
        ax.set_ylim(-0.28 * top, 1.9 * top)
        positive = next((one["word"].strip() for one in observed if one["label"] == 1), "positive")
        ax.set_xlabel(f"P({positive}), log-odds scale")
        ax.set_ylabel("density")
        ax.legend(loc="upper left", ncols=1)

    def _draw_clouds(self, ax: Any, cloud: Observations) -> tuple[np.ndarray, float]:
        """Density and single documents per true label; the places along the axis, and the largest density."""
        from scipy.stats import gaussian_kde

        odds = display.log_odds([one["p_positive"] for one in cloud])
        label = np.array([one["label"] for one in cloud])
        words = {one["label"]: one["word"].strip() for one in cloud}
        low, high = min(odds.min(), 0.0), max(odds.max(), 0.0)
        line = np.linspace(low - 0.08 * (high - low), high + 0.08 * (high - low), 400)
        jitter = np.random.default_rng(0)
        densities = {k: gaussian_kde(odds[label == k])(line) for k in words if np.ptp(odds[label == k]) > 0}
        top = max((density.max() for density in densities.values()), default=1.0)
        for k in sorted(words):
            colour = display.CLASS_COLOURS[k]
            if k in densities:
                ax.fill_between(line, densities[k], color=colour, alpha=0.35, linewidth=0)
                ax.plot(line, densities[k], color=colour, linewidth=1.5, label=f"true label: {words[k]}")
            points = odds[label == k][:400]
            height = -top * (0.06 + 0.1 * k + 0.07 * jitter.random(len(points)))
            ax.scatter(points, height, s=4, color=colour, alpha=0.4, linewidths=0)
        return line, top

    def _draw_bars(self, ax: Any) -> None:
        titles, looks = display.titles_of(self.observed), display.looks_of(self.observed)
        width = 0.8 / len(looks)
        accuracies = grouped(self.observed, lambda one: (display.prompt_of(one), one["calibrator"]))
        ticks = [title.replace(", ", "\n") for title in titles.values()]
        for method, look, places in display.side_by_side(ax, ticks, looks, width):
            heights = [mean(one["accuracy"] for one in accuracies[prompt, method]) for prompt in titles]
            bars = ax.bar(places, display.percent(heights), width * 0.92, **look)
            ax.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
        ax.set_ylim(0, 122)  # room for the legend
        ax.set_yticks(range(0, 101, 20))
        ax.legend(loc="upper center", ncols=len(looks), columnspacing=1.0, handlelength=1.2)
