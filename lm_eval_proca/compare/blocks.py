"""The paper's table: per model and number of shots a block, every method on every dataset, and the averages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lm_eval_proca.compare.columns import Dataset, Measurement, averaged_datasets
from lm_eval_proca.compare.names import short_task_name
from lm_eval_proca.compare.results import Notice
from lm_eval_proca.metrics import grouped, mean, standard_deviation

RAW_METHOD = "raw"
METHOD_ORDER = (RAW_METHOD, "bc", "bc-g", "conca", "proca-g", "proca", "proca_a", "proca_h")
DECIMALS = 1
"""Of the per cent shown; methods that look equal in a table are equally best."""

Seed = int | None


def method_order(method: str) -> tuple[int, str]:
    """Sorts methods as METHOD_ORDER does; others follow by name."""
    return (METHOD_ORDER.index(method) if method in METHOD_ORDER else len(METHOD_ORDER), method)


@dataclass(frozen=True)
class Accuracy:
    """One method on one dataset, by seed; `fewer_seeds`: other results with as many shots have more seeds."""

    by_seed: Mapping[Seed, Measurement]
    fewer_seeds: bool

    @property
    def values(self) -> dict[Seed, float]:
        return {seed: one.accuracy for seed, one in self.by_seed.items()}

    @property
    def mean(self) -> float:
        return mean(self.values.values())

    @property
    def sd(self) -> float | None:
        return standard_deviation(list(self.values.values()))


@dataclass(frozen=True)
class Average:
    """Over one column per task; `mean` is None if other rows with as many shots have a dataset that this one lacks.

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
    accuracies: Mapping[tuple[str, Dataset], Accuracy]
    tasks: int
    """How many are compared, with any number of shots."""

    @property
    def datasets(self) -> list[Dataset]:
        """All that the block has, and those that its averages lack."""
        return sorted({dataset for _, dataset in self.accuracies} | set(self.averaged))

    def average(self, method: str, seeds: Mapping[Dataset, set[Seed]] | None = None) -> Average:
        """Over all seeds of each dataset, or over these `seeds`; None if one of them is missing."""
        present = {d: self.accuracies[method, d] for d in self.averaged if (method, d) in self.accuracies}
        chosen = seeds or {dataset: set(accuracy.by_seed) for dataset, accuracy in present.items()}
        has_seeds = [chosen[d] and chosen[d] <= accuracy.by_seed.keys() for d, accuracy in present.items()]
        complete = len(present) == len(self.averaged) and all(has_seeds)
        means = [mean(a.values[seed] for seed in chosen[d]) for d, a in present.items()] if complete else []
        return Average(
            mean=mean(means) if means else None,
            present=len(present),
            expected=self.tasks,
            fewer_seeds=any(a.fewer_seeds or len(chosen[d]) < len(a.by_seed) for d, a in present.items()),
        )

    def best(self, dataset: Dataset | None) -> set[str]:
        """The methods in bold for a dataset, or for the average (None)."""
        shown = {}
        for method in self.methods:
            found = self.average(method) if dataset is None else self.accuracies.get((method, dataset))
            if found is not None and found.mean is not None:
                shown[method] = round(100 * found.mean, DECIMALS)
        return {method for method, value in shown.items() if len(shown) > 1 and value == max(shown.values())}


def blocks_of(measurements: Sequence[Measurement]) -> tuple[list[Block], list[Notice]]:
    """All blocks, by shots and model, and what is missing in them."""
    blocks: list[Block] = []
    notices: list[Notice] = []
    tasks = {one.dataset.task: one.dataset for one in measurements}
    for shots, of_shots in sorted(grouped(measurements, lambda one: one.run.shots).items()):
        averaged = averaged_datasets(of_shots)
        all_seeds = {one.run.seed for one in of_shots}
        of_shots.sort(key=lambda one: (one.run.model, -1 if one.run.seed is None else one.run.seed))
        of_models = grouped(of_shots, lambda one: one.run.model).values()
        of_this = [_block(of_model, averaged, len(tasks), all_seeds) for of_model in of_models]
        notices += _not_run(shots, averaged, sorted(tasks.values()))
        notices += [notice for block in of_this for notice in _missing(block)]
        notices += _unequal_seeds(shots, of_this)
        blocks += of_this
    return blocks, notices


def _block(of_model: Sequence[Measurement], averaged: Sequence[Dataset], tasks: int, all_seeds: set[Seed]) -> Block:
    by_seed: dict[tuple[str, Dataset], dict[Seed, Measurement]] = {}
    for one in of_model:
        by_seed.setdefault((one.method, one.dataset), {})[one.run.seed] = one
    accuracies = {key: Accuracy(found, fewer_seeds=set(found) != all_seeds) for key, found in by_seed.items()}
    methods = sorted({method for method, _ in accuracies}, key=method_order)
    return Block(of_model[0].run.model, of_model[0].run.shots, averaged, methods, accuracies, tasks)


def common_seeds(blocks: Sequence[Block]) -> dict[Dataset, set[Seed]]:
    """By dataset, the seeds of all models that have the dataset: averages over these can be compared."""
    return {dataset: set.intersection(*by_model.values()) for dataset, by_model in _seeds(blocks).items()}


def _seeds(blocks: Sequence[Block]) -> dict[Dataset, dict[str, set[Seed]]]:
    """By dataset and model."""
    found: dict[Dataset, dict[str, set[Seed]]] = {dataset: {} for dataset in blocks[0].averaged}
    for block in blocks:
        for (_, dataset), accuracy in block.accuracies.items():
            if dataset in found:
                found[dataset].setdefault(block.model, set()).update(accuracy.by_seed)
    return found


def _not_run(shots: int, averaged: Sequence[Dataset], one_per_task: Sequence[Dataset]) -> Iterable[Notice]:
    run = {dataset.task for dataset in averaged}
    gap = [short_task_name(dataset.task) for dataset in one_per_task if dataset.task not in run]
    if gap:
        others = f"the other {len(run)} of {len(one_per_task)} tasks"
        text = f"No result with {shots} shots for {', '.join(gap)}, so averages with {shots} shots are over {others}."
        yield Notice("missing", text)


def _missing(block: Block) -> Iterable[Notice]:
    def gap_of(method: str) -> str:
        return ", ".join(dataset.name for dataset in block.averaged if (method, dataset) not in block.accuracies)

    which = f"{block.model}, {block.shots} shots"
    for gap, methods in grouped(filter(gap_of, block.methods), gap_of).items():
        who = "" if len(methods) == len(block.methods) else f" ({', '.join(methods)})"
        yield Notice("missing", f"{which}{who}: no result for {gap}, so its average is left out.")
    own = {seed for accuracy in block.accuracies.values() for seed in accuracy.by_seed}
    fewer = {dataset.name for (_, dataset), accuracy in block.accuracies.items() if set(accuracy.by_seed) != own}
    if fewer:
        yield Notice("missing", f"{which}: fewer seeds (†) for {', '.join(sorted(fewer))} than for the rest.")


def _unequal_seeds(shots: int, blocks: Sequence[Block]) -> Iterable[Notice]:
    """A sentence where models have different seeds, once for all datasets that it holds for."""
    alike: dict[str, list[str]] = {}
    for dataset, seeds in _seeds(blocks).items():
        common = set.intersection(*seeds.values())
        if any(found != common for found in seeds.values()):
            whose = "; ".join(f"{model}: {_in_words(found)}" for model, found in seeds.items())
            so = f"over the common ones, {_in_words(common)}" if common else "left out, as none is common to all"
            text = f"models have different seeds ({whose}), so ranks and averages in the leaderboard are {so}."
            alike.setdefault(text, []).append(dataset.name)
    for text, names in alike.items():
        yield Notice("differing", f"{', '.join(names)}, {shots} shots: {text}")


def _in_words(seeds: Iterable[Seed]) -> str:
    return ", ".join(sorted(map(str, seeds), key=lambda seed: (len(seed), seed)))
