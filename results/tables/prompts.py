"""Five prompts of each task, alone and together: 4 shots, SmolLM2-135M."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.metrics import Observation, grouped
from lm_eval_proca.paper.display import short_name
from lm_eval_proca.paper.prompts import AVERAGE, Prompts
from lm_eval_proca.scores.fitting import make_calibrators
from results.markdown import TASKS, average, best_in_bold, bold, by_task, gain, markdown, percent
from results.results_file import Row
from results.sweeps import EVERY_METHOD, SMOLLM2_ARGS, Sweep
from results.table import Measured, Table

SWEEP = Sweep(
    f"lm-eval-proca sweep --model_args {SMOLLM2_ARGS} --num_fewshot 4 --seeds 12 13 --limit 200 "
    f"--metadata proca.prompts=5 proca.estimate_size=400 {EVERY_METHOD} --output_path .results/prompts",
    model="SmolLM2-135M",
)
DRAWN = ("none", "conca", "bc", "proca", "proca_a", "proca_h")
"""The figure has no room for more."""
SHOWN = {"none": "raw", "bc": "`bc`", "proca_h": "`proca_h`"}
ONE, TOGETHER = "one prompt", "together"


def analysis_of(sweep: Sweep) -> Prompts:
    """What `lm-eval-proca analyze prompts` finds on the tables of a sweep, with every calibrator that there is."""
    return Prompts.from_tables(sweep.tables(), make_calibrators(CALIBRATORS))


def rows_of(analysis: Prompts) -> list[Row]:
    """By task and method: one prompt, its spread, all prompts together, and how prompts judge each other."""
    judged = grouped(analysis.observed, lambda one: (one["task"], one["calibrator"]))
    return [
        {
            "task": short_name(row["task"]),
            "method": row["calibrator"],
            **{column: row[column] for column in (ONE, "sd", "worst", TOGETHER, "prompts")},
            **_judged(judged[row["task"], row["calibrator"]]),
        }
        for row in analysis.summary()
        if row["task"] != AVERAGE
    ]


def _judged(observed: Sequence[Observation]) -> Row:
    failed = [one for one in observed if one["failed"]]
    return {
        "failures": len(failed),
        "failures named": sum(one["doubtful"] for one in failed),
        "false alarms": sum(one["doubtful"] for one in observed) - sum(one["doubtful"] for one in failed),
    }


def measure(sweeps: Sequence[Sweep]) -> Measured:
    [sweep] = sweeps
    found = analysis_of(sweep)
    return Measured(rows_of(found), Prompts([one for one in found.observed if one["calibrator"] in DRAWN]).plot())


def averages(rows: Sequence[Row]) -> str:
    best = best_in_bold([average(rows, TOGETHER, method=method) for method in SHOWN])
    lines = [
        [
            bold(name) if together.startswith("**") else name,
            _with_spread(average(rows, ONE, method=method), average(rows, "sd", method=method)),
            together,
        ]
        for (method, name), together in zip(SHOWN.items(), best, strict=True)
    ]
    return markdown(["", "one prompt (sd over prompts)", "five prompts together"], lines)


def tasks(rows: Sequence[Row]) -> str:
    columns = zip(*(by_task(rows, TOGETHER, method=method) for method in SHOWN), strict=True)
    together = zip(*map(best_in_bold, columns), strict=True)
    lines = []
    for (method, name), numbers in zip(SHOWN.items(), together, strict=True):
        alone = zip(by_task(rows, ONE, method=method), by_task(rows, "sd", method=method), strict=True)
        sd = "(sd over prompts)" if method == "none" else "(sd)"
        lines.append([f"{name}, one prompt {sd}", *(_with_spread(*pair) for pair in alone)])
        title = f"{name}, five together"
        lines.append([bold(title) if numbers[-1].startswith("**") else title, *numbers])
    return markdown(["", *TASKS.values(), AVERAGE], lines)


def gains(rows: Sequence[Row]) -> str:
    """How far `proca_h` with five prompts is above the others, over tasks."""
    ours = by_task(rows, TOGETHER, method="proca_h")
    lines = [
        [f"{name}, {'one prompt' if column == ONE else 'five together'}", gain(ours, by_task(rows, column, method=key))]
        for key, name in SHOWN.items()
        for column in (ONE, TOGETHER)
        if (key, column) != ("proca_h", TOGETHER)
    ]
    return markdown(["`proca_h`, five together, is better than", "points (95 % interval over tasks)"], lines)


def judged(rows: Sequence[Row]) -> str:
    """Fits of single prompts that are 5 points or more below batch calibration, and who is named without labels."""
    lines = []
    for method, alike in grouped(rows, lambda row: row["method"]).items():
        prompts, failures, named, alarms = (
            sum(row[key] for row in alike) for key in ("prompts", "failures", "failures named", "false alarms")
        )
        if method not in ("none", "bc"):
            lines.append([f"`{method}`", f"{named} of {failures}", f"{alarms} of {prompts - failures}"])
    return markdown(["", "failures named", "false alarms"], lines)


def _with_spread(number: float | None, sd: float | None) -> str:
    return "" if number is None or sd is None else f"{percent(number)} ({percent(sd)})"


TABLE = Table(
    "prompts",
    [SWEEP],
    measure,
    {"averages": averages, "tasks": tasks, "gains": gains, "judged": judged},
    figure="Accuracy of single prompts, each a dot, and of five prompts together, a bar, by task and method",
)
