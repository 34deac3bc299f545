"""Demonstrations that the model has labeled itself: two draws, six in each prompt, SmolLM2-135M."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np
from scipy.special import logit
from scipy.stats import spearmanr

from lm_eval_proca.metrics import accuracy, grouped, mean
from lm_eval_proca.paper.display import short_name
from lm_eval_proca.scores.fitting import make_calibrators
from lm_eval_proca.scores.prompt_sets import Together, calibrate_together
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.scores.together import Prompts
from results.markdown import AVERAGE, CLEAR, TASKS, bold, gain, markdown, percent, signed, steps
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
ZERO, ONE, TOGETHER = "0 shots", "one self-labelled prompt", "all five together"
TRUE = "true labels, five together"
SHOWN = (
    (ZERO, "bc"),
    (ZERO, "proca_h"),
    (ONE, "proca_h"),
    (TOGETHER, "bc"),
    (TOGETHER, "proca_h"),
    (TRUE, "proca_h"),
)
OURS = (TOGETHER, "proca_h")


def answers_changed(prompts: Prompts) -> float:
    """Share of documents to which all together give another label than prompt 0 does."""
    return float(np.mean(prompts.predicted_together != prompts.predicted[0]))


def mutual_predictability(prompts: Prompts) -> float:
    """Mean log-odds, under demonstrations with labels of prompt 0, of the label that it gives a document."""
    log_proba = np.take_along_axis(prompts.log_proba[1:], prompts.predicted[0][None, :, None], axis=2)
    return float(np.mean(logit(np.clip(np.exp(log_proba), 1e-6, 1 - 1e-6))))


def confidence_gained(prompts: Prompts) -> float:
    """How much more probable all together find their labels than prompt 0 finds its own."""
    return float(np.mean(np.exp(prompts.together.max(axis=1))) - np.mean(np.exp(prompts.log_proba[0].max(axis=1))))


JUDGES: dict[str, Callable[[Prompts], float]] = {
    "kappa": lambda prompts: prompts.kappa,
    "answers changed": answers_changed,
    "mutual predictability": mutual_predictability,
    "confidence gained": confidence_gained,
}
"""What could say without labels whether demonstrations have helped."""


def measure(sweeps: Sequence[Sweep]) -> Measured:
    self_made, shown = sweeps
    true_labels = by_draw(shown.tables())
    rows = []
    for draw, tables in by_draw(self_made.tables()).items():
        true = _together(true_labels[draw])
        rows += [{**row, TRUE: _accuracy(true, row["method"])} for row in rows_of(tables)]
    return Measured(rows)


def rows_of(tables: Sequence[ScoreTable]) -> Iterator[Row]:
    """What one cell of the second pass shows, by method."""
    together, record = _together(tables), tables[0].record
    for method in METHODS:
        zero, *others = together.report[method]["accuracy"]
        yield {
            **{"task": short_name(record.task), "seed": record.seed, "method": method},
            **{ZERO: zero, ONE: fmean(others), TOGETHER: _accuracy(together, method)},
            **{name: judge(together.methods[method]) for name, judge in JUDGES.items()},
        }


def by_draw(tables: Sequence[ScoreTable]) -> dict[Any, list[ScoreTable]]:
    return grouped(tables, lambda table: (short_name(table.record.task), table.record.seed))


def _together(tables: Sequence[ScoreTable]) -> Together:
    return calibrate_together(tables, make_calibrators(METHODS))


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
    others = {(what, method): _accuracies(rows, what, method) for what, method in SHOWN if (what, method) != OURS}
    lines = [
        [f"{what}: `{method}`", gain(ours, other), *steps(ours, other)] for (what, method), other in others.items()
    ]
    header = ["points (95 % interval over tasks)", "median", "tasks above, below by more than 1"]
    return markdown([f"{OURS[0]}: `{OURS[1]}`, less", *header], lines)


def draws(rows: Sequence[Row]) -> str:
    """`proca_h` by task and draw: without demonstrations and with, and how far prompts agree."""
    lines = []
    for task, name in TASKS.items():
        for row in rows:
            if (row["task"], row["method"]) == (task, OURS[1]):
                numbers = [percent(row[column]) for column in (ZERO, ONE, TOGETHER)]
                lines.append([name, str(row["seed"]), *numbers, signed(100 * _gained(row)), f"{row['kappa']:.2f}"])
    return markdown(["", "seed", ZERO, ONE, TOGETHER, "gain", "kappa"], lines)


def judges(rows: Sequence[Row]) -> str:
    """How well numbers without labels tell which runs gain, for `proca_h`."""
    ours = [row for row in rows if row["method"] == OURS[1]]
    gained = [_gained(row) for row in ours]
    lost = [100 * number < -CLEAR for number in gained]
    lines = []
    for name in JUDGES:
        said = [row[name] for row in ours]
        of_losses, of_others = (
            [one for one, is_loss in zip(said, lost, strict=True) if is_loss is k] for k in (True, False)
        )
        span = [f"{min(some):.2f} to {max(some):.2f}" if some else "" for some in (of_losses, of_others)]
        lines.append([name, f"{spearmanr(said, gained).statistic:.2f}", *span])
    header = ["rank correlation with the gain", f"the {sum(lost)} runs that lose more than 1", "all others"]
    return markdown(["", *header], lines)


def _gained(row: Row) -> float:
    return float(row[TOGETHER] - row[ZERO])


def _accuracies(rows: Sequence[Row], what: str, method: str) -> list[float | None]:
    """Means over draws by task, then the average."""
    by_task = grouped([row for row in rows if row["method"] == method], lambda row: row["task"])
    means = [mean(row[what] for row in by_task[task]) if task in by_task else None for task in TASKS]
    found = [one for one in means if one is not None]
    return [*means, mean(found) if len(found) == len(TASKS) else None]


TABLE = Table(
    "self-labelled", [SWEEP, prompts.SWEEP], measure, {"tasks": tasks, "gains": gains, "draws": draws, "judges": judges}
)
