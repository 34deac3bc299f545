"""The paired test over the same documents, and Holm's adjustment for many of them.

For one prompt this is McNemar's exact test. A result is an average over seeds, though, and the same document under
another prompt is not another document. So the unit here is the document: its difference is summed over seeds, and
under the null hypothesis that difference is as likely as its negative. The distribution of the sum over documents is
computed exactly. The test speaks about these prompts; the spread over prompts is the standard deviation of the tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.stats import binom


class PairedTest(NamedTuple):
    """`better` and `worse`: documents that A answers correctly under more, or fewer, seeds than B."""

    p_value: float
    better: int
    worse: int
    documents: int
    seeds: int


def paired_test(a: np.ndarray, b: np.ndarray) -> PairedTest:
    """Two-sided exact test of `a` against `b`, both boolean of shape (seeds, documents)."""
    difference = a.astype(int).sum(axis=0) - b.astype(int).sum(axis=0)
    return PairedTest(
        p_value=_sign_flip_p_value(difference),
        better=int((difference > 0).sum()),
        worse=int((difference < 0).sum()),
        documents=a.shape[1],
        seeds=a.shape[0],
    )


def _sign_flip_p_value(difference: np.ndarray) -> float:
    """P(|sum of randomly signed differences| >= |observed sum|).

    The k documents with size s give s * (2 B - k), B ~ Binomial(k, 1/2); the sizes are independent: convolve.
    """
    sizes, counts = np.unique(np.abs(difference[difference != 0]), return_counts=True)
    distribution = np.ones(1)  # of (sum + total) / 2, on 0 .. total
    for size, count in zip(sizes, counts, strict=True):
        of_size = np.zeros(size * count + 1)
        of_size[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
        distribution = np.convolve(distribution, of_size)
    total = len(distribution) - 1
    sums = 2 * np.arange(total + 1) - total
    return float(min(1.0, distribution[np.abs(sums) >= abs(difference.sum())].sum()))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down adjusted p-values: with these, the chance of any false finding is at most the level."""
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for position, k in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - position) * p_values[k]))
        adjusted[k] = highest
    return adjusted
