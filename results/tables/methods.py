"""Every method by task, with one prompt, beside regressions that have labels: 0 and 4 shots, SmolLM2-135M."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.metrics import mean_by
from lm_eval_proca.paper.display import short_name
from lm_eval_proca.paper.methods import SUPERVISED_SCORES, SUPERVISED_STATES, Methods
from lm_eval_proca.scores.fitting import make_calibrators
from results.markdown import (
    AVERAGE,
    TASKS,
    average,
    best_in_bold,
    bold,
    by_task,
    gain,
    markdown,
    method_name,
    methods_of,
    percent,
    spread,
    value,
)
from results.results_file import Row
from results.sweeps import Sweep
from results.table import Measured, Table
from results.tables import prompts, self_labelled

LABELS = {SUPERVISED_SCORES: "*labels on scores*", SUPERVISED_STATES: "*labels on hidden states*"}
"""The regressions, which come last."""
SHOTS = (0, 4)
PAPER = {
    "GPT-2-Large, 0.8B": (50.1, 56.3, 64.8, 45.8, 60.4, 67.9),
    "GPT-2-XL, 1.5B": (48.4, 55.2, 62.7, 48.5, 61.5, 68.4),
    "GPT-neo, 2.7B": (47.6, 53.2, 62.7, 62.1, 69.7, 74.3),
    "GPT-J, 6B": (46.1, 53.4, 61.5, 68.0, 72.9, 77.3),
    "Bloom, 176B": (53.4, 51.7, 63.9, 71.7, 75.9, 78.5),
}
"""The paper's averages: raw, contextual calibration and ProCa at 0 shots, then at 4."""


def measure(sweeps: Sequence[Sweep]) -> Measured:
    with_shots, *without = sweeps
    tables = [table for sweep in without for table in sweep.tables_of_first_passes()] + with_shots.tables()
    observed = Methods.observe(tables, make_calibrators(CALIBRATORS))
    means = mean_by(observed, "num_fewshot", "task", "calibrator")
    return Measured(
        [
            {
                "shots": one["num_fewshot"],
                "task": short_name(one["task"]),
                "method": one["calibrator"],
                **{column: one[column] for column in ("accuracy", "sd", "n")},
            }
            for one in means
        ]
    )


def tasks(rows: Sequence[Row]) -> str:
    """Mean ± sd over runs; the best method without labels is bold."""
    lines = []
    for shots in SHOTS:
        methods = _methods(rows, shots)
        without = [method for method in methods if method not in LABELS]
        columns = zip(*(by_task(rows, "accuracy", shots=shots, method=method) for method in without), strict=True)
        best = dict(zip(without, zip(*map(best_in_bold, columns), strict=True), strict=True))
        for method in methods:
            plain = ["" if one is None else percent(one) for one in _accuracies(rows, shots, method)]
            cells = best.get(method, plain)
            spreads = [*(spread(value(rows, "sd", task=task, shots=shots, method=method)) for task in TASKS), ""]
            name = _name(method)
            title = bold(name) if cells[-1].startswith("**") else name
            lines.append([str(shots), title, *map("".join, zip(cells, spreads, strict=True))])
    return markdown(["shots", "method", *TASKS.values(), AVERAGE], lines)


def gains(rows: Sequence[Row]) -> str:
    """How far `proca_h` is above each method, over tasks."""
    others = [method for method in _methods(rows, SHOTS[0]) if method != "proca_h"]
    lines = [
        [
            _name(method),
            *(gain(_accuracies(rows, shots, "proca_h"), _accuracies(rows, shots, method)) for shots in SHOTS),
        ]
        for method in others
    ]
    return markdown(["ProCa-h less", *(f"{shots} shots" for shots in SHOTS)], lines)


def paper(rows: Sequence[Row]) -> str:
    """Averages beside those of the paper."""
    compared = ("none", "conca", "proca")
    ours = [average(rows, "accuracy", shots=shots, method=method) for shots in SHOTS for method in compared]
    lines = [["SmolLM2, 0.1B, *this table*", *_best_of_three(ours)]]
    lines += [[model, *_best_of_three([number / 100 for number in numbers])] for model, numbers in PAPER.items()]
    names = [_name(method) for method in compared]
    header = [name for shots in SHOTS for name in (f"{shots} shots: {names[0]}", *names[1:])]
    return markdown(["", *header], lines)


def _best_of_three(shares: Sequence[float | None]) -> list[str]:
    return [*best_in_bold(shares[:3]), *best_in_bold(shares[3:])]


def _methods(rows: Sequence[Row], shots: int) -> list[str]:
    found = methods_of(row for row in rows if row["shots"] == shots)
    return [name for name in found if name not in LABELS] + [name for name in LABELS if name in found]


def _name(method: str) -> str:
    return LABELS.get(method) or method_name(method)


def _accuracies(rows: Sequence[Row], shots: int, method: str) -> list[float | None]:
    return by_task(rows, "accuracy", shots=shots, method=method)


TABLE = Table(
    "methods", [prompts.SWEEP, self_labelled.SWEEP], measure, {"tasks": tasks, "gains": gains, "paper": paper}
)
