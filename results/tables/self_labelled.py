"""Demonstrations that the model has labeled itself: two draws, six in each prompt, SmolLM2-135M."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from lm_eval_proca.metrics import accuracy, grouped, mean
from lm_eval_proca.paper.display import short_name
from lm_eval_proca.scores.fitting import make_calibrators
from lm_eval_proca.scores.prompt_sets import Together, calibrate_together
from lm_eval_proca.scores.score_table import ScoreTable
from results.markdown import AVERAGE, TASKS, bold, gain, markdown, percent
from results.results_file import Row
from results.sweeps import EVERY_METHOD, SMOLLM2_ARGS, Sweep
from results.table import Measured, Table
from results.tables import prompts

COMMAND = (
    f"lm-eval-proca sweep --demonstrations self --model_args {SMOLLM2_ARGS} --num_fewshot 6 --limit 200 "
    f"--metadata proca.estimate_size=400 {EVERY_METHOD} --output_path .results/self"
)
SWEEP = Sweep(f"{COMMAND} --seeds 12 13", model="SmolLM2-135M")
METHODS = ("bc", "proca_h")
ZERO, ONE, TOGETHER, UNGUARDED, TRUE = (
    *("0 shots", "one self-labelled prompt", "all five together"),
    *("all five, without the guard", "true labels, five together"),
)
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
    *self_made, shown = sweeps
    ours = by_draw([table for sweep in self_made for table in sweep.tables()])
    true_labels = by_draw(shown.tables())
    rows = []
    for draw, tables in ours.items():
        true = _together(true_labels[draw]) if draw in true_labels else None
        for row in rows_of(tables):
            rows.append({**row, TRUE: None if true is None else _accuracy(true, row["method"])})
    return Measured(rows)


def rows_of(tables: Sequence[ScoreTable]) -> Iterator[Row]:
    """What one cell of the second pass shows, by method."""
    with_guard, without = _together(tables), _together([_unguarded(table) for table in tables])
    record = tables[0].record
    for method in METHODS:
        zero, *others = with_guard.report[method]["accuracy"]
        yield {
            **{"task": short_name(record.task), "seed": record.seed, "method": method},
            **{ZERO: zero, ONE: fmean(others), TOGETHER: _accuracy(with_guard, method)},
            UNGUARDED: _accuracy(without, method),
            "kappa": with_guard.methods[method].kappa,
            "guarded": with_guard.methods[method].only_first,
        }


def by_draw(tables: Sequence[ScoreTable]) -> dict[Any, list[ScoreTable]]:
    return grouped(tables, lambda table: (short_name(table.record.task), table.record.seed))


def _together(tables: Sequence[ScoreTable]) -> Together:
    return calibrate_together(tables, make_calibrators(METHODS))


def _unguarded(table: ScoreTable) -> ScoreTable:
    """Prompts that do not say where their labels come from are always put together."""
    return replace(table, record=replace(table.record, demonstrated_by={}))


def _accuracy(together: Together, method: str) -> float:
    return accuracy(together.gold, together.methods[method].predicted_together)


# ------------------------------------------------------------------ views


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


def guard(rows: Sequence[Row]) -> str:
    """`proca_h` by task and draw: how far prompts agree, who answers, and what all together would have said."""
    lines = []
    for task, name in TASKS.items():
        for row in rows:
            if (row["task"], row["method"]) == (task, OURS[1]):
                answers = "prompt 0" if row["guarded"] else "all five"
                numbers = [percent(row[column]) for column in (ZERO, UNGUARDED, TOGETHER)]
                lines.append([name, str(row["seed"]), f"{row['kappa']:.2f}", *numbers[:2], answers, numbers[2]])
    header = ["", "seed", "kappa", ZERO, UNGUARDED, "who answers", "the run's answer"]
    return markdown(header, lines)


def _accuracies(rows: Sequence[Row], what: str, method: str) -> list[float | None]:
    """Means over draws by task, then the average."""
    by_task = grouped([row for row in rows if row["method"] == method], lambda row: row["task"])
    known = {task: [row[what] for row in some if row[what] is not None] for task, some in by_task.items()}
    means = [mean(known[task]) if known.get(task) else None for task in TASKS]
    found = [one for one in means if one is not None]
    return [*means, mean(found) if len(found) == len(TASKS) else None]


TABLE = Table("self-labelled", [SWEEP, prompts.SWEEP], measure, {"tasks": tasks, "gains": gains, "guard": guard})
