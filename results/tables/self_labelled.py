"""Demonstrations that the model has labeled itself: two draws, six in each prompt, SmolLM2-135M.

The accuracies are those that the runs have written: how prompts are put together, a run decides itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from lm_eval_proca.metrics import mean_by
from lm_eval_proca.paper.display import short_name
from results.markdown import AVERAGE, TASKS, bold, by_task, gain, markdown, percent
from results.results_file import Row
from results.sweeps import EVERY_METHOD, SMOLLM2_ARGS, Sweep
from results.table import Measured, Table
from results.tables import prompts

SWEEP = Sweep(
    f"lm-eval-proca sweep --demonstrations self --model_args {SMOLLM2_ARGS} --num_fewshot 6 --seeds 10 11 "
    f"--limit 200 --metadata proca.estimate_size=400 {EVERY_METHOD} --output_path .results/self",
    model="SmolLM2-135M",
)
METHODS = ("bc", "proca_h")
ZERO, ONE, TOGETHER, TRUE = "0 shots", "one self-labelled prompt", "all five together", "true labels, five together"
SHOWN = (
    (ZERO, "bc"),
    (ZERO, "proca_h"),
    (ONE, "proca_h"),
    (TOGETHER, "bc"),
    (TOGETHER, "proca_h"),
    (TRUE, "proca_h"),
)
OURS = (TOGETHER, "proca_h")


def measure(sweeps: Sequence[Sweep]) -> Measured:
    ours, true_labels = sweeps
    observed = [one for task, results in ours.results() for one in self_labelled(task, results)]
    observed += [one for task, results in true_labels.results() for one in with_true_labels(task, results)]
    return Measured(
        [
            {**{key: one[key] for key in ("task", "prompts", "method", "accuracy")}, "draws": one["n"]}
            for one in mean_by(observed, "task", "prompts", "method")
        ]
    )


def self_labelled(task: str, results: dict[str, Any]) -> Iterator[Row]:
    """What one cell of the second pass says: prompt 0 has no demonstrations, the others have theirs."""
    single = results["configs"][task]["metadata"]["proca"]["together"]
    for method in METHODS:
        zero, *others = single[method]["accuracy"]
        together = results["results"][task][f"acc_together,{method}"]
        for what, accuracy in ((ZERO, zero), (ONE, fmean(others)), (TOGETHER, together)):
            yield {"task": short_name(task), "prompts": what, "method": method, "accuracy": accuracy}


def with_true_labels(task: str, results: dict[str, Any]) -> Iterator[Row]:
    for method in METHODS:
        accuracy = results["results"][task][f"acc_together,{method}"]
        yield {"task": short_name(task), "prompts": TRUE, "method": method, "accuracy": accuracy}


def tasks(rows: Sequence[Row]) -> str:
    lines = []
    for what, method in SHOWN:
        numbers = ["" if one is None else percent(one) for one in _accuracies(rows, what, method)]
        title = f"{what}: `{method}`"
        if (what, method) == OURS:
            title, numbers[-1] = bold(title), bold(numbers[-1])
        lines.append([f"*{title}*" if what == TRUE else title, *numbers])
    return markdown(["", *TASKS.values(), AVERAGE], lines)


def gains(rows: Sequence[Row]) -> str:
    """How far all prompts together, with `proca_h`, are above the others, over tasks."""
    ours = _accuracies(rows, *OURS)
    lines = [
        [f"{what}: `{method}`", gain(ours, _accuracies(rows, what, method))]
        for what, method in SHOWN
        if (what, method) != OURS
    ]
    return markdown([f"{OURS[0]}: `{OURS[1]}`, less", "points (95 % interval over tasks)"], lines)


def _accuracies(rows: Sequence[Row], what: str, method: str) -> list[float | None]:
    return by_task(rows, "accuracy", prompts=what, method=method)


TABLE = Table("self-labelled", [SWEEP, prompts.SWEEP], measure, {"tasks": tasks, "gains": gains})
