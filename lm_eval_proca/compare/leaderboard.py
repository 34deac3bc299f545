"""The leaderboard of one number of shots: ranks, gains, wins and losses, and how the order of models changes.

Nothing is compared over different prompts, be they of seeds or of one run. Averages, and with them ranks and orders,
are over those that all models have; a gain, a win or a loss is over those that its two sides have, and so is its test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np

from lm_eval_proca.compare.blocks import RAW_METHOD, Accuracy, Average, Block, common_prompts
from lm_eval_proca.compare.columns import Dataset, Measurement, PromptId
from lm_eval_proca.compare.results import Run
from lm_eval_proca.crossed import CrossedTest, average_interval, crossed_test, order_changes
from lm_eval_proca.metrics import PairedTest, grouped, holm, kendall_tau, mean, paired_test
from lm_eval_proca.runs.sample_logs import Correct

SIGNIFICANCE_LEVEL = 0.05

K = TypeVar("K")


@dataclass(frozen=True)
class Comparison:
    """A against B on one dataset, over the prompts that both have; `test` is None where documents are not logged.

    `order_changes` is the share of prompts under which the better of the two is the worse, if there are several.
    """

    dataset: Dataset
    difference: float
    test: PairedTest | CrossedTest | None
    p_holm: float | None = None
    order_changes: float | None = None
    prompts: int = 1

    @property
    def significant(self) -> bool:
        return self.p_holm is not None and self.p_holm < SIGNIFICANCE_LEVEL


@dataclass(frozen=True)
class Tally:
    """Wins and losses over comparisons; the significant ones are None where a test is missing."""

    wins: int
    losses: int
    significant_wins: int | None
    significant_losses: int | None

    @classmethod
    def of(cls, comparisons: Sequence[Comparison]) -> Tally | None:
        if not comparisons:
            return None
        tested = all(one.test is not None for one in comparisons)
        won = [one.significant for one in comparisons if one.difference > 0]
        lost = [one.significant for one in comparisons if one.difference < 0]
        return cls(len(won), len(lost), sum(won) if tested else None, sum(lost) if tested else None)


@dataclass(frozen=True)
class Standing:
    """One model under one method."""

    model: str
    method: str
    average: Average
    interval: tuple[float, float] | None = None
    """95 %, over documents and prompts; None where documents are not logged."""
    rank: int | None = None
    model_rank: int | None = None
    gain: float | None = None
    against_raw: Sequence[Comparison] = ()
    against_models: Mapping[str, Sequence[Comparison]] = field(default_factory=dict)

    @property
    def raw_tally(self) -> Tally | None:
        return Tally.of(self.against_raw)

    @property
    def model_tally(self) -> Tally | None:
        return Tally.of([one for comparisons in self.against_models.values() for one in comparisons])


class OrderChange(NamedTuple):
    """The models from best to worst, raw and under one method, and Kendall's tau-b between the two.

    Models with equal averages share a place.
    """

    method: str
    raw_order: Sequence[Sequence[str]]
    order: Sequence[Sequence[str]]
    kendall_tau: float | None


@dataclass(frozen=True)
class Leaderboard:
    shots: int
    datasets: Sequence[Dataset]
    standings: Sequence[Standing]
    order_changes: Sequence[OrderChange]


CorrectOf = Callable[[Run], Correct | None]
Against = dict[tuple[str, str], dict[str, list[Comparison]]]


def leaderboard(blocks: Sequence[Block], correct_of: CorrectOf) -> Leaderboard:
    """Rank the models of `blocks`, all of one number of shots. Only complete averages have a rank."""
    prompts = common_prompts(blocks)
    rows = [(block, method) for block in blocks for method in block.methods]
    averages = {(block.model, method): block.average(method, prompts) for block, method in rows}
    means = {key: average.mean for key, average in averages.items() if average.mean is not None}
    calibrated = [(block, method) for block, method in rows if method != RAW_METHOD]
    against_raw = _adjusted(
        {(one.model, method): _compare((one, method), (one, RAW_METHOD), correct_of) for one, method in calibrated}
    )
    against_models, by_model = _against_models(blocks, correct_of), {block.model: block for block in blocks}
    standings = []
    for (model, method), average in averages.items():
        own = means.get((model, method))
        gains = [one.difference for one in against_raw.get((model, method), ())]
        standings.append(
            Standing(
                model=model,
                method=method,
                average=average,
                interval=None if own is None else _interval(by_model[model], method, prompts, correct_of),
                rank=_rank(own, means.values()),
                model_rank=_rank(own, (value for (_, other), value in means.items() if other == method)),
                gain=mean(gains) if len(gains) == len(blocks[0].averaged) else None,
                against_raw=against_raw.get((model, method), ()),
                against_models=against_models.get((model, method), {}),
            )
        )
    standings.sort(key=lambda standing: (standing.rank or math.inf, standing.model, standing.method))
    changes = list(_order_changes(dict.fromkeys(method for _, method in calibrated), means))
    return Leaderboard(blocks[0].shots, blocks[0].averaged, standings, changes)


def _interval(
    block: Block, method: str, prompts: Mapping[Dataset, set[PromptId]], correct_of: CorrectOf
) -> tuple[float, float] | None:
    answers = []
    for dataset in block.averaged:
        accuracy = block.accuracies[method, dataset]
        right = _answers([accuracy.by_prompt[one] for one in accuracy.of(prompts[dataset])], correct_of)
        if right is None:
            return None
        answers.append(np.stack(right))
    return average_interval(answers)


def _answers(measured: Iterable[Measurement], correct_of: CorrectOf) -> list[np.ndarray] | None:
    """Right or wrong by document, if all have logged the same documents."""
    answers, documents = [], set()
    for one in measured:
        correct = correct_of(one.run)
        right = correct.answers(one.filter_name, one.prompt.number) if correct else None
        if correct is None or right is None:
            return None
        documents.add(correct.documents)
        answers.append(right)
    return answers if len(documents) == 1 else None


def _rank(mean: float | None, all_means: Iterable[float]) -> int | None:
    return None if mean is None else 1 + sum(other > mean for other in all_means)


def _order_changes(methods: Iterable[str], means: Mapping[tuple[str, str], float]) -> Iterator[OrderChange]:
    for method in methods:
        models = [model for model, of in means if of == method and (model, RAW_METHOD) in means]
        raw, calibrated = ({model: means[model, one] for model in models} for one in (RAW_METHOD, method))
        if len(models) > 1:
            tau = kendall_tau(list(raw.values()), list(calibrated.values()))
            yield OrderChange(method, _best_first(raw), _best_first(calibrated), tau)


def _best_first(means: Mapping[str, float]) -> list[list[str]]:
    places = grouped(sorted(means), means.__getitem__)
    return [places[average] for average in sorted(places, reverse=True)]


def _against_models(blocks: Sequence[Block], correct_of: CorrectOf) -> Against:
    """By model and method, the comparisons with each other model."""
    found = {
        (a.model, b.model, method): _compare((a, method), (b, method), correct_of)
        for a, b in itertools.combinations(blocks, 2)
        for method in a.methods
        if method in b.methods
    }
    both_ways: Against = {}
    for (model, other, method), comparisons in _adjusted(found).items():
        if comparisons:
            both_ways.setdefault((model, method), {})[other] = comparisons
            both_ways.setdefault((other, method), {})[model] = [_mirrored(one) for one in comparisons]
    return both_ways


def _compare(a: tuple[Block, str], b: tuple[Block, str], correct_of: CorrectOf) -> list[Comparison]:
    """A block's method against another's, on every averaged dataset for which they have a prompt in common."""
    comparisons = []
    for dataset in a[0].averaged:
        of_a, of_b = (block.accuracies.get((method, dataset)) for block, method in (a, b))
        if of_a and of_b and (pairs := _pairs(of_a, of_b)):
            differences = [one.accuracy - other.accuracy for one, other in pairs]
            crossed = len(pairs) > 1 and (of_a.several or of_b.several)
            comparisons.append(
                Comparison(
                    dataset=dataset,
                    difference=mean(differences),
                    test=_test(pairs, crossed, correct_of),
                    order_changes=order_changes(np.array(differences)) if crossed else None,
                    prompts=len(pairs),
                )
            )
    return comparisons


def _pairs(a: Accuracy, b: Accuracy) -> list[tuple[Measurement, Measurement]]:
    """What was measured under the same prompt; an ensemble is compared with each prompt that it is made of."""
    return [
        (a.by_prompt[own], b.by_prompt[other])
        for own in a.by_prompt
        for other in b.by_prompt
        if own == other or (a.together != b.together and own.seed == other.seed)
    ]


def _test(
    pairs: Sequence[tuple[Measurement, Measurement]], crossed: bool, correct_of: CorrectOf
) -> PairedTest | CrossedTest | None:
    answers = _answers(itertools.chain.from_iterable(pairs), correct_of)
    if answers is None:
        return None
    a, b = np.stack(answers[::2]), np.stack(answers[1::2])
    return crossed_test(a, b) if crossed else paired_test(a, b)


def _mirrored(one: Comparison) -> Comparison:
    return replace(one, difference=-one.difference, test=one.test and one.test.mirrored())


def _adjusted(families: Mapping[K, Sequence[Comparison]]) -> dict[K, list[Comparison]]:
    """All comparisons of one kind in a leaderboard are one family for Holm."""
    p_values = [one.test.p_value for comparisons in families.values() for one in comparisons if one.test]
    adjusted = iter(holm(p_values))
    return {
        key: [replace(one, p_holm=next(adjusted) if one.test else None) for one in comparisons]
        for key, comparisons in families.items()
    }
