"""The tables and the figure of docs/existing-runs.md, from result folders that `lm-eval-proca calibrate` wrote.

`python -m benchmarks.existing_runs FOLDER ... [--figure FILE]`
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.report.display import STYLE, colour_of
from lm_eval_proca.run_files import result_files
from lm_eval_proca.statistics import mean

DATASETS = {"mmlu": "MMLU", "arc": "ARC-Challenge", "csqa": "CommonsenseQA"}
MEASURES = {"acc": "accuracy", "recall_sd": "standard deviation of recalls"}


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


def figure(rows: Sequence[Row], file: Path, dataset: str = "mmlu") -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    shots = sorted({row.shots for row in rows})
    with plt.rc_context(STYLE):
        drawn, panels = plt.subplots(2, len(shots), figsize=(4.6 * len(shots), 5.6), sharey="row", squeeze=False)
        for (measure, words), line in zip(MEASURES.items(), panels, strict=True):
            for n, ax in zip(shots, line, strict=True):
                _draw(ax, [row for row in rows if (row.dataset, row.shots) == (dataset, n)], measure, methods(rows))
                ax.set_title(f"{DATASETS[dataset]}, {n} shots" if measure == "acc" else "")
            line[0].set_ylabel(f"{words}, per cent")
        panels[0][0].legend()
        drawn.tight_layout()
        drawn.savefig(file, dpi=130)
    plt.close(drawn)


def _draw(ax: Any, rows: Sequence[Row], measure: str, names: Sequence[str]) -> None:
    for name in names:
        label = "raw" if name == "none" else name
        values = [100 * row.values[measure, name] for row in rows]
        ax.plot(range(len(rows)), values, "o", color=colour_of(name, names), label=label)
    ax.set_xticks(range(len(rows)), [row.model for row in rows], rotation=45, ha="right")
    ax.set_ylim(bottom=0)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args(arguments)
    rows = read(given.folders)
    for dataset in DATASETS:
        for shots in sorted({row.shots for row in rows}):
            print(table(rows, dataset, shots), end="\n\n")
    print(summary(rows))
    if given.figure is not None:
        figure(rows, given.figure)


if __name__ == "__main__":
    main()
