"""Ten models of 7 to 70 billion parameters on multiple-choice questions: published label probabilities, calibrated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import spearmanr
from sklearn.metrics import confusion_matrix

from lm_eval_proca.metrics import grouped, mean
from lm_eval_proca.paper.display import colour_of
from lm_eval_proca.runs.output_folder import read_document, samples_file
from lm_eval_proca.scores.fitting import RAW
from results.drawing import picture
from results.markdown import bold, markdown, methods_of, percent, signed
from results.published import PublishedRuns
from results.results_file import Row
from results.table import Measured, Table

DATASETS = {"mmlu": "MMLU", "arc": "ARC-Challenge", "csqa": "CommonsenseQA"}
SUBJECTS = {"100 to 120": range(121), "121 to 250": range(121, 251), "more than 250": range(251, 10_000)}
"""Of MMLU, by their number of documents."""
RELABELLED = ("arc", "csqa", "mmlu_professional_law")
SIZES = (range(10), range(10, 30), range(30, 1000))
"""Billions of parameters."""
MEASURES = {"accuracy": "acc", "recall_sd": "sd"}


def measure(sources: Sequence[PublishedRuns]) -> Measured:
    [published] = sources
    rows = [row for file in published.results() for row in rows_of(file)]
    rows.sort(key=lambda row: (row["shots"], billions(row["model"]), row["model"]))
    return Measured(rows, Figure(rows))


def rows_of(file: Path) -> Iterator[Row]:
    """What one run says, by method: of each dataset, of one subject of MMLU, and of the subjects of one size together.

    Of several tasks, `accuracy` is the mean, each counted once. `better` and `worse` count tasks, beside raw scores.
    """
    document = read_document(file)
    results, shots = document["results"], next(iter(document["n-shot"].values()))
    methods = methods_of({"method": name} for of_task in results.values() for name in _by_method(of_task))
    for part, tasks in _parts(document).items():
        of_tasks = [_by_method(results[task]) for task in tasks]
        relabelled = relabelled_accuracy(samples_file(file, part)) if part in RELABELLED else {}
        for method in methods:
            gains = [one[method] - one[RAW] for one in of_tasks]
            yield {
                **{"model": document["model_name"], "shots": shots, "part": part, "method": method},
                "accuracy": mean(one[method] for one in of_tasks),
                "recall_sd": results[part][f"recall_sd,{method}"] if part in results else None,
                "relabelled": relabelled.get(method),
                "tasks": len(tasks),
                **{"better": sum(gain > 0 for gain in gains), "worse": sum(gain < 0 for gain in gains)},
            }


def _parts(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Tasks and groups by their own name, and subjects of MMLU by their size; only what the run has."""
    results = document["results"]
    parts = {name: [name] for name in dict.fromkeys((*DATASETS, *RELABELLED)) if name in results}
    subjects = {task: document["n-samples"][task]["effective"] for task in document["configs"] if task[:5] == "mmlu_"}
    by_size = {
        words: [task for task, documents in subjects.items() if documents in sizes] for words, sizes in SUBJECTS.items()
    }
    return parts | {words: tasks for words, tasks in by_size.items() if tasks}


def _by_method(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {key.removeprefix("acc,"): one for key, one in metrics.items() if key.startswith("acc,")}


def relabelled_accuracy(samples: Path) -> dict[str, float]:
    """By method, the accuracy if predicted labels were renamed in the best way, with gold labels."""
    with samples.open(encoding="utf-8") as lines:
        logged = [json.loads(line) for line in lines]
    found = {}
    for method, alike in grouped(logged, lambda one: one["filter"]).items():
        predicted = [int(np.argmax([float(score) for score, _ in one["filtered_resps"]])) for one in alike]
        counts = confusion_matrix([int(one["target"]) for one in alike], predicted)
        found[method] = float(counts[linear_sum_assignment(counts, maximize=True)].sum() / len(alike))
    return found


def billions(model: str) -> int:
    """Of parameters, which every name here says."""
    found = re.search(r"(\d+)b", model.lower())
    return int(found[1]) if found else 0


# ------------------------------------------------------------------ views


def models(rows: Sequence[Row], dataset: str, shots: int) -> str:
    """By model, accuracy and standard deviation of recalls of every method; and their means."""
    chosen = [row for row in rows if (row["part"], row["shots"]) == (dataset, shots)]
    methods = methods_of(chosen)
    values = {
        model: [row[measure] for measure in MEASURES for method in methods for row in alike if row["method"] == method]
        for model, alike in grouped(chosen, lambda row: row["model"]).items()
    }
    means = {bold("mean"): [mean(column) for column in zip(*values.values(), strict=True)]}
    header = [f"{short} {_name(method)}" for short in MEASURES.values() for method in methods]
    lines = [[model, *map(percent, found)] for model, found in (values | means).items()]
    return markdown([f"{DATASETS[dataset]}, {shots} shots", *header], lines)


def gains(rows: Sequence[Row]) -> str:
    """Mean gain over raw scores, and how often it is above 0: by dataset, and by size of the model."""
    rows = [row for row in rows if row["part"] in DATASETS]
    shots = sorted({row["shots"] for row in rows})
    parts = {
        f"{name}, {n} shots": [row for row in rows if (row["part"], row["shots"]) == (dataset, n)]
        for dataset, name in DATASETS.items()
        for n in shots
    }
    for sizes in SIZES:
        some = [row for row in rows if billions(row["model"]) in sizes]
        known = sorted({billions(row["model"]) for row in some})
        for n in shots:
            words = f"all, {n} shots, {' to '.join(map(str, dict.fromkeys(known[:1] + known[-1:])))} billion parameters"
            parts[words] = [row for row in some if row["shots"] == n]
    methods = [method for method in methods_of(rows) if method != RAW]
    lines = [
        [words, str(len({row["model"] for row in some})), *(_gain(_differences(some, method)) for method in methods)]
        for words, some in parts.items()
        if some
    ]
    return markdown(["", "models", *map(_name, methods)], lines)


def bias(rows: Sequence[Row]) -> str:
    """Whether batch calibration gains where raw scores are biased."""
    rows = [row for row in rows if row["part"] in DATASETS]
    biased = [row["recall_sd"] for row in rows if row["method"] == RAW]
    rho = spearmanr(biased, _differences(rows, "bc")).statistic
    return f"Rank correlation of `sd raw` and the gain of `bc`, over {len(biased)} cases: {rho:.2f}."


def subjects(rows: Sequence[Row]) -> str:
    """Gain of batch calibration in single subjects of MMLU, by their number of documents."""
    lines = []
    for part in SUBJECTS:
        some = [row for row in rows if row["part"] == part]
        chosen = [row for row in some if row["method"] == "bc"]
        tasks = sum(row["tasks"] for row in chosen)
        shares = [f"{sum(row[column] for row in chosen) / tasks:.0%}" for column in ("better", "worse")]
        # Every model has the same subjects, so that the mean over models is that over all cases.
        lines.append([f"{part} documents", str(tasks), signed(100 * mean(_differences(some, "bc"))), *shares])
    return markdown(["subjects of MMLU with", "cases", "mean gain of `bc`", "better", "worse"], lines)


def relabelled(rows: Sequence[Row]) -> str:
    """Do names or borders of labels go wrong?"""
    chosen = [row for row in rows if row["relabelled"] is not None]
    lines = []
    for method in methods_of(chosen):
        alike = [row for row in chosen if row["method"] == method]
        numbers = [percent(mean(row[column] for row in alike)) for column in ("accuracy", "relabelled")]
        lines.append([_name(method), str(len(alike)), *numbers])
    return markdown([", ".join(RELABELLED), "cases", "accuracy", "best relabelling"], lines)


def _name(method: str) -> str:
    return "raw" if method == RAW else f"`{method}`"


def _differences(rows: Sequence[Row], method: str) -> list[float]:
    """Accuracy less raw accuracy, for every model, number of shots and dataset."""
    ours, raw = ([row["accuracy"] for row in rows if row["method"] == name] for name in (method, RAW))
    return [a - b for a, b in zip(ours, raw, strict=True)]


def _gain(differences: Sequence[float]) -> str:
    better = sum(difference > 0 for difference in differences)
    return f"{signed(100 * mean(differences))} ({better} of {len(differences)})"


# ------------------------------------------------------------------ figure


class Figure:
    """MMLU: gain over raw accuracy, and standard deviation of recalls, by model from small to large."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = [row for row in rows if row["part"] == "mmlu"]

    def save(self, path: Path) -> Path:
        by_shots = grouped(self.rows, lambda row: row["shots"])
        shape = {"figsize": (5.2 * len(by_shots), 6.4), "sharey": "row", "sharex": "col"}
        with picture(path, 2, len(by_shots), **shape) as (_, axes):
            for (shots, rows), (above, below) in zip(by_shots.items(), axes.T, strict=True):
                methods = methods_of(rows)
                above.axhline(0, color="#8a8a8a")
                above.set_title(f"MMLU, {shots} shots")
                _draw(above, {method: _differences(rows, method) for method in methods if method != RAW}, methods)
                recalls = {name: [row["recall_sd"] for row in rows if row["method"] == name] for name in methods}
                _draw(below, recalls, methods)
                below.set_ylim(bottom=0)
                names = list(grouped(rows, lambda row: row["model"]))
                below.set_xticks(range(len(names)), names, rotation=45, ha="right")
            axes[0][0].set_ylabel("accuracy minus raw accuracy, points")
            axes[1][0].set_ylabel("standard deviation of recalls, points")
            axes[1][-1].legend()
        return path


def _draw(ax: Any, values: Mapping[str, Sequence[float]], methods: Sequence[str]) -> None:
    """One dot per model and method, side by side."""
    for method, found in values.items():
        aside = 0.14 * (methods.index(method) - (len(methods) - 1) / 2)
        look = {"color": colour_of(method, methods), "label": _name(method).strip("`"), "markersize": 5}
        ax.plot([place + aside for place in range(len(found))], [100 * one for one in found], "o", **look)


TABLE = Table(
    "existing-runs",
    [PublishedRuns()],
    measure,
    {
        **{f"mmlu-{shots}-shots": partial(models, dataset="mmlu", shots=shots) for shots in (0, 5)},
        **{"gains": gains, "bias": bias, "subjects": subjects, "relabelled": relabelled},
    },
    figure="Accuracy and standard deviation of recalls on MMLU, raw and calibrated, by model",
)
