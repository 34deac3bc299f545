"""Every method on every task: what hidden states add to label scores, and labels to both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.special import log_softmax
from scipy.stats import spearmanr
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lm_eval_proca.calibration.representation import principal_components
from lm_eval_proca.metrics import Observation, accuracy, grouped, labeled, mean, mean_by, mean_interval
from lm_eval_proca.paper.analysis import Analysis
from lm_eval_proca.paper.display import CLASS_COLOURS, COLOURS, OTHER_COLOURS, distinct, short_name
from lm_eval_proca.paper.observations import Calibrators, Observations, Tables, labeled_estimate_set, observe, run_of
from lm_eval_proca.representations import unit_scale
from lm_eval_proca.scores.fitting import RAW, accuracy_of, fit_all
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.grid import Grid

SUPERVISED_SCORES, SUPERVISED_STATES = "labels_on_scores", "labels_on_states"
"""Logistic regressions with the labels of all estimate rows: what calibrators do without."""

CLOUD_COLOURS = (*CLASS_COLOURS, *COLOURS.values(), *OTHER_COLOURS)

COMPONENTS = 64
"""Principal components per layer that these regressions read: more than proca_h, as labels can use more."""


def representations(table: ScoreTable) -> str | None:
    return "no representations beside its scores" if table.representations is None else None


def several_labels(table: ScoreTable) -> str | None:
    return None if len(set(table.gold_of("estimate").tolist())) > 1 else "estimate rows of one label only"


class Methods(Analysis):
    """Every method by task; drawn are the evaluation rows of one run, by label scores and by hidden states."""

    plan = Grid(("proca",), shots=(0, 4), seeds=(0, 1, 2))  # the group of the nine
    requirements = (labeled_estimate_set, several_labels, representations)
    note = "labels_on_* are logistic regressions with the labels of all estimate rows."
    panel_size = (4.4, 4.0)
    ylabel = ""

    @classmethod
    def observe(cls, tables: Tables, calibrators: Calibrators) -> list[Observation]:
        """Accuracy of every method on every table; calibrators that estimate their accuracy say that too."""
        observed: list[Observation] = []
        for table in tables:
            fits, _ = fit_all(table, calibrators)
            found = {RAW: accuracy_of(table)} | {name: accuracy_of(table, one) for name, one in fits.items()}
            for name, features in _supervised_features(table).items():
                model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
                model.fit(features["estimate"], table.gold_of("estimate"))
                found[name] = accuracy(table.gold_of("eval"), model.predict(features["eval"]))
            estimated = {name: getattr(one.calibrator, "estimated_accuracy_", None) for name, one in fits.items()}
            observed += [{**one, "estimated": estimated.get(one["calibrator"])} for one in observe(table, found)]
        return observed

    @classmethod
    def observe_documents(cls, tables: Tables) -> list[Observation]:
        """The evaluation rows of the first table in two discriminant directions: of scores, and of hidden states.

        The directions are those that separate the true labels of the *estimate* rows best: they are for the eye alone.
        """
        table = tables[0]
        found: list[Observation] = []
        for space, features in zip(
            ("label scores", "hidden states"), _supervised_features(table).values(), strict=True
        ):
            plane = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.3)
            plane.fit(features["estimate"], table.gold_of("estimate"))
            points = plane.transform(features["eval"])
            if points.shape[1] == 1:  # two labels have one direction
                points = np.column_stack([points, np.random.default_rng(0).normal(size=len(points))])
            for label, (x, y) in zip(*labeled(table.gold_of("eval"), points[:, :2]), strict=True):
                word = table.labels[label].strip()
                found.append({**run_of(table), "space": space, "word": word, "x": float(x), "y": float(y)})
        return found

    def summary(self) -> list[Observation]:
        """One row per model, number of shots and method, one column per task, and the average."""
        tasks = distinct(one["task"] for one in self.observed)
        rows = []
        for which, by_method in self._by_run().items():
            for method, observed in by_method.items():
                means = {one["task"]: _percent(one["accuracy"], one["sd"]) for one in mean_by(observed, "task")}
                cells = {short_name(task): means.get(task, "") for task in tasks}
                complete = len(means) == len({one["task"] for some in by_method.values() for one in some})
                average = _percent(_average(observed)) if complete else ""
                rows.append({**dict(which), "method": method, **cells, "average": average})
        return rows

    def further(self) -> list[Observation]:
        """How far proca_h is from each method, and what fits estimate; only what at least one method has."""
        rows = [
            {**dict(which), "method": method, **_compared(by_method, method)}
            for which, by_method in self._by_run().items()
            for method in by_method
        ]
        known = [name for name in rows[0] if any(row[name] != "" for row in rows)]
        return [{name: row[name] for name in known} for row in rows if any(row[name] for name in known[3:])]

    def _by_run(self) -> dict[Any, dict[str, list[Observation]]]:
        """By model and shots, what was observed of each method."""
        alike = grouped(self.observed, lambda one: (("model", one["model"]), ("shots", one["num_fewshot"])))
        return {which: grouped(observed, lambda one: one["calibrator"]) for which, observed in alike.items()}

    def panels(self) -> dict[Any, list[Observation]]:
        return grouped(self.clouds, lambda one: one["space"])

    def title(self, panel: Any) -> str:
        return f"{short_name(str(self.clouds[0]['task']))}: {panel}"

    def draw(self, ax: Any, observed: Observations, panel: Any) -> None:
        by_word = grouped(observed, lambda one: one["word"])
        for (word, points), colour in zip(by_word.items(), CLOUD_COLOURS, strict=False):
            xy = [[one[axis] for one in points] for axis in ("x", "y")]
            ax.scatter(*xy, s=16, color=colour, alpha=0.75, linewidths=0, label=word)
        ax.set_xticks([])
        ax.set_yticks([])


def _supervised_features(table: ScoreTable) -> dict[str, dict[str, np.ndarray]]:
    scores = {role: log_softmax(table.scores_of(role), axis=1) for role in ("estimate", "eval")}
    parts: dict[str, list[np.ndarray]] = {"estimate": [], "eval": []}
    for layer in range(len(table.representation.views)):
        states = {role: unit_scale(table.representations_of(role)[layer]) for role in parts}  # type: ignore[index]
        size = min(COMPONENTS, len(states["estimate"]) - 1, states["estimate"].shape[1])
        _, axes, centre = principal_components(states["estimate"], size)
        for role, rows in states.items():
            parts[role].append((rows - centre) @ axes)
    return {SUPERVISED_SCORES: scores, SUPERVISED_STATES: {role: np.hstack(part) for role, part in parts.items()}}


def _compared(by_method: Mapping[str, Observations], method: str) -> dict[str, str]:
    """A method beside proca_h."""
    observed = by_method[method]
    gains = {} if method == "proca_h" else _gains(by_method.get("proca_h", ()), observed)
    runs = [gain for of_task in gains.values() for gain in of_task]
    below = [gain for gain in runs if gain < -1e-9]
    means = [mean(of_task) for of_task in gains.values()]  # over tasks, as runs of one task share its documents
    estimates = [(one["estimated"], one["accuracy"]) for one in observed if one["estimated"] is not None]
    enough = len(estimates) > 2
    return {
        "proca_h less this": "{:+.1f} [{:.1f}, {:.1f}]".format(*mean_interval(means)) if len(means) > 1 else "",
        "runs below; worst": f"{len(below)} of {len(runs)}; {min(below, default=0.0):+.1f}" if runs else "",
        "share of the way from raw": _share_of_the_way(by_method) if method == SUPERVISED_STATES else "",
        "estimate: rank correlation": f"{spearmanr(estimates).statistic:.2f}" if enough else "",
        "estimate: mean error": f"{100 * mean(abs(one - true) for one, true in estimates):.1f}" if enough else "",
    }


def _percent(accuracy: float, sd: float | None = None) -> str:
    return f"{100 * accuracy:.1f}" + ("" if sd is None else f" ±{100 * sd:.1f}")


def _average(observed: Observations) -> float:
    return mean(one["accuracy"] for one in mean_by(observed, "task"))


def _gains(ours: Observations, others: Observations) -> dict[str, list[float]]:
    """By task, what proca_h is better by, in points, in every run that has both."""
    accuracy_of_run = {(one["task"], one["seed"]): one["accuracy"] for one in ours}
    common = [one for one in others if (one["task"], one["seed"]) in accuracy_of_run]
    return {
        task: [100 * (accuracy_of_run[task, one["seed"]] - one["accuracy"]) for one in alike]
        for task, alike in grouped(common, lambda one: one["task"]).items()
    }


def _share_of_the_way(by_method: Mapping[str, Observations]) -> str:
    """Where proca_h stands between raw and the regression on hidden states with labels."""
    if not {RAW, "proca_h"} <= set(by_method):
        return ""
    raw, ours, labels = (_average(by_method[name]) for name in (RAW, "proca_h", SUPERVISED_STATES))
    return f"{100 * (ours - raw) / (labels - raw):.0f} %" if labels > raw else ""
