"""The paper's table: per model and number of shots a block, every method on every dataset, and the averages."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lm_eval_proca.compare.columns import Dataset, Measurement, PromptId, averaged_datasets
from lm_eval_proca.compare.names import short_task_name, without_ensemble
from lm_eval_proca.compare.results import Notice
from lm_eval_proca.metrics import grouped, mean, standard_deviation

RAW_METHOD = "raw"
METHOD_ORDER = (
    *(RAW_METHOD, "bc", "bc-g", "conca", "domain", "bc_prob", "ucpa"),
    *("proca-g", "proca", "proca_a", "proca_h"),
)
DECIMALS = 1
"""Of the per cent shown; methods that look equal in a table are equally best."""

Seed = int | None


def method_order(method: str) -> tuple[int, str]:
    """Sorts methods as METHOD_ORDER does, ensembles after what they are made of; others follow by name."""
    name = without_ensemble(method)
    return (METHOD_ORDER.index(name) if name in METHOD_ORDER else len(METHOD_ORDER), method)


@dataclass(frozen=True)
class Accuracy:
    """One method on one dataset, by prompt; `fewer_seeds`: other results with as many shots have more of them."""

    by_prompt: Mapping[PromptId, Measurement]
    fewer_seeds: bool

    @property
    def by_seed(self) -> dict[Seed, list[Measurement]]:
        return grouped(self.by_prompt.values(), lambda one: one.prompt.seed)

    @property
    def values(self) -> dict[PromptId, float]:
        return {prompt: one.accuracy for prompt, one in self.by_prompt.items()}

    @property
    def together(self) -> bool:
        """Whether it is of prompts together, not of each."""
        return any(prompt.number is None for prompt in self.by_prompt)

    @property
    def several(self) -> bool:
        """Whether a run with several prompts is behind it."""
        return any(one.run.several for one in self.by_prompt.values())

    def of(self, prompts: Collection[PromptId]) -> set[PromptId]:
        """Its own keys for these prompts: an ensemble stands for all prompts of a run."""
        return {prompt.together if self.together else prompt for prompt in prompts}

    @property
    def mean(self) -> float:
        return mean(self.values.values())

    @property
    def sd(self) -> float | None:
        return standard_deviation(list(self.values.values()))

    @property
    def worst(self) -> float:
        return min(self.values.values())


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

    def average(self, method: str, prompts: Mapping[Dataset, set[PromptId]] | None = None) -> Average:
        """Over all prompts of each dataset, or over these; None if one of them is missing."""
        present = {d: self.accuracies[method, d] for d in self.averaged if (method, d) in self.accuracies}
        chosen = {d: a.of(prompts[d]) if prompts else set(a.by_prompt) for d, a in present.items()}
        has_all = [chosen[d] and chosen[d] <= a.by_prompt.keys() for d, a in present.items()]
        complete = len(present) == len(self.averaged) and all(has_all)
        means = [mean(a.values[prompt] for prompt in chosen[d]) for d, a in present.items()] if complete else []
        return Average(
            mean=mean(means) if means else None,
            present=len(present),
            expected=self.tasks,
            fewer_seeds=any(a.fewer_seeds or len(chosen[d]) < len(a.by_prompt) for d, a in present.items()),
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
        every = {one.prompt for one in of_shots if one.prompt.number is not None}
        of_shots.sort(key=_by_model_and_prompt)
        of_models = grouped(of_shots, lambda one: one.run.model).values()
        of_this = [_block(of_model, averaged, len(tasks), every) for of_model in of_models]
        notices += _not_run(shots, averaged, sorted(tasks.values()))
        notices += [notice for block in of_this for notice in _missing(block)]
        notices += _unequal_prompts(shots, of_this)
        blocks += of_this
    return blocks, notices


def _by_model_and_prompt(one: Measurement) -> tuple[str, list[int]]:
    return one.run.model, [-1 if part is None else part for part in one.prompt]


def _block(
    of_model: Sequence[Measurement], averaged: Sequence[Dataset], tasks: int, every: Collection[PromptId]
) -> Block:
    found: dict[tuple[str, Dataset], dict[PromptId, Measurement]] = {}
    for one in of_model:
        found.setdefault((one.method, one.dataset), {})[one.prompt] = one
    accuracies = {key: Accuracy(by_prompt, fewer_seeds=False) for key, by_prompt in found.items()}
    marked = {key: replace(one, fewer_seeds=set(one.by_prompt) != one.of(every)) for key, one in accuracies.items()}
    methods = sorted({method for method, _ in marked}, key=method_order)
    return Block(of_model[0].run.model, of_model[0].run.shots, averaged, methods, marked, tasks)


def common_prompts(blocks: Sequence[Block]) -> dict[Dataset, set[PromptId]]:
    """By dataset, the prompts of all models that have the dataset: averages over these can be compared."""
    return {dataset: set.intersection(*by_model.values()) for dataset, by_model in _prompts(blocks).items()}


def _prompts(blocks: Sequence[Block]) -> dict[Dataset, dict[str, set[PromptId]]]:
    """By dataset and model."""
    found: dict[Dataset, dict[str, set[PromptId]]] = {dataset: {} for dataset in blocks[0].averaged}
    for block in blocks:
        for (_, dataset), accuracy in block.accuracies.items():
            if dataset in found and not accuracy.together:
                found[dataset].setdefault(block.model, set()).update(accuracy.by_prompt)
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
    single = {key: accuracy for key, accuracy in block.accuracies.items() if not accuracy.together}
    own = {prompt for accuracy in single.values() for prompt in accuracy.by_prompt}
    fewer = {dataset.name for (_, dataset), accuracy in single.items() if set(accuracy.by_prompt) != own}
    if fewer:
        text = f"fewer {_kind(own)} (†) for {', '.join(sorted(fewer))} than for the rest."
        yield Notice("missing", f"{which}: {text}")


def _unequal_prompts(shots: int, blocks: Sequence[Block]) -> Iterable[Notice]:
    """A sentence where models have different prompts, once for all datasets that it holds for."""
    alike: dict[str, list[str]] = {}
    for dataset, prompts in _prompts(blocks).items():
        common = set.intersection(*prompts.values())
        if any(found != common for found in prompts.values()):
            whose = "; ".join(f"{model}: {_in_words(found)}" for model, found in prompts.items())
            so = f"over the common ones, {_in_words(common)}" if common else "left out, as none is common to all"
            kind = _kind(set.union(*prompts.values()))
            text = f"models have different {kind} ({whose}), so ranks and averages in the leaderboard are {so}."
            alike.setdefault(text, []).append(dataset.name)
    for text, names in alike.items():
        yield Notice("differing", f"{', '.join(names)}, {shots} shots: {text}")


def _kind(prompts: Iterable[PromptId]) -> str:
    """Runs with one prompt differ in their seeds."""
    return "prompts" if any(prompt.number for prompt in prompts) else "seeds"


def _in_words(prompts: Iterable[PromptId]) -> str:
    of_seed = grouped(prompts, lambda prompt: str(prompt.seed))
    seeds = sorted(of_seed, key=lambda seed: (len(seed), seed))
    return ", ".join(f"{seed} with {len(of_seed[seed])} prompts" if len(of_seed[seed]) > 1 else seed for seed in seeds)
