"""Which labels models prefer, raw and calibrated: how often a label is predicted against how often it is right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from lm_eval_proca.compare.blocks import method_order
from lm_eval_proca.compare.columns import Measurement
from lm_eval_proca.metrics import added, grouped


class Preference(NamedTuple):
    """One model under one method, over all tasks and seeds with these labels and so many shots."""

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


def preferences_of(measurements: Iterable[Measurement]) -> list[Preference]:
    """Tasks with the same label words are counted together."""
    counted = [one for one in measurements if one.run.record.labels and one.filter_name in one.run.record.label_counts]
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
