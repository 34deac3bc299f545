"""The leaderboard of one number of shots: ranks, gains, wins and losses, and how the order of models changes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from scipy.stats import kendalltau

from lm_eval_proca.report.answers import Correct
from lm_eval_proca.report.blocks import RAW_METHOD, Average, Block, Score
from lm_eval_proca.report.datasets import Dataset, Measurement
from lm_eval_proca.report.paired_test import PairedTest, holm, paired_test

LEVEL = 0.05

K = TypeVar("K")


@dataclass(frozen=True)
class Comparison:
    """A against B on one dataset; `test` is None where the documents of both are not logged."""

    dataset: Dataset
    difference: float
    test: PairedTest | None
    p_holm: float | None = None

    @property
    def significant(self) -> bool:
        return self.p_holm is not None and self.p_holm < LEVEL


@dataclass(frozen=True)
class Tally:
    """Wins and losses over comparisons; the significant ones are None where a test is missing."""

    wins: int
    losses: int
    significant_wins: int | None
    significant_losses: int | None

    @classmethod
    def of(cls, comparisons: Sequence[Comparison]) -> Tally:
        tested = all(one.test is not None for one in comparisons)
        return cls(
            wins=sum(one.difference > 0 for one in comparisons),
            losses=sum(one.difference < 0 for one in comparisons),
            significant_wins=sum(one.significant and one.difference > 0 for one in comparisons) if tested else None,
            significant_losses=sum(one.significant and one.difference < 0 for one in comparisons) if tested else None,
        )


@dataclass(frozen=True)
class Row:
    """One model under one method."""

    model: str
    method: str
    average: Average
    rank: int | None = None
    model_rank: int | None = None
    gain: float | None = None
    against_raw: Sequence[Comparison] = ()
    against_models: Mapping[str, Sequence[Comparison]] = field(default_factory=dict)

    @property
    def raw_tally(self) -> Tally | None:
        return Tally.of(self.against_raw) if self.against_raw else None

    @property
    def model_tally(self) -> Tally | None:
        comparisons = list(itertools.chain.from_iterable(self.against_models.values()))
        return Tally.of(comparisons) if comparisons else None


@dataclass(frozen=True)
class OrderChange:
    """The models from best to worst, raw and under one method, and Kendall's tau-b between the two.

    Models with equal averages share a place.
    """

    method: str
    raw_order: Sequence[Sequence[str]]
    order: Sequence[Sequence[str]]
    tau: float | None


@dataclass(frozen=True)
class Leaderboard:
    shots: int
    datasets: Sequence[Dataset]
    rows: Sequence[Row]
    order_changes: Sequence[OrderChange]


CorrectOf = Callable[[Measurement], "Correct | None"]


def leaderboard(blocks: Sequence[Block], correct_of: CorrectOf) -> Leaderboard:
    """Rank the models of `blocks`, all of one number of shots. Only complete averages have a rank."""
    averages = {(block.model, method): block.averages[method] for block in blocks for method in block.methods}
    means = {key: average.mean for key, average in averages.items() if average.mean is not None}
    against_raw = _against_raw(blocks, correct_of)
    against_models = _against_models(blocks, correct_of)
    rows = []
    for (model, method), average in averages.items():
        mean, raw = means.get((model, method)), means.get((model, RAW_METHOD))
        rows.append(
            Row(
                model=model,
                method=method,
                average=average,
                rank=_rank(mean, means.values()),
                model_rank=_rank(mean, (value for (_, other), value in means.items() if other == method)),
                gain=mean - raw if mean is not None and raw is not None and method != RAW_METHOD else None,
                against_raw=against_raw.get((model, method), ()),
                against_models=against_models.get((model, method), {}),
            )
        )
    rows.sort(key=lambda row: (row.rank or math.inf, row.model, row.method))
    methods = dict.fromkeys(method for block in blocks for method in block.methods if method != RAW_METHOD)
    changes = [change for method in methods if (change := _order_change(method, means)) is not None]
    return Leaderboard(blocks[0].shots, blocks[0].averaged, rows, changes)


def _rank(mean: float | None, all_means: Iterable[float]) -> int | None:
    return None if mean is None else 1 + sum(other > mean for other in all_means)


def _order_change(method: str, means: Mapping[tuple[str, str], float]) -> OrderChange | None:
    models = [model for model, of in means if of == method and (model, RAW_METHOD) in means]
    if len(models) < 2:
        return None
    raw = [means[model, RAW_METHOD] for model in models]
    calibrated = [means[model, method] for model in models]
    tau = float(kendalltau(raw, calibrated).statistic)
    return OrderChange(
        method=method,
        raw_order=_best_first(models, raw),
        order=_best_first(models, calibrated),
        tau=None if math.isnan(tau) else tau,
    )


def _best_first(models: Sequence[str], means: Sequence[float]) -> list[list[str]]:
    places: dict[float, list[str]] = {}
    for mean, model in sorted(zip(means, models, strict=True), key=lambda pair: (-pair[0], pair[1])):
        places.setdefault(mean, []).append(model)
    return list(places.values())


def _against_raw(blocks: Sequence[Block], correct_of: CorrectOf) -> dict[tuple[str, str], list[Comparison]]:
    found = {
        (block.model, method): [
            _compare(dataset, block.scores[method, dataset], block.scores[RAW_METHOD, dataset], correct_of)
            for dataset in block.averaged
            if (method, dataset) in block.scores and (RAW_METHOD, dataset) in block.scores
        ]
        for block in blocks
        for method in block.methods
        if method != RAW_METHOD
    }
    return _adjusted(found)


def _against_models(
    blocks: Sequence[Block], correct_of: CorrectOf
) -> dict[tuple[str, str], dict[str, list[Comparison]]]:
    found = {}
    for a, b in itertools.combinations(blocks, 2):
        for method in set(a.methods) & set(b.methods):
            comparisons = [
                _compare(dataset, a.scores[method, dataset], b.scores[method, dataset], correct_of)
                for dataset in a.averaged
                if (method, dataset) in a.scores and (method, dataset) in b.scores
            ]
            if comparisons:
                found[a.model, b.model, method] = comparisons
    both_ways: dict[tuple[str, str], dict[str, list[Comparison]]] = {}
    for (model, other, method), comparisons in _adjusted(found).items():
        both_ways.setdefault((model, method), {})[other] = comparisons
        both_ways.setdefault((other, method), {})[model] = [_mirrored(one) for one in comparisons]
    return both_ways


def _compare(dataset: Dataset, a: Score, b: Score, correct_of: CorrectOf) -> Comparison:
    """Means over all seeds of each; the test over the seeds that both have."""
    answers: list[tuple[np.ndarray, np.ndarray]] = []
    documents: set[str] = set()
    for seed in set(a.by_seed) & set(b.by_seed):
        of_a, of_b = a.by_seed[seed], b.by_seed[seed]
        correct_a, correct_b = correct_of(of_a), correct_of(of_b)
        if correct_a is None or correct_b is None:
            return Comparison(dataset, a.mean - b.mean, None)
        documents |= {correct_a.documents, correct_b.documents}
        answers.append((correct_a.by_filter[of_a.filter_name], correct_b.by_filter[of_b.filter_name]))
    if len(documents) != 1:
        return Comparison(dataset, a.mean - b.mean, None)
    test = paired_test(np.stack([pair[0] for pair in answers]), np.stack([pair[1] for pair in answers]))
    return Comparison(dataset, a.mean - b.mean, test)


def _mirrored(one: Comparison) -> Comparison:
    test = one.test and one.test._replace(better=one.test.worse, worse=one.test.better)
    return Comparison(one.dataset, -one.difference, test, one.p_holm)


def _adjusted(families: Mapping[K, Sequence[Comparison]]) -> dict[K, list[Comparison]]:
    """All comparisons of one kind in a leaderboard are one family for Holm."""
    tested = [one for comparisons in families.values() for one in comparisons if one.test is not None]
    adjusted = holm([one.test.p_value for one in tested if one.test is not None])
    p_holm = {id(one): p for one, p in zip(tested, adjusted, strict=True)}
    return {
        key: [Comparison(one.dataset, one.difference, one.test, p_holm.get(id(one))) for one in comparisons]
        for key, comparisons in families.items()
    }
