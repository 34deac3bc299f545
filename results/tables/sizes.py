"""Four models of different sizes: 4 shots, three prompts, alone and together.

$GEMMA, $QWEN_SMALL and $QWEN_LARGE are the `--model_args` of models that are not on PyPI as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lm_eval_proca.metrics import grouped
from lm_eval_proca.paper.display import looks_of
from results.drawing import picture
from results.markdown import average, best_in_bold, by_task, gain, markdown
from results.results_file import Row
from results.sweeps import DTYPE, SMOLLM2_ARGS, Sweep
from results.table import Measured, Table
from results.tables.prompts import ONE, TOGETHER, analysis_of, rows_of

GEMMA_ARGS = "$GEMMA,dtype=float32"
"""In bfloat16 its shared passes differ too much from plain ones, and scoring like `hf` takes too much memory."""
COMMAND = (
    "lm-eval-proca sweep --model_args {} --num_fewshot 4 --seeds 10 --limit 60 "
    "--metadata proca.prompts=3 proca.estimate_size=120 --output_path .results/sizes"
)
MODELS = {
    "SmolLM2-135M": (SMOLLM2_ARGS, 135),
    "Gemma 3 270M": (GEMMA_ARGS, 268),
    "Qwen2.5-Coder-0.5B": (f"$QWEN_SMALL,{DTYPE}", 494),
    "Qwen2.5-Coder-1.5B": (f"$QWEN_LARGE,{DTYPE}", 1544),
}
"""Their arguments, and millions of parameters."""
METHODS = {"none": "raw", "conca": "`conca`", "bc": "`bc`", "proca": "`proca`", "proca_h": "`proca_h`"}
LINES = {TOGETHER: "-", ONE: "--"}
FOOTNOTE = "mean over nine tasks, 4 shots, three prompts, 60 evaluation and 120 unlabeled rows per task"
KINDS = {ONE: "one prompt", TOGETHER: "three together"}


def measure(sweeps: Sequence[Sweep]) -> Measured:
    rows = [
        {"model": sweep.model, "millions": MODELS[sweep.model][1], **row}
        for sweep in sweeps
        for row in rows_of(analysis_of(sweep))
    ]
    return Measured(rows, Figure(rows))


def averages(rows: Sequence[Row]) -> str:
    """By model, the average of each method over tasks; the best of a line is bold."""
    lines = [[model, KINDS[kind], *best_in_bold([*found.values()])] for model, kind, found in _averages(rows)]
    return markdown(["", "", *METHODS.values()], lines)


def gains(rows: Sequence[Row]) -> str:
    """By model, what each method gains over raw scores with as many prompts, over tasks."""
    lines = []
    for model, alike in grouped(rows, lambda row: row["model"]).items():
        for kind, words in KINDS.items():
            raw = by_task(alike, kind, method="none")
            gained = [gain(by_task(alike, kind, method=method), raw) for method in METHODS if method != "none"]
            lines.append([model, words, *gained])
    header = [name for method, name in METHODS.items() if method != "none"]
    return markdown(["points above raw (95 % interval over tasks)", "", *header], lines)


def _averages(rows: Sequence[Row]) -> list[tuple[str, str, dict[str, float | None]]]:
    return [
        (model, kind, {method: average(alike, kind, method=method) for method in METHODS})
        for model, alike in grouped(rows, lambda row: row["model"]).items()
        for kind in KINDS
    ]


class Figure:
    """Accuracy by size: a colour for each method, one prompt dashed, all together solid."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def save(self, path: Path) -> Path:
        with picture(path, figsize=(7.2, 4.4)) as (figure, [[ax]]):
            self._draw(ax)
            figure.legend(loc="outside right upper")
            figure.supxlabel(FOOTNOTE, fontsize=8, color="#666666")
        return path

    def _draw(self, ax: Any) -> None:
        size_of = {row["model"]: row["millions"] for row in self.rows}
        found = _averages(self.rows)
        looks = looks_of({"calibrator": method} for method in METHODS)
        for kind, line in LINES.items():
            alike = [(size_of[model], numbers) for model, of_kind, numbers in found if of_kind == kind]
            for method, look in looks.items():
                points = [(size, 100 * number) for size, all_ in alike if (number := all_[method]) is not None]
                named = look if kind == TOGETHER else {"color": look["color"]}
                if points:
                    ax.plot(*zip(*points, strict=True), line, marker="o", markersize=4, **named)
        for kind, line in LINES.items():
            ax.plot([], [], line, color="#444444", label=KINDS[kind])
        ax.set_xscale("log")
        ax.set_xticks(list(size_of.values()), [f"{model}\n{size} M" for model, size in size_of.items()], fontsize=8)
        ax.minorticks_off()
        ax.set_ylabel("accuracy (%)")


TABLE = Table(
    "sizes",
    [Sweep(COMMAND.format(arguments), model) for model, (arguments, _) in MODELS.items()],
    measure,
    {"averages": averages, "gains": gains},
    figure="Accuracy by size of the model, a line for each method, with one prompt and with three together",
)
