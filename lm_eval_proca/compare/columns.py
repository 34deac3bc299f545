"""Columns of the tables: results of a task under the same conditions, named by what tells them from the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import yaml

from lm_eval_proca.compare.names import ensemble_name, short_task_name
from lm_eval_proca.compare.results import Notice, Run
from lm_eval_proca.metrics import grouped
from lm_eval_proca.runs.sample_logs import Number
from lm_eval_proca_discovery import task_configs_path

SHOWN_DUPLICATES = 5

LIMIT, SIZE, DOCUMENTS, VARIED = "limit", "estimate set size", "evaluated documents", "what differs between prompts"
CONDITIONS = (
    "task version", LIMIT, SIZE, "number of evaluated rows", DOCUMENTS,
    "choice of demonstrations", "template", VARIED,
)  # fmt: skip
"""What must agree before two results of a task may be averaged or compared."""

Words = tuple[str, ...]
"""The CONDITIONS of one run, each in words."""


@dataclass(frozen=True, order=True)
class Dataset:
    """A task under one set of conditions; ordered as in the paper's tables."""

    position: int
    name: str
    task: str


class PromptId(NamedTuple):
    """Which prompt a result is of: the seed of its run, and its number in there.

    Prompt 0 is what a run with one prompt has, so that the two can be compared. None is all prompts of a run together.
    """

    seed: int | None
    number: Number = 0

    def __str__(self) -> str:
        return f"{self.seed}/{self.number}" if self.number else str(self.seed)

    @property
    def in_words(self) -> str:
        return f"seed {self.seed}, prompt {self.number}" if self.number else f"seed {self.seed}"

    @property
    def together(self) -> PromptId:
        return PromptId(self.seed, None)


@dataclass(frozen=True, eq=False)
class Measurement:
    """The accuracy of one method under one prompt of a run, or under all together."""

    run: Run
    dataset: Dataset
    filter_name: str
    prompt: PromptId
    accuracy: float

    @property
    def method(self) -> str:
        """What the tables call the filter."""
        name = self.run.methods[self.filter_name]
        return name if self.prompt.number is not None else ensemble_name(name, self.run.record.prompts)


def measurements_of(runs: Iterable[Run]) -> tuple[list[Measurement], list[Notice]]:
    """Every accuracy that counts, in its column; of several results that measure the same, the newest."""
    measurements: list[Measurement] = []
    notices: list[Notice] = []
    order = yaml.safe_load(Path(task_configs_path(), "proca.yaml").read_text(encoding="utf-8"))["task"]
    for task, of_task in sorted(grouped(runs, lambda run: run.task).items()):
        comparable = {run: _comparable(run, of_task) for run in of_task}
        names, differing = _column_names(task, comparable.values())
        if differing:
            what, columns = ", ".join(differing), ", ".join(names.values())
            text = f"Results of {task} differ in {what}; they stand in separate columns: {columns}."
            notices.append(Notice("differing", text))
        position = order.index(task) if task in order else len(order)
        for run in of_task:
            dataset = Dataset(position, names[comparable[run]], task)
            for name, number, accuracy in run.measured():
                measurements.append(Measurement(run, dataset, name, PromptId(run.seed, number), accuracy))
        sizes = sorted({run.record.estimate_size or 0 for run in of_task if run.record.generated} - {0})
        if len(sizes) > 1:
            text = f"Generated estimate sets of {task} differ in size: {', '.join(map(str, sizes))} documents."
            notices.append(Notice("differing", text))
    kept, replaced = _newest(measurements)
    return kept, notices + replaced


def _comparable(run: Run, of_task: Sequence[Run]) -> Words:
    """The conditions of a run, with those in place of its own that others set and it leaves open.

    A generated estimate set stands beside the sampled one: its size is an outcome, not a setting. One prompt stands
    beside several, whatever differs between these: it is the first of them. The same documents are the same under any
    limit: lm-eval writes down a share, a run of ours the number that it came to.
    """
    words = list(_conditions(run))
    if (documents := run.record.documents_hash) is not None:
        same = [other for other in of_task if other.record.documents_hash == documents]
        words[CONDITIONS.index(LIMIT)] = min(_conditions(other)[CONDITIONS.index(LIMIT)] for other in same)
    left_open = [condition for condition in (SIZE, DOCUMENTS, VARIED) if not _sets(run, condition)]
    closed = [k for k, condition in enumerate(CONDITIONS) if condition not in left_open]
    alike = [other for other in of_task if all(_conditions(other)[k] == _conditions(run)[k] for k in closed)]
    for k in {*range(len(CONDITIONS))} - {*closed}:
        found = {_conditions(other)[k] for other in alike if _sets(other, CONDITIONS[k])}
        words[k] = found.pop() if len(found) == 1 else words[k]
    return tuple(words)


def _sets(run: Run, condition: str) -> bool:
    record = run.record
    open_ = {SIZE: record.generated, DOCUMENTS: record.documents_hash is None, VARIED: record.vary is None}
    return not open_.get(condition, False)


def _conditions(run: Run) -> Words:
    record = run.record
    counts, order = record.demonstration_counts, record.order_seed
    chosen = [f"demonstrations {'/'.join(map(str, counts))}"] if counts is not None else []
    chosen += [f"order {order}"] if order is not None else []
    chosen += ["self-labelled demonstrations"] if record.demonstrated_by else []
    return (
        f"version {record.task_version}",
        "no limit" if record.limit is None else f"limit {record.limit:g}",
        _estimate_set(run),
        f"{record.eval_rows} rows",
        f"documents {record.documents_hash[:6]}" if record.documents_hash else "documents not known",
        ", ".join(chosen) or "demonstrations as drawn",
        f"template {run.template}",
        f"prompts differ in {record.vary}" if record.vary else "one prompt",
    )


def _estimate_set(run: Run) -> str:
    record = run.record
    if not _sets(run, SIZE):
        return "estimate generated"
    return f"estimate {record.estimate_size}" if record.estimate_size else "no estimate set"


def _column_names(task: str, conditions: Iterable[Words]) -> tuple[dict[Words, str], list[str]]:
    """A name for each set of conditions, with as few differences as tell them apart; and all that differs."""
    short = short_task_name(task)
    labels = dict.fromkeys(conditions, "")
    differing = [k for k, words in enumerate(zip(*labels, strict=True)) if len(set(words)) > 1]
    for k in differing:
        if len(set(labels.values())) < len(labels):
            labels = {words: f"{label}, {words[k]}" if label else words[k] for words, label in labels.items()}
    named = {words: f"{short} [{label}]" if label else short for words, label in labels.items()}
    return named, [CONDITIONS[k] for k in differing]


def _newest(measurements: Iterable[Measurement]) -> tuple[list[Measurement], list[Notice]]:
    alike = grouped(measurements, lambda one: (one.run.model, one.dataset, one.run.shots, one.prompt, one.method))
    kept: list[Measurement] = []
    replaced: dict[tuple[Run, Run], None] = {}
    for competing in alike.values():
        # Raw and contextual accuracy do not depend on the estimate set: the sampled run's stand for both.
        sampled = [one for one in competing if not one.run.record.generated] or competing
        *older, newest = sorted(sampled, key=lambda one: one.run.date)  # of the same date, the later named
        kept.append(newest)
        replaced |= {(newest.run, one.run): None for one in older}
    notices = [Notice("duplicate", _why_replaced(newest, old)) for newest, old in replaced]
    if len(notices) > SHOWN_DUPLICATES:
        more = len(notices) - SHOWN_DUPLICATES
        notices[SHOWN_DUPLICATES:] = [
            Notice("duplicate", f"{more} more results do not count, newer or later named ones do.")
        ]
    return kept, notices


def _why_replaced(newest: Run, old: Run) -> str:
    a, b = newest.record, old.record
    differs = ["prompts"] * (None not in (a.prompt_hash, b.prompt_hash) and a.prompt_hash != b.prompt_hash)
    differs += ["estimate rows"] * (bool(a.estimate_size or b.estimate_size) and a.unlabeled_hash != b.unlabeled_hash)
    how = f" with different {' and '.join(differs)}" if differs else ""
    what = f"{newest.task}, {newest.shots} shots, seed {newest.seed} of {newest.model}"
    if (newest.date, newest.file.name) == (old.date, old.file.name) and not differs:
        return (
            f"{what} is one run, calibrated more than once: {newest.file}, named later, counts where {old.file} has "
            f"the same row; `lm-eval-proca calibrate --calibrators … --output DIR` puts all rows into one folder."
        )
    return f"{what} was run more than once{how}: {newest.file} is newer and counts, {old.file} does not."


def averaged_datasets(measurements: Iterable[Measurement]) -> list[Dataset]:
    """One column per task: the one with most models, then most runs, then the newest."""
    of_dataset = grouped(measurements, lambda one: one.dataset)

    def preference(dataset: Dataset) -> tuple[int, int, float]:
        runs = [one.run for one in of_dataset[dataset]]
        return len({run.model for run in runs}), len(runs), max(run.date for run in runs)

    return sorted({dataset.task: dataset for dataset in sorted(of_dataset, key=preference)}.values())
