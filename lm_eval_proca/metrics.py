"""Where numbers are put together: over seeds, over documents, and between two methods or models.

Over seeds: the mean and the sample standard deviation (n - 1), which is the spread over prompts and estimate sets.
Over documents: a 95 % interval of every measure of predictions.
Over labels: which of them a method prefers.
Between two: the exact paired test over documents. What prompts add to errors and tests is in `crossed`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy.stats import binom, bootstrap, kendalltau, norm, ttest_1samp
from sklearn.metrics import accuracy_score

MEASURES = ("accuracy", "macro_f1", "brier", "calibration_error")
LEVEL = 0.95
RESAMPLES = 1000
MOST_BINS = 15
ROWS_PER_BIN = 10

Key = TypeVar("Key")
Value = TypeVar("Value")


def grouped(values: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """The values that have the same key, in the order in which they come."""
    groups: dict[Key, list[Value]] = {}
    for value in values:
        groups.setdefault(key(value), []).append(value)
    return groups


# ------------------------------------------------------------------ over seeds


def mean(values: Iterable[float]) -> float:
    """Rounded far below what anybody reads, so that a rank or a win does not depend on the last bit."""
    return round(statistics.fmean(values), 12) + 0.0  # no negative zero


def standard_deviation(values: Sequence[float]) -> float | None:
    """Sample standard deviation, n - 1 in the denominator; one value has no spread to speak of."""
    return statistics.stdev(values) if len(values) > 1 else None


Observation = dict[str, Any]
"""One `accuracy` and, in the other columns, what it belongs to: model, task, seed, calibrator ..."""


def mean_by(observed: Iterable[Observation], *columns: str) -> list[Observation]:
    """Mean and sd of `accuracy` over all observations that agree in these columns."""
    rows = []
    for key, alike in grouped(observed, lambda one: tuple(one[column] for column in columns)).items():
        found = [one["accuracy"] for one in alike]
        spread = {"accuracy": mean(found), "sd": standard_deviation(found), "n": len(found)}
        rows.append({**dict(zip(columns, key, strict=True)), **spread})
    return rows


# ------------------------------------------------------------------ over documents


class Interval(NamedTuple):
    """A measure with its 95 % interval over documents; what cannot be computed is None."""

    value: float | None
    low: float | None = None
    high: float | None = None


def labeled(gold: np.ndarray, *others: np.ndarray) -> tuple[np.ndarray, ...]:
    """The documents that have a gold label, which is not negative: no measure counts the others."""
    known = np.asarray(gold) >= 0
    return tuple(np.asarray(one)[known] for one in (gold, *others))


def accuracy(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Share of the documents with a gold label that get it; not a number where there are none."""
    gold, predicted = labeled(gold, predicted)
    return float(accuracy_score(gold, predicted)) if len(gold) else float("nan")


def measures(gold: np.ndarray, proba: np.ndarray, predicted: np.ndarray) -> dict[str, Interval]:
    r"""How good predictions are, each measure with an interval over documents.

    accuracy, macro_f1
        Share of right labels; unweighted mean of the F1 score over the labels that occur.
    brier
        :math:`\frac{1}{n} \sum_d \sum_l (p_{d,l} - [l = y_d])^2`, the sum over labels, so between 0 and 2.
    calibration_error
        See :func:`calibration_error`.

    The first three intervals are percentiles of SciPy's bootstrap over documents. A row of `proba` that is not finite
    leaves the measures of probabilities out. Documents without a gold label count nowhere.
    """
    gold, proba, predicted = labeled(gold, proba, predicted)
    if not len(gold):
        return dict.fromkeys(MEASURES, Interval(None))
    finite = bool(np.isfinite(proba).all())
    squared_error = np.square(proba - np.eye(proba.shape[1])[gold]).sum(axis=1) if finite else np.zeros(len(gold))

    def statistic(gold: np.ndarray, predicted: np.ndarray, squared_error: np.ndarray, axis: int = -1) -> np.ndarray:
        right = (gold == predicted).mean(axis=axis)
        return np.stack([right, _macro_f1(gold, predicted, proba.shape[1]), squared_error.mean(axis=axis)])

    documents = (gold, predicted, squared_error)
    numbers = [statistic(*documents)]
    if len(gold) > 1:
        # In batches, so that memory stays a fraction of all resamples; seeded, so that a table prints the same twice.
        numbers += bootstrap(
            documents, statistic, paired=True, vectorized=True, n_resamples=RESAMPLES, batch=RESAMPLES // 10,
            confidence_level=LEVEL, method="percentile", random_state=0,
        ).confidence_interval  # fmt: skip
    found = dict(zip(MEASURES, starmap(Interval, np.column_stack(numbers).tolist()), strict=False))
    if not finite:
        return found | dict.fromkeys(("brier", "calibration_error"), Interval(None))
    return found | {"calibration_error": calibration_error(gold, proba)}


def _macro_f1(gold: np.ndarray, predicted: np.ndarray, labels: int) -> np.ndarray:
    """scikit-learn's `f1_score(average="macro")` of every resample; called a thousand times, that takes seconds.

    F1 of a label is 2 TP / (2 TP + FP + FN); documents are on the last axis.
    """
    pairs = gold * labels + predicted
    counts = [np.bincount(row, minlength=labels * labels) for row in pairs.reshape(-1, pairs.shape[-1])]
    confusion = np.stack(counts).reshape(*pairs.shape[:-1], labels, labels)
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    occurrences = confusion.sum(axis=-1) + confusion.sum(axis=-2)
    f1 = np.divide(2 * hits, occurrences, out=np.zeros(hits.shape), where=occurrences > 0)
    return f1.sum(axis=-1) / (occurrences > 0).sum(axis=-1)


def calibration_error(gold: np.ndarray, proba: np.ndarray) -> Interval:
    r"""Root mean square calibration error of the predicted label, debiased (Kumar, Liang and Ma, 2019).

    With c the confidence (the largest probability) of a document, r = 1 if its most probable label is the gold one and
    0 otherwise, and d = r - c, documents are put into at most 15 bins of about equal size by c. The estimate of the
    mean squared gap between accuracy and confidence is

    .. math:: T = \frac{1}{n} \sum_b \frac{1}{n_b - 1} \sum_{i \ne j \in b} d_i d_j

    The plain square of a bin's mean gap, from which the usual expected calibration error is made, contains the noise
    of the bin and is positive for a perfectly calibrated predictor; products of two *different* documents are not
    biased. The interval holds every squared error t which a test of level 5 % does not reject, with the variance that
    T has if t is true (as Wilson's interval does for a proportion; resampling fails here, near 0 most of all):

    .. math:: (T - t)^2 \le z^2 \Big( \frac{2}{n^2} \sum_b v_b^2 + \frac{4 t}{n} \bar\sigma^2 \Big)

    where :math:`v_b` is the mean of c (1 - c) in a bin, the variance of r if the predictor is calibrated, and
    :math:`\bar\sigma^2` the variance of d within bins, averaged with the squared gaps as weights. Value and limits are
    square roots, with 0 for what is negative.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.uniform(0.5, 1, size=2000)
    >>> proba, gold = np.column_stack([confidence, 1 - confidence]), (rng.random(2000) > confidence - 0.1).astype(int)
    >>> [round(number, 2) for number in calibration_error(gold, proba)]
    [0.09, 0.07, 0.11]
    """
    n = len(gold)
    confidence = proba.max(axis=1)
    surplus = (proba.argmax(axis=1) == gold) - confidence
    n_bins = max(1, min(MOST_BINS, n // ROWS_PER_BIN))
    edges = np.quantile(confidence, np.arange(1, n_bins) / n_bins)
    bins = np.searchsorted(edges, confidence)  # equal confidences are never parted
    sums = [np.bincount(bins, w) for w in (np.ones(n), surplus, surplus**2, confidence * (1 - confidence))]
    size, total, squares, if_calibrated = np.array(sums)[:, sums[0] > 1]
    estimate = ((total**2 - squares) / (size - 1)).sum() / n
    variance = (squares - total**2 / size) / (size - 1)
    weight = total**2 / size
    slope = (weight * variance).sum() / max(weight.sum(), np.finfo(float).tiny) / n
    z = norm.ppf((1 + LEVEL) / 2)
    middle = estimate + 2 * z**2 * slope
    half = np.sqrt(max(0.0, middle**2 - estimate**2 + 2 * (z / n) ** 2 * ((if_calibrated / size) ** 2).sum()))
    low = min(middle - half, estimate)  # an estimate below 0 is no evidence against 0
    return Interval(*(float(np.sqrt(max(0.0, square))) for square in (estimate, low, middle + half)))


def standard_error(right: np.ndarray) -> float | None:
    """The standard error of an accuracy, as lm-eval prints it: sample standard deviation by root n."""
    return float(np.std(right, ddof=1) / np.sqrt(len(right))) if len(right) > 1 else None


# ------------------------------------------------------------------ over labels


class LabelCounts(NamedTuple):
    """How many documents have each label: predicted, gold, and both at once; and the mean probability of each label.

    `mean_probability` is None where a probability is not finite.
    """

    predicted: list[int]
    gold: list[int]
    hits: list[int]
    mean_probability: list[float] | None = None

    @property
    def documents(self) -> int:
        return sum(self.gold)

    @property
    def predicted_share(self) -> list[float]:
        return [count / max(1, self.documents) for count in self.predicted]

    @property
    def gold_share(self) -> list[float]:
        return [count / max(1, self.documents) for count in self.gold]

    @property
    def recall(self) -> list[float | None]:
        """Share of the documents of each gold label that get it; None for a label that no document has."""
        return [hit / of if of else None for hit, of in zip(self.hits, self.gold, strict=True)]

    @property
    def recall_sd(self) -> float | None:
        """Standard deviation of recall over the labels that occur: 0 without selection bias (Zheng et al., 2024).

        The labels are all there are, not a sample of labels, so their number stands in the denominator.
        """
        known = [one for one in self.recall if one is not None]
        return statistics.pstdev(known) if known else None

    def shares(self) -> dict[str, Any]:
        """The same as shares of the documents, for a reader."""
        names = ("mean_probability", "predicted_share", "gold_share", "recall", "recall_sd")
        return {name: getattr(self, name) for name in names}


def count_labels(gold: np.ndarray, proba: np.ndarray, predicted: np.ndarray) -> LabelCounts:
    """Which labels a method prefers, over the documents with a gold label.

    Examples
    --------
    >>> gold, proba = np.array([0, 0, 1, 1]), np.array([[0.9, 0.1], [0.6, 0.4], [0.8, 0.2], [0.3, 0.7]])
    >>> found = count_labels(gold, proba, proba.argmax(axis=1))
    >>> found.predicted_share, found.gold_share
    ([0.75, 0.25], [0.5, 0.5])
    >>> found.recall, found.recall_sd
    ([1.0, 0.5], 0.25)
    """
    gold, proba, predicted = labeled(gold, proba, predicted)
    of_each = (predicted, gold, gold[gold == predicted])
    counts = [np.bincount(some, minlength=proba.shape[1]).tolist() for some in of_each]
    finite = len(proba) > 0 and bool(np.isfinite(proba).all())
    return LabelCounts(counts[0], counts[1], counts[2], proba.mean(axis=0).tolist() if finite else None)


def added(counts: Iterable[LabelCounts]) -> LabelCounts:
    """The documents of several tasks with the same labels, counted together."""
    columns = list(zip(*counts, strict=True))[:3]
    return LabelCounts(*([sum(of_label) for of_label in zip(*column, strict=True)] for column in columns))


# ------------------------------------------------------------------ between two


class PairedTest(NamedTuple):
    """`better` and `worse`: documents that A answers correctly under more, or fewer, seeds than B."""

    p_value: float
    better: int
    worse: int
    documents: int
    seeds: int

    def mirrored(self) -> PairedTest:
        """B against A."""
        return self._replace(better=self.worse, worse=self.better)


def paired_test(a: np.ndarray, b: np.ndarray) -> PairedTest:
    """Two-sided exact test of `a` against `b`: right or wrong, both boolean of shape (seeds, documents).

    For one prompt this is McNemar's exact test. A result is an average over seeds, though, and the same document under
    another prompt is not another document. So the unit here is the document: its difference is summed over seeds, and
    under the null hypothesis that difference is as likely as its negative. The test speaks about these prompts; the
    spread over prompts is the standard deviation.
    """
    difference = a.astype(int).sum(axis=0) - b.astype(int).sum(axis=0)
    return PairedTest(
        p_value=_sign_flip_p_value(difference),
        better=int((difference > 0).sum()),
        worse=int((difference < 0).sum()),
        documents=a.shape[1],
        seeds=a.shape[0],
    )


def _sign_flip_p_value(difference: np.ndarray) -> float:
    """P(|sum of randomly signed differences| >= |observed sum|): SciPy's `permutation_test(permutation_type="samples")`
    if it could visit all 2^n signs. It draws some of them, so its p-values end at 1 / draws, too coarse for Holm.

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
    p = np.asarray(p_values, dtype=float)
    order = np.argsort(p, kind="stable")
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return adjusted.tolist()


def mean_interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """Mean of paired differences over runs, and its 95 % interval (Student's t)."""
    low, high = ttest_1samp(differences, 0).confidence_interval()
    return mean(differences), float(low), float(high)


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kendall's tau-b between two rankings; None where one of them ties everything."""
    tau = float(kendalltau(a, b).statistic)
    return None if np.isnan(tau) else tau
