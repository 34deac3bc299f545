"""Accuracy of two-label tasks when the decision boundary lies elsewhere than at 0.5 (Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.special import expit

from lm_eval_proca.metrics import Observation, accuracy, grouped, labeled
from lm_eval_proca.paper.analysis import Analysis
from lm_eval_proca.paper.boundaries import decision_boundaries, positive_log_odds
from lm_eval_proca.paper.display import COLOURS, log_odds, percent, probability_ticks, prompt_of, titles_of
from lm_eval_proca.paper.observations import PROMPT, Calibrators, Observations, Tables, only, run_of, two_labels
from lm_eval_proca.scores.fitting import accuracy_of, fit
from lm_eval_proca.sweep.grid import Grid

NUMBER_OF_THRESHOLDS = 41


def best_possible_threshold(probability: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """The threshold with the highest accuracy of all, and that accuracy."""
    order = np.argsort(probability, kind="stable")
    values, hits = probability[order], positive[order]
    # right[k]: accuracy when the k lowest rows are called negative and the others positive.
    right = (np.concatenate([[0], np.cumsum(~hits)]) + np.concatenate([np.cumsum(hits[::-1])[::-1], [0]])) / len(hits)
    edges = np.concatenate([[0.0], (values[1:] + values[:-1]) / 2, [1.0]])
    usable = np.concatenate([[True], values[1:] > values[:-1], [True]])
    best = int(np.argmax(np.where(usable, right, -1.0)))
    return float(edges[best]), float(right[best])


class Thresholds(Analysis):
    """Figure 3: accuracy of every prompt at every threshold on P(positive), as a heat map.

    A red rectangle marks the conventional threshold 0.5, a green line ProCa's boundary.
    """

    plan = Grid(("proca_sst2",), seeds=(0, 1, 2, 3))
    requirements = (two_labels,)
    needs = ("proca",)
    panel_by = ()
    shared_legend = False
    ylabel = ""

    def __init__(self, observed: Observations, clouds: Observations = ()) -> None:
        super().__init__(observed, clouds)
        self.panel_size = (9.0, 1.4 + 0.42 * len(titles_of(observed)))

    @classmethod
    def observe(cls, tables: Tables, calibrators: Calibrators) -> list[Observation]:
        """Accuracy when a row is positive if P(positive) exceeds the threshold, for a grid of thresholds.

        There are 41, evenly spaced in log-odds over the scores of all tables (but for the most extreme of a hundred),
        with 0.5 in the middle. Every row also says which threshold of *all* would have been best (the supervised
        ceiling, which needs labels), and what ProCa reaches without labels.
        """
        observed: list[Observation] = []
        reach = max(np.quantile(np.abs(positive_log_odds(table)), 0.99) for table in tables)
        thresholds = expit(np.linspace(-reach, reach, NUMBER_OF_THRESHOLDS)).tolist()
        for table in tables:
            gold, odds = labeled(table.gold_of("eval"), positive_log_odds(table))
            positive, probability = gold == 1, expit(odds)
            best_threshold, best_accuracy = best_possible_threshold(probability, positive)
            fitted = fit(calibrators["proca"], table)
            common = {
                **run_of(table),
                "conventional_accuracy": accuracy_of(table),
                "best_threshold": best_threshold,
                "best_accuracy": best_accuracy,
                "proca_boundaries": decision_boundaries(fitted.calibrator, positive_log_odds(table)),
                "proca_accuracy": accuracy_of(table, fitted),
            }
            observed += [
                {**common, "threshold": one, "accuracy": accuracy(positive, probability > one)} for one in thresholds
            ]
        return observed

    def summary(self) -> list[Observation]:
        accuracies = ("conventional_accuracy", "proca_accuracy", "best_accuracy")
        return only(self.observed, *PROMPT, "seed", *accuracies, "best_threshold")

    def draw(self, ax: Any, observed: Observations, panel: Any) -> None:
        from matplotlib.patches import Rectangle

        titles, by_prompt = titles_of(observed), grouped(observed, prompt_of)
        thresholds = sorted({one["threshold"] for one in observed})

        def place_of(probabilities: Sequence[float]) -> np.ndarray:
            return np.interp(log_odds(probabilities), log_odds(thresholds), np.arange(len(thresholds)))

        accuracy = {(prompt_of(one), one["threshold"]): one["accuracy"] for one in observed}
        grid = np.array([[accuracy[prompt, threshold] for threshold in thresholds] for prompt in titles]) * 100
        image = ax.imshow(grid, aspect="auto", cmap="YlGnBu", interpolation="nearest")
        ax.grid(visible=False)
        left = int(np.argmin(np.abs(np.array(thresholds) - 0.5))) - 0.5
        ax.add_patch(Rectangle((left, -0.5), 1, len(titles), fill=False, edgecolor="#d62728", linewidth=2))
        remarks = []
        for k, (one, *_) in enumerate(by_prompt.values()):
            for place in place_of(one["proca_boundaries"]):
                ax.plot([place, place], [k - 0.45, k + 0.45], color=COLOURS["proca"], linewidth=3)
            at = (one["conventional_accuracy"], one["proca_accuracy"], one["best_accuracy"])
            remarks.append("at 0.5: {:.0f}, ProCa: {:.0f}, best: {:.0f}".format(*percent(at)))
        ticks = probability_ticks(*log_odds([thresholds[0], thresholds[-1]]))
        ax.set_xticks(place_of(ticks), [f"{t:g}" for t in ticks])
        ax.set_yticks(range(len(titles)), list(titles.values()))
        right = ax.secondary_yaxis("right")
        right.set_yticks(range(len(titles)), remarks, fontsize=8.5)
        right.tick_params(length=0)
        for axis in (ax, right):
            axis.spines[:].set_visible(False)
        ax.set_xlabel("threshold on P(positive), log-odds scale; red: the conventional 0.5, green: ProCa's boundary")
        ax.figure.colorbar(image, ax=ax, label="accuracy (%)")
