"""What hidden states add to label scores: every method beside supervised ones, and the accuracy that fits estimate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import log_softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from lm_eval_proca.calibration.representation import principal_components, unit_scale
from lm_eval_proca.metrics import (
    Observation,
    accuracy,
    grouped,
    labeled,
    mean,
    mean_by,
    mean_interval,
    rank_correlation,
)
from lm_eval_proca.paper.analysis import Analysis, Plan
from lm_eval_proca.paper.display import CLASS_COLOURS, COLOURS, OTHER_COLOURS, Display, distinct, short_name
from lm_eval_proca.paper.observations import Calibrators, Tables, labeled_estimate_set, observe, run_of
from lm_eval_proca.scores.fitting import RAW, accuracy_of, fit_all
from lm_eval_proca.scores.score_table import ScoreTable

SUPERVISED_SCORES, SUPERVISED_STATES = "labels_on_scores", "labels_on_states"
"""Logistic regressions with the labels of all estimate rows: what calibrators do without."""

CLOUD_COLOURS = (*CLASS_COLOURS, *COLOURS.values(), *OTHER_COLOURS, "#117733", "#999933", "#332288", "#aa4499")

COMPONENTS = 64
"""Principal components per layer that these regressions read: more than proca_h, as labels can use more."""


def prototypes(tables: Tables, calibrators: Calibrators) -> list[Observation]:
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


def by_task(observed: Sequence[Observation]) -> list[dict[str, Any]]:
    """One row per model, task and number of shots, one column per method; then averages, gains and estimates."""
    methods = list(dict.fromkeys(one["calibrator"] for one in observed))
    rows: list[dict[str, Any]] = []
    for (model, shots), alike in grouped(observed, lambda one: (one["model"], one["num_fewshot"])).items():
        by_method = grouped(alike, lambda one: one["calibrator"])
        over_seeds = mean_by("task", "calibrator")(alike)
        averages = {
            method: mean(one["accuracy"] for one in found)
            for method, found in grouped(over_seeds, lambda one: one["calibrator"]).items()
        }
        differences = {method: _differences(by_method, method) for method in by_method}
        estimates = {method: _estimates(found) for method, found in by_method.items()}
        shown = {
            task: {one["calibrator"]: _percent(one["accuracy"], one["sd"]) for one in found}
            for task, found in grouped(over_seeds, lambda one: one["task"]).items()
        } | {
            "average": {method: _percent(value) for method, value in averages.items()},
            "proca_h less this": {method: _gain(found) for method, found in differences.items()},
            "runs below; worst": {method: _below(found) for method, found in differences.items()},
            "share of the way from raw": _share_of_the_way(averages),
            "estimate: rank correlation": {method: found[0] for method, found in estimates.items()},
            "estimate: mean error": {method: found[1] for method, found in estimates.items()},
        }
        rows += [
            {"model": model, "shots": shots, "task": name, **{m: cells.get(m, "") for m in methods}}
            for name, cells in shown.items()
        ]
    return rows


def clouds(tables: Tables) -> list[Observation]:
    """The evaluation rows of the first table in two discriminant directions: of their scores, of their hidden states.

    The directions are those that separate the true labels of the *estimate* rows best: they are for the eye alone.
    """
    table = tables[0]
    found: list[Observation] = []
    names = {SUPERVISED_SCORES: "label scores", SUPERVISED_STATES: "hidden states"}
    for name, features in _supervised_features(table).items():
        plane = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.3)
        plane.fit(features["estimate"], table.gold_of("estimate"))
        points = plane.transform(features["eval"])
        if points.shape[1] == 1:  # two labels have one direction
            points = np.column_stack([points, np.random.default_rng(0).normal(size=len(points))])
        for label, (x, y) in zip(*labeled(table.gold_of("eval"), points[:, :2]), strict=True):
            word = table.labels[label].strip()
            found.append({**run_of(table), "space": names[name], "word": word, "x": float(x), "y": float(y)})
    return found


def hidden_states(table: ScoreTable) -> str | None:
    """Why a table is not for this analysis."""
    return None if table.representations else "no hidden states, which only hf-shared-prefix gives"


def several_labels(table: ScoreTable) -> str | None:
    """Why regressions with labels cannot be fitted on a table."""
    return None if len(set(table.gold_of("estimate").tolist())) > 1 else "estimate rows of one label only"


def _supervised_features(table: ScoreTable) -> dict[str, dict[str, np.ndarray]]:
    scores = {role: log_softmax(table.scores_of(role), axis=1) for role in ("estimate", "eval")}
    parts: dict[str, list[np.ndarray]] = {"estimate": [], "eval": []}
    for layer in range(len(table.representations)):
        states = {role: unit_scale(table.representations_of(role)[layer]) for role in parts}  # type: ignore[index]
        size = min(COMPONENTS, len(states["estimate"]) - 1, states["estimate"].shape[1])
        _, axes, centre = principal_components(states["estimate"], size)
        for role, rows in states.items():
            parts[role].append((rows - centre) @ axes)
    return {SUPERVISED_SCORES: scores, SUPERVISED_STATES: {role: np.hstack(part) for role, part in parts.items()}}


def _percent(accuracy: float, sd: float | None = None) -> str:
    return f"{100 * accuracy:.1f}" + ("" if sd is None else f" ±{100 * sd:.1f}")


def _differences(by_method: Mapping[str, Sequence[Observation]], method: str) -> dict[str, list[float]]:
    """By task, what proca_h is better by, in points, in every run that has both."""
    if method == "proca_h":
        return {}
    ours = {(one["task"], one["seed"]): one["accuracy"] for one in by_method.get("proca_h", ())}
    gains: dict[str, list[float]] = {}
    for one in by_method[method]:
        if (run := (one["task"], one["seed"])) in ours:
            gains.setdefault(one["task"], []).append(100 * (ours[run] - one["accuracy"]))
    return gains


def _gain(differences: Mapping[str, Sequence[float]]) -> str:
    """Mean over tasks, with its 95 % interval: runs of one task share its documents."""
    means = [mean(of_task) for of_task in differences.values()]
    return "{:+.1f} [{:.1f}, {:.1f}]".format(*mean_interval(means)) if len(means) > 1 else ""


def _below(differences: Mapping[str, Sequence[float]]) -> str:
    """In how many runs proca_h is below, and the worst of them."""
    runs = [one for of_task in differences.values() for one in of_task]
    below = [one for one in runs if one < -1e-9]
    return f"{len(below)} of {len(runs)}; {min(below, default=0.0):+.1f}" if runs else ""


def _share_of_the_way(averages: Mapping[str, float]) -> dict[str, str]:
    """From raw to the regression on hidden states with labels."""
    if not {RAW, "proca_h", SUPERVISED_STATES} <= set(averages):
        return {}
    raw, ours, labels = (averages[name] for name in (RAW, "proca_h", SUPERVISED_STATES))
    return {SUPERVISED_STATES: f"{100 * (ours - raw) / (labels - raw):.0f} %"} if labels > raw else {}


def _estimates(cells: Sequence[Observation]) -> tuple[str, str]:
    """Of the accuracies that fits estimate: rank correlation with the true ones, and mean error in points."""
    pairs = [(one["estimated"], one["accuracy"]) for one in cells if one["estimated"] is not None]
    if len(pairs) < 3:
        return "", ""
    error = mean([abs(estimated - true) for estimated, true in pairs])
    return f"{rank_correlation(*zip(*pairs, strict=True)):.2f}", f"{100 * error:.1f}"


class SpaceDisplay(Display):
    """The evaluation rows of one run, by their label scores and by their hidden states, coloured by true label."""

    panel_size = (4.4, 4.0)
    ylabel = ""

    def panels(self) -> list[Any]:
        return distinct(one["space"] for one in self.clouds)

    def draw(self, ax: Any, panel: Any) -> None:
        cloud = [one for one in self.clouds if one["space"] == panel]
        for word, colour in zip(distinct(one["word"] for one in cloud), CLOUD_COLOURS, strict=False):
            points = [one for one in cloud if one["word"] == word]
            xy = [[one[axis] for one in points] for axis in ("x", "y")]
            ax.scatter(*xy, s=16, color=colour, alpha=0.75, linewidths=0, label=word)
        ax.set_title(f"{short_name(str(cloud[0]['task']))}: {panel}")
        ax.set_xticks([])
        ax.set_yticks([])


ANALYSIS = Analysis(
    Plan(("proca",), shots=(0, 4), seeds=(0, 1, 2)),  # the group of the nine
    prototypes,
    by_task,
    SpaceDisplay,
    [labeled_estimate_set, several_labels, hidden_states],
    clouds,
    note="labels_on_* are logistic regressions with the labels of all estimate rows.",
)
