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

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.representation import principal_components, unit_scale
from lm_eval_proca.experiments.analyses.observations import observe, prompt_of
from lm_eval_proca.fitting import accuracy_of, fit_all
from lm_eval_proca.run_files import RAW
from lm_eval_proca.score_table import ScoreTable
from lm_eval_proca.statistics import Observation, mean, mean_by, mean_interval, rank_correlation

SUPERVISED_SCORES, SUPERVISED_STATES = "labels_on_scores", "labels_on_states"
"""Logistic regressions with the labels of all estimate rows: what calibrators do without."""

COMPONENTS = 64


def prototypes(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Accuracy of every method on every table; calibrators that estimate their accuracy say that too."""
    observed: list[Observation] = []
    for table in tables:
        fits, _ = fit_all(table, calibrators)
        found = {RAW: accuracy_of(table)} | {name: accuracy_of(table, one) for name, one in fits.items()}
        for name, features in _supervised_features(table).items():
            model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
            model.fit(features["estimate"], table.gold_of("estimate"))
            found[name] = float(model.score(features["eval"], table.gold_of("eval")))
        estimated = {name: getattr(one.calibrator, "estimated_accuracy_", None) for name, one in fits.items()}
        observed += [{**one, "estimated": estimated.get(one["calibrator"])} for one in observe(table, found)]
    return observed


def by_task(observed: Sequence[Observation]) -> list[dict[str, Any]]:
    """One row per task and number of shots, one column per method; then averages, gains and estimates."""
    methods = list(dict.fromkeys(one["calibrator"] for one in observed))
    rows: list[dict[str, Any]] = []
    for shots in dict.fromkeys(one["num_fewshot"] for one in observed):
        of_shots = [one for one in observed if one["num_fewshot"] == shots]
        tasks = list(dict.fromkeys(one["task"] for one in of_shots))
        for task in tasks:
            cells = {m: _percent([o for o in of_shots if (o["task"], o["calibrator"]) == (task, m)]) for m in methods}
            rows.append({"shots": shots, "task": task, **cells})
        by_method = {m: [o for o in of_shots if o["calibrator"] == m] for m in methods}
        # Over tasks, of the mean over seeds.
        averages = {m: _percent(mean_by("task")(found)) for m, found in by_method.items() if found}
        rows.append({"shots": shots, "task": "average", **dict.fromkeys(methods, ""), **averages})
        differences = {m: _differences(of_shots, m) for m in methods}
        rows.append({"shots": shots, "task": "proca_h less this", **{m: _gain(d) for m, d in differences.items()}})
        rows.append({"shots": shots, "task": "runs below; worst", **{m: _below(d) for m, d in differences.items()}})
        way = _share_of_the_way(differences)
        rows.append({"shots": shots, "task": "share of the way from raw", **dict.fromkeys(methods, ""), **way})
        rows.append({"shots": shots, "task": "estimate: rank correlation", **_estimates(of_shots, methods, 0)})
        rows.append({"shots": shots, "task": "estimate: mean error", **_estimates(of_shots, methods, 1)})
    return rows


def clouds(tables: Sequence[ScoreTable]) -> list[Observation]:
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
        for (x, y), label in zip(points[:, :2], table.gold_of("eval"), strict=True):
            word = table.labels[label].strip()
            found.append({**prompt_of(table), "space": names[name], "word": word, "x": float(x), "y": float(y)})
    return found


def hidden_states(table: ScoreTable) -> str | None:
    """Why a table is not for this analysis."""
    return None if table.representations else "no hidden states, which only hf-shared-prefix gives"


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


def _percent(cells: Sequence[Observation]) -> str:
    return f"{100 * mean([one['accuracy'] for one in cells]):.1f}" if cells else ""


def _differences(observed: Sequence[Observation], method: str) -> list[float]:
    """What proca_h is better by, in points, in every run that has both."""
    runs: dict[str, dict[Any, float]] = {"proca_h": {}, method: {}}
    for one in observed:
        if one["calibrator"] in runs:
            runs[one["calibrator"]][one["task"], one["seed"]] = 100 * one["accuracy"]
    ours = runs.pop("proca_h")
    return [ours[run] - value for run, value in runs.get(method, {}).items() if run in ours]


def _gain(differences: Sequence[float]) -> str:
    """Mean over runs, with its 95 % interval."""
    return "{:+.1f} [{:.1f}, {:.1f}]".format(*mean_interval(differences)) if len(differences) > 1 else ""


def _below(differences: Sequence[float]) -> str:
    """In how many runs proca_h is below, and the worst of them."""
    below = [one for one in differences if one < -1e-9]
    return f"{len(below)} of {len(differences)}; {min(below, default=0.0):+.1f}" if differences else ""


def _share_of_the_way(differences: Mapping[str, Sequence[float]]) -> dict[str, str]:
    """From raw to the regression on hidden states with labels."""
    gained, missing = (mean(differences[name]) for name in (RAW, SUPERVISED_STATES))
    return {SUPERVISED_STATES: f"{100 * gained / (gained - missing):.0f} %"} if gained > missing else {}


def _estimates(observed: Sequence[Observation], methods: Sequence[str], number: int) -> dict[str, str]:
    shown = {}
    for method in methods:
        cells = [one for one in observed if one["calibrator"] == method and one["estimated"] is not None]
        shown[method] = ""
        if len(cells) > 2:
            estimated, true = ([one[key] for one in cells] for key in ("estimated", "accuracy"))
            error = mean([abs(a - b) for a, b in zip(estimated, true, strict=True)])
            shown[method] = f"{rank_correlation(estimated, true):.2f}" if number == 0 else f"{100 * error:.1f}"
    return shown
