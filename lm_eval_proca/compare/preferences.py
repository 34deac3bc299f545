"""Which labels models prefer, raw and calibrated: how often a label is predicted against how often it is right."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lm_eval_proca.metrics import grouped, recall_sd, recalls

if TYPE_CHECKING:
    from lm_eval_proca.compare.columns import Measurement


class LabelCounts(NamedTuple):
    """Documents per label under one filter: predicted, gold, and both at once."""

    labels: tuple[str, ...]
    predicted: np.ndarray
    gold: np.ndarray
    hits: np.ndarray


@dataclass(frozen=True)
class Preference:
    """One model under one method, over all tasks and seeds with these labels and so many shots."""

    model: str
    shots: int
    method: str
    labels: tuple[str, ...]
    tasks: Sequence[str]
    documents: int
    predicted_share: Sequence[float]
    gold_share: Sequence[float]
    recall_sd: float | None

    @property
    def predicted_minus_gold(self) -> list[float]:
        return [a - b for a, b in zip(self.predicted_share, self.gold_share, strict=True)]


def read_label_counts(record: Mapping[str, Any], filters: Iterable[str]) -> dict[str, LabelCounts]:
    """What a results file records about labels, by filter; nothing where it is not what we write."""
    found: dict[str, LabelCounts] = {}
    try:
        labels, documents = tuple(map(str, record["labels"])), int(record["eval_rows"])
        for name in filters:
            bias = record["bias"][name]
            predicted, gold = (np.array(bias[key], dtype=float) for key in ("predicted_share", "gold_share"))
            recall = np.array([one or 0.0 for one in bias["recall"]], dtype=float)
            if not predicted.shape == gold.shape == recall.shape == (len(labels),):
                return {}
            counts = [np.rint(share * documents) for share in (predicted, gold, gold * recall)]
            found[name] = LabelCounts(labels, *counts)
    except (KeyError, TypeError, ValueError):
        return {}
    return found


def add_label_counts(counts: Sequence[Mapping[str, LabelCounts]]) -> dict[str, LabelCounts]:
    """Of several tasks by filter; nothing where their labels differ or one has none."""
    labels = {one.labels for of_task in counts for one in of_task.values()}
    if len(labels) != 1:
        return {}
    return {
        name: LabelCounts(labels.copy().pop(), *_sums([of_task[name] for of_task in counts]))
        for name in counts[0]
        if all(name in of_task for of_task in counts)
    }


def _sums(counts: Sequence[LabelCounts]) -> Iterator[np.ndarray]:
    """Predicted, gold and hits, added."""
    return (np.sum(column, axis=0) for column in list(zip(*counts, strict=True))[1:])


def preferences_of(measurements: Iterable[Measurement]) -> list[Preference]:
    """Tasks with the same label words are counted together."""
    counted = [one for one in measurements if one.filter_name in one.run.label_counts]
    alike = grouped(
        counted, lambda one: (one.run.label_counts[one.filter_name].labels, one.run.shots, one.run.model, one.method)
    )
    found = []
    for (labels, shots, model, method), of_method in alike.items():
        predicted, gold, hits = _sums([one.run.label_counts[one.filter_name] for one in of_method])
        documents = gold.sum()
        found.append(
            Preference(
                model=model,
                shots=shots,
                method=method,
                labels=labels,
                tasks=sorted({one.run.task for one in of_method}),
                documents=int(documents),
                predicted_share=(predicted / documents).tolist(),
                gold_share=(gold / documents).tolist(),
                recall_sd=recall_sd(recalls(hits, gold)),
            )
        )
    return found
