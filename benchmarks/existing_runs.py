"""The tables and the figure of docs/existing-runs.md, from result folders that `lm-eval-proca calibrate` wrote.

`python -m benchmarks.existing_runs FOLDER ... [--figure FILE]`
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import spearmanr
from sklearn.metrics import confusion_matrix

from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.metrics import mean
from lm_eval_proca.paper.display import STYLE, colour_of
from lm_eval_proca.runs.output_folder import result_files, samples_file

DATASETS = {"mmlu": "MMLU", "arc": "ARC-Challenge", "csqa": "CommonsenseQA"}
MEASURES = {"acc": "accuracy", "recall_sd": "standard deviation of recalls"}
SUBJECT_SIZES = {120: "100 to 120", 250: "121 to 250", 10_000: "more than 250"}
RELABELLED = ("arc", "csqa", "mmlu_professional_law")


class Row(NamedTuple):
    """What one results file says about one dataset: per filter, accuracy and standard deviation of recalls."""

    model: str
    shots: int
    dataset: str
    values: dict[tuple[str, str], float]


def read(folders: Sequence[Path]) -> list[Row]:
    """One row per model, shots and dataset, with the methods of all folders."""
    rows: dict[tuple[str, int, str], Row] = {}
    for file in result_files(folders):
        document = json.loads(file.read_text(encoding="utf-8"))
        for dataset in DATASETS:
            found: dict[tuple[str, str], float] = {}
            for metric, value in document["results"].get(dataset, {}).items():
                measure, _, name = metric.partition(",")
                if measure in MEASURES and name:
                    found[measure, name] = value
            key = document["model_name"], document["n-shot"][dataset], dataset
            rows.setdefault(key, Row(*key, {})).values.update(found)
    return sorted(rows.values(), key=lambda row: (row.shots, size(row.model), row.model))


def size(model: str) -> int:
    """Billions of parameters, which every name here says."""
    found = re.search(r"(\d+)b", model.lower())
    return int(found[1]) if found else 0


def methods(rows: Sequence[Row]) -> list[str]:
    """Raw first, then as the package lists its calibrators."""
    found = {name for row in rows for _, name in row.values}
    return [name for name in ("none", *CALIBRATORS) if name in found]


def table(rows: Sequence[Row], dataset: str, shots: int) -> str:
    """Per model: accuracy and standard deviation of recalls of every method, in per cent, and their means."""
    chosen = [row for row in rows if (row.dataset, row.shots) == (dataset, shots)]
    names = methods(rows)
    columns = [(measure, name) for measure in MEASURES for name in names]
    shown = [f"{'acc' if measure == 'acc' else 'sd'} {'raw' if name == 'none' else name}" for measure, name in columns]
    lines = [f"| {DATASETS[dataset]}, {shots} shots | {' | '.join(shown)} |", f"|---|{'---:|' * len(columns)}"]
    values = [(row.model, [row.values[column] for column in columns]) for row in chosen]
    values.append(("**mean**", [mean(column) for column in zip(*(found for _, found in values), strict=True)]))
    for model, found in values:
        lines.append(f"| {model} | {' | '.join(f'{100 * value:.1f}' for value in found)} |")
    return "\n".join(lines)


def summary(rows: Sequence[Row]) -> str:
    """Mean gain over raw, and how often a method is better, by dataset, shots and size of model."""
    lines = ["| | models | " + " | ".join(methods(rows)[1:]) + " |", f"|---|---:|{'---:|' * (len(methods(rows)) - 1)}"]
    shots = sorted({row.shots for row in rows})
    parts: list[tuple[str, list[Row]]] = [
        (f"{name}, {n} shots", [row for row in rows if (row.dataset, row.shots) == (dataset, n)])
        for dataset, name in DATASETS.items()
        for n in shots
    ]
    for low, high in ((0, 9), (10, 29), (30, 999)):
        some = [row for row in rows if low <= size(row.model) <= high]
        sizes = sorted({size(row.model) for row in some})
        for n in shots:
            span = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
            words = f"all three, {n} shots, {span} billion parameters"
            parts.append((words, [row for row in some if row.shots == n]))
    for words, some in parts:
        gains = []
        for name in methods(rows)[1:]:
            differences = [row.values["acc", name] - row.values["acc", "none"] for row in some]
            better = sum(difference > 0 for difference in differences)
            gains.append(f"{100 * mean(differences):+.1f} ({better} of {len(differences)})")
        lines.append(f"| {words} | {len({row.model for row in some})} | {' | '.join(gains)} |")
    return "\n".join(lines)


def bias_and_gain(rows: Sequence[Row]) -> str:
    """Whether batch calibration gains where the raw scores are biased."""
    pairs = [(row.values["recall_sd", "none"], row.values["acc", "bc"] - row.values["acc", "none"]) for row in rows]
    rho = spearmanr(*zip(*pairs, strict=True)).statistic
    return f"Rank correlation of raw standard deviation of recalls and gain of bc, {len(pairs)} cases: {rho:.2f}"


def gains_by_documents(folders: Sequence[Path]) -> str:
    """Gain of batch calibration in single subjects of MMLU, by their number of documents."""
    gains: dict[str, list[float]] = {}
    for file in result_files(folders):
        document = json.loads(file.read_text(encoding="utf-8"))
        for task, metrics in document["results"].items():
            if task in document["configs"] and task.startswith("mmlu_") and "acc,bc" in metrics:
                documents = document["n-samples"][task]["effective"]
                part = next(words for most, words in SUBJECT_SIZES.items() if documents <= most)
                gains.setdefault(part, []).append(metrics["acc,bc"] - metrics["acc,none"])
    lines = ["| subjects of MMLU with | cases | mean gain of bc | better | worse |", "|---|---:|---:|---:|---:|"]
    for part in SUBJECT_SIZES.values():
        found = np.array(gains[part])
        shares = " | ".join(f"{100 * share:.0f} %" for share in ((found > 0).mean(), (found < 0).mean()))
        lines.append(f"| {part} documents | {len(found)} | {100 * found.mean():+.1f} | {shares} |")
    return "\n".join(lines)


def relabelled(folders: Sequence[Path]) -> str:
    """Accuracy if the predicted labels were renamed in the best way, with gold labels: do names or borders go wrong?"""
    found: dict[str, list[tuple[float, float]]] = {}
    for file in result_files(folders):
        for task in RELABELLED:
            answers: dict[str, list[tuple[int, int]]] = {}
            for line in samples_file(file, task).read_text(encoding="utf-8").split("\n"):
                sample = json.loads(line) if line else None
                if sample:
                    scores = [float(score) for score, _ in sample["filtered_resps"]]
                    answers.setdefault(sample["filter"], []).append((int(sample["target"]), int(np.argmax(scores))))
            for name, pairs in answers.items():
                counts = confusion_matrix(*np.array(pairs).T)
                best = counts[linear_sum_assignment(counts, maximize=True)].sum()
                found.setdefault(name, []).append((np.trace(counts) / len(pairs), best / len(pairs)))
    lines = [f"| {', '.join(RELABELLED)} | cases | accuracy | best relabelling |", "|---|---:|---:|---:|"]
    for name, pairs in found.items():
        now, best = (100 * mean(column) for column in zip(*pairs, strict=True))
        lines.append(f"| {'raw' if name == 'none' else name} | {len(pairs)} | {now:.1f} | {best:.1f} |")
    return "\n".join(lines)


def figure(rows: Sequence[Row], file: Path, dataset: str = "mmlu") -> None:
    """Gain over raw accuracy and standard deviation of recalls, by model from small to large."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shots = sorted({row.shots for row in rows})
    names = methods(rows)
    with plt.style.context(STYLE):
        shape = {"figsize": (5.2 * len(shots), 6.4), "sharey": "row", "sharex": "col", "layout": "constrained"}
        drawn, panels = plt.subplots(2, len(shots), squeeze=False, **shape)
        for n, (above, below) in zip(shots, panels.T, strict=True):
            chosen = [row for row in rows if (row.dataset, row.shots) == (dataset, n)]
            gains = {name: [row.values["acc", name] - row.values["acc", "none"] for row in chosen] for name in names}
            _draw(above, gains, names, shown=names[1:])
            above.axhline(0, color="#8a8a8a")
            above.set_title(f"{DATASETS[dataset]}, {n} shots")
            _draw(below, {name: [row.values["recall_sd", name] for row in chosen] for name in names}, names, names)
            below.set_ylim(bottom=0)
            below.set_xticks(range(len(chosen)), [row.model for row in chosen], rotation=45, ha="right")
        panels[0][0].set_ylabel("accuracy minus raw accuracy, points")
        panels[1][0].set_ylabel("standard deviation of recalls, points")
        panels[1][-1].legend()
        drawn.savefig(file, dpi=110)
    plt.close(drawn)


def _draw(ax: Any, values: Mapping[str, Sequence[float]], names: Sequence[str], shown: Sequence[str]) -> None:
    """One dot per model and method, side by side."""
    for name in shown:
        aside = 0.14 * (names.index(name) - (len(names) - 1) / 2)
        places = [place + aside for place in range(len(values[name]))]
        label = "raw" if name == "none" else name
        ax.plot(places, [100 * value for value in values[name]], "o", color=colour_of(name, names), label=label, ms=5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args(arguments)
    rows = read(given.folders)
    for dataset in DATASETS:
        for shots in sorted({row.shots for row in rows}):
            print(table(rows, dataset, shots), end="\n\n")
    print(summary(rows), bias_and_gain(rows), gains_by_documents(given.folders), relabelled(given.folders), sep="\n\n")
    if given.figure is not None:
        figure(rows, given.figure)


if __name__ == "__main__":
    main()
