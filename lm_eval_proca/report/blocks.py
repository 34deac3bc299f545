"""Mean and standard deviation over seeds, and the average over datasets: the cells of the paper's table."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lm_eval_proca.report.datasets import Dataset, Measurement, averaged_datasets
from lm_eval_proca.report.results import Notice, short_task_name

RAW_METHOD = "raw"
METHOD_ORDER = (RAW_METHOD, "conca", "bc", "bc-g", "proca-g", "proca")
DECIMALS = 1
"""Of the per cent shown; what looks equal in a table is equally best."""


def method_order(method: str) -> tuple[int, str]:
    """Raw first, the paper's method last, anybody's own method after that."""
    return (METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER), method)


def mean_of(values: Iterable[float]) -> float:
    """Rounded far below what anybody reads, so that equal means are equal: a rank or a win must not hang on a bit."""
    return round(statistics.fmean(values), 12)


@dataclass(frozen=True)
class Score:
    """One cell: the accuracy of a method on a dataset under each seed."""

    by_seed: Mapping[int | None, Measurement]
    fewer_seeds: bool

    @property
    def values(self) -> list[float]:
        return [one.accuracy for one in self.by_seed.values()]

    @property
    def mean(self) -> float:
        return mean_of(self.values)

    @property
    def sd(self) -> float | None:
        """Sample standard deviation; one seed has no spread to speak of."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True)
class Average:
    """Over one column per task; `mean` is None where other rows with as many shots have a dataset that this one lacks.

    `present` of the `expected` tasks are behind it: all that are compared, with any number of shots.
    """

    mean: float | None
    present: int
    expected: int
    fewer_seeds: bool

    @property
    def partial(self) -> bool:
        return self.present < self.expected


@dataclass(frozen=True)
class Block:
    """One model under one number of shots: a block of rows in the paper's table."""

    model: str
    shots: int
    averaged: Sequence[Dataset]
    methods: Sequence[str]
    scores: Mapping[tuple[str, Dataset], Score]
    averages: Mapping[str, Average]

    def best(self, dataset: Dataset | None) -> set[str]:
        """The methods in bold for a dataset, or for the average (None)."""
        shown = {}
        for method in self.methods:
            score = self.averages[method] if dataset is None else self.scores.get((method, dataset))
            if score is not None and score.mean is not None:
                shown[method] = round(100 * score.mean, DECIMALS)
        return {method for method, value in shown.items() if len(shown) > 1 and value == max(shown.values())}


def blocks_of(measurements: Sequence[Measurement]) -> tuple[list[Block], list[Notice]]:
    """All blocks, by shots and model, and what is missing in them."""
    blocks: list[Block] = []
    notices: list[Notice] = []
    tasks = {one.dataset.task: one.dataset for one in measurements}
    for shots in sorted({one.run.shots for one in measurements}):
        of_shots = [one for one in measurements if one.run.shots == shots]
        averaged = averaged_datasets(of_shots)
        notices += _not_run(shots, averaged, sorted(tasks.values()))
        for model in sorted({one.run.model for one in of_shots}):
            of_model = [one for one in of_shots if one.run.model == model]
            block = _block(model, shots, averaged, len(tasks), of_model)
            blocks.append(block)
            notices += _missing(block)
    return blocks, notices


def _block(model: str, shots: int, averaged: Sequence[Dataset], tasks: int, of_model: Sequence[Measurement]) -> Block:
    all_seeds = {one.run.seed for one in of_model}
    cells: dict[tuple[str, Dataset], dict[int | None, Measurement]] = {}
    for one in sorted(of_model, key=lambda one: -1 if one.run.seed is None else one.run.seed):
        cells.setdefault((one.method, one.dataset), {})[one.run.seed] = one
    scores = {cell: Score(by_seed, fewer_seeds=set(by_seed) != all_seeds) for cell, by_seed in cells.items()}
    methods = sorted({method for method, _ in scores}, key=method_order)
    averages = {}
    for method in methods:
        present = [scores[method, dataset] for dataset in averaged if (method, dataset) in scores]
        complete = len(present) == len(averaged)
        averages[method] = Average(
            mean=mean_of(score.mean for score in present) if complete else None,
            present=len(present),
            expected=tasks,
            fewer_seeds=any(score.fewer_seeds for score in present),
        )
    return Block(model, shots, averaged, methods, scores, averages)


def _not_run(shots: int, averaged: Sequence[Dataset], one_per_task: Sequence[Dataset]) -> Iterable[Notice]:
    run = {dataset.task for dataset in averaged}
    gap = [short_task_name(dataset.task) for dataset in one_per_task if dataset.task not in run]
    if gap:
        yield Notice(
            "missing",
            f"No result with {shots} shots for {', '.join(gap)}, so averages with {shots} shots are over the other "
            f"{len(run)} of {len(one_per_task)} tasks.",
        )


def _missing(block: Block) -> Iterable[Notice]:
    by_gap: dict[tuple[str, ...], list[str]] = {}
    for method in block.methods:
        gap = tuple(dataset.name for dataset in block.averaged if (method, dataset) not in block.scores)
        if gap:
            by_gap.setdefault(gap, []).append(method)
    for gap, methods in by_gap.items():
        who = "" if len(methods) == len(block.methods) else f" ({', '.join(methods)})"
        yield Notice(
            "missing",
            f"{block.model}, {block.shots} shots{who}: no result for {', '.join(gap)}, so its average is left out.",
        )
    fewer = {dataset.name for (_, dataset), score in block.scores.items() if score.fewer_seeds}
    if fewer:
        yield Notice(
            "missing",
            f"{block.model}, {block.shots} shots: fewer seeds (†) for {', '.join(sorted(fewer))} than for the rest.",
        )
