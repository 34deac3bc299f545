"""Which labels models prefer, raw and calibrated: how often a label is predicted against how often it is right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lm_eval_proca.metrics import added, grouped

if TYPE_CHECKING:
    from lm_eval_proca.compare.columns import Measurement


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


def preferences_of(measurements: Iterable[Measurement]) -> list[Preference]:
    """Tasks with the same label words are counted together."""
    counted = [one for one in measurements if one.run.labels and one.filter_name in one.run.label_counts]
    alike = grouped(counted, lambda one: (one.run.labels, one.run.shots, one.run.model, one.method))
    found = []
    for (labels, shots, model, method), of_method in alike.items():
        counts = added(one.run.label_counts[one.filter_name] for one in of_method)
        found.append(
            Preference(
                model=model,
                shots=shots,
                method=method,
                labels=labels,
                tasks=sorted({one.run.task for one in of_method}),
                documents=counts.documents,
                predicted_share=counts.predicted_share,
                gold_share=counts.gold_share,
                recall_sd=counts.recall_sd,
            )
        )
    return found
