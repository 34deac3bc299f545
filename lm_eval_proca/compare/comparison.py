"""Everything that result folders say together, ready to be drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from lm_eval_proca.compare.blocks import Block, blocks_of, method_order
from lm_eval_proca.compare.columns import Dataset, Measurement, measurements_of
from lm_eval_proca.compare.leaderboard import Leaderboard, leaderboard
from lm_eval_proca.compare.logged_answers import LoggedAnswers
from lm_eval_proca.compare.names import short_model_names
from lm_eval_proca.compare.results import Notice, read_results
from lm_eval_proca.metrics import added, grouped
from lm_eval_proca.runs.output_folder import mapping, printable
from lm_eval_proca.runs.sample_logs import Correct

NAMED_FITS = 3
"""So many doubtful fits of a method are named in a notice; the results files have all."""


class Preference(NamedTuple):
    """Which labels one model prefers under one method, over all tasks and seeds with these labels and shots."""

    model: str
    shots: int
    method: str
    labels: tuple[str, ...]
    tasks: list[str]
    documents: int
    predicted_share: list[float]
    gold_share: list[float]
    recall_sd: float | None
    predicted_minus_gold: list[float]


@dataclass(frozen=True)
class Report:
    """The tables of all models, one leaderboard per number of shots, and what the reader must know."""

    blocks: Sequence[Block]
    leaderboards: Sequence[Leaderboard]
    notices: Sequence[Notice]
    full_names: Mapping[str, str]
    preferences: Sequence[Preference] = ()

    @property
    def models(self) -> list[str]:
        return sorted(self.full_names)

    @property
    def methods(self) -> list[str]:
        return sorted({method for block in self.blocks for method in block.methods}, key=method_order)

    @property
    def several_prompts(self) -> bool:
        """Whether a run has several prompts; without one, nothing but seeds is spoken of."""
        return any(accuracy.several for block in self.blocks for accuracy in block.accuracies.values())

    @property
    def damaged(self) -> bool:
        return any(notice.kind == "damaged" for notice in self.notices)

    def blocks_of(self, model: str) -> list[Block]:
        return [block for block in self.blocks if block.model == model]

    def datasets_of(self, model: str) -> list[Dataset]:
        """Columns of one model's table."""
        return sorted({dataset for block in self.blocks_of(model) for dataset in block.datasets})


@dataclass(frozen=True)
class CalibratedResults:
    """What was calibrated for a comparison alone: results files as they would be written, and their logged answers."""

    documents: dict[Path, dict[str, Any]] = field(default_factory=dict)
    answers: dict[Path, Correct] = field(default_factory=dict)
    """By the sample logs that they stand in place of."""
    notices: list[Notice] = field(default_factory=list)


def compare(
    folders: Iterable[str | Path],
    tasks: Iterable[str] = ("*",),
    calibrated: CalibratedResults | None = None,
    *,
    groups: bool = False,
) -> Report:
    """Read result folders and work out everything the tables show."""
    known = calibrated or CalibratedResults()
    results = read_results(folders, tasks, groups=groups, documents=known.documents, notices=known.notices)
    short = short_model_names(run.model for run in results.runs)
    runs = [replace(run, model=short[run.model]) for run in results.runs]
    measurements, about_columns = measurements_of(runs)
    blocks, about_gaps = blocks_of(measurements)
    answers = LoggedAnswers(known.answers)
    boards = [leaderboard(of_shots, answers) for of_shots in grouped(blocks, lambda block: block.shots).values()]
    notices = [*results.notices, *answers.notices(), *about_columns, *about_gaps, *_about_fits(measurements)]
    names = {name: full for full, name in short.items()}
    return Report(blocks, boards, notices, names, _preferences(measurements))


def _preferences(measurements: Iterable[Measurement]) -> list[Preference]:
    """How often labels are predicted and right, under the first prompt; tasks with the same words count together."""
    first = [one for one in measurements if one.prompt.number == 0 and one.run.record.labels]
    counted = [one for one in first if one.filter_name in one.run.record.label_counts]
    alike = grouped(counted, lambda one: (one.run.record.labels, one.run.shots, one.run.model, one.method))
    found = []
    for (labels, shots, model, method), of_method in alike.items():
        counts = added(one.run.record.label_counts[one.filter_name] for one in of_method)
        tasks = sorted({one.run.task for one in of_method})
        predicted, gold = counts.predicted_share, counts.gold_share
        surplus = [a - b for a, b in zip(predicted, gold, strict=True)]
        shares = (counts.documents, predicted, gold, counts.recall_sd, surplus)
        found.append(Preference(model, shots, method, labels, tasks, *shares))
    return sorted(found, key=lambda one: (one.tasks, one.labels, one.shots, one.model, method_order(one.method)))


def _about_fits(measurements: Iterable[Measurement]) -> Iterator[Notice]:
    """The warnings of fits, which are those of the first prompt, and of ensembles: per method its first few cases."""
    of_method = grouped((one for one in measurements if not one.prompt.number), lambda one: one.method)
    for method in sorted(of_method, key=method_order):
        warned = [text for one in of_method[method] if (text := _warnings(one))]
        if warned:
            more = [f"And {len(warned) - NAMED_FITS} more."] if len(warned) > NAMED_FITS else []
            text = f"{method} warns of {len(warned)} of {len(of_method[method])} fits."
            yield Notice("fit", " ".join([text, *warned[:NAMED_FITS], *more]))


def _warnings(one: Measurement) -> str:
    run = one.run
    reports = run.record.fits if one.prompt.number == 0 else run.record.together
    said = mapping(reports, one.filter_name).get("warnings")
    if not said or not isinstance(said, list):
        return ""
    return f"{run.model} on {run.task}, {run.shots} shots, seed {run.seed}: {' '.join(map(printable, said))}"
