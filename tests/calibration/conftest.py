"""Score matrices whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from lm_eval_proca import AnchoredCalibrator


class FromTwoLabels(AnchoredCalibrator):
    """The same mixture, for data with fewer labels than `proca_a` takes; the number of labels changes its weight."""

    min_labels = 2


@dataclass(frozen=True)
class MadeScores:
    scores: NDArray[np.float64]
    gold: NDArray[np.int64]


@pytest.fixture(scope="session")
def made_scores() -> Callable[..., MadeScores]:
    """Documents of `n_labels` kinds, scored by a model that knows them but prefers some labels.

    The score of the true label is higher by `separation`; a bias per label and a shift per document hide it, and the
    noise of the labels is correlated.
    """

    def make(
        n_rows: int,
        n_labels: int,
        *,
        separation: float = 4.0,
        bias: float = 2.0,
        noise: float = 0.5,
        proportions: Sequence[float] | None = None,
        seed: int = 0,
    ) -> MadeScores:
        rng = np.random.default_rng(seed)
        mixing = noise * (np.eye(n_labels) + 0.4 * rng.normal(size=(n_labels, n_labels)) / np.sqrt(n_labels))
        label_bias = bias * rng.normal(size=n_labels)
        gold = rng.choice(n_labels, size=n_rows, p=proportions)
        scores = label_bias + rng.normal(size=(n_rows, 1)) + rng.normal(size=(n_rows, n_labels)) @ mixing - 20.0
        scores[np.arange(n_rows), gold] += separation
        return MadeScores(scores, gold)

    return make
