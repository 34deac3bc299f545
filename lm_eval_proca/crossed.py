r"""Documents and prompts as two crossed sources of error: every document is answered under every prompt.

An accuracy over P prompts and D documents is :math:`\bar y`, the mean of :math:`y_{pd}`, right or wrong. Whatever the
distribution, prompts and documents drawn independently give

.. math:: y_{pd} = \mu + a_p + b_d + e_{pd}, \qquad
          \operatorname{var} \bar y = \frac{\sigma_a^2}{P} + \frac{\sigma_b^2}{D} + \frac{\sigma_e^2}{P D}

with uncorrelated parts. Of the sample variances (n - 1), that of the P means of prompts, :math:`s_a^2`, expects
:math:`\sigma_a^2 + \sigma_e^2 / D`, that of the D means of documents, :math:`s_b^2`, expects
:math:`\sigma_b^2 + \sigma_e^2 / P`, and the mean square of the residuals, m, expects :math:`\sigma_e^2`. So

.. math:: V = \frac{s_b^2}{D} + \frac{s_a^2}{P} - \frac{m}{P D}

is unbiased: the residual, which both variances contain, is counted once. With a and b for the first two terms and c for
the residual's, V is c + (a - c) + (b - c), what residuals, documents and prompts add. Where prompts happen to differ by
less than residuals make them differ, b - c is negative, which no variance is: it counts as 0, and so does a - c. Then
the standard error is that of the documents alone, :math:`\sqrt{a}`, with these very prompts.

An interval needs more than V. Few prompts know their variance badly, many documents know theirs well, and one Student
t for both (Satterthwaite's) covers 85 to 90 % instead of 95 with two or three prompts that differ by much; the
percentiles of a bootstrap over both cover 63 to 90 % there. So each source has its own quantile (Banerjee, 1960, whose
interval covers at least its level for normal variables):

.. math:: h^2 = t_{D-1}^2 \max(0, a - c) + t_{P-1}^2 \, b

The residual stays with the prompts: s_a^2 is the only one of the three that is known badly, so nothing is taken off it.

Simulated with right and wrong answers of probit models, 100 to 1000 documents, prompts that differ by 0 to 12 points
(standard deviation), accuracies of 50 to 95 %: the 95 % interval covers 94 to 97 % for 5 and 10 prompts, and a test at
5 % between equal models errs in 3 to 6 %. With 2 or 3 prompts both are safe rather than exact where prompts make
little difference: 94 to 99 %, errors of 1 to 6 %. None of it holds for a kind of prompt that was not drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit, stdtrit

from lm_eval_proca.metrics import LEVEL, grouped, paired_test, standard_deviation, standard_error

SMALLEST_P_VALUE = 1e-100
DIGITS = 12
"""Accuracies that agree in so many are equal."""
ROUNDING = 1e-20
"""Variances below this come from rounding."""


class CrossedMean(NamedTuple):
    """An accuracy over prompts and documents, with an error that has both; what one value cannot tell is None."""

    mean: float
    standard_error: float | None
    low: float | None
    """Of the 95 % interval, which is symmetric in log-odds: it stays between 0 and 1."""
    high: float | None
    sd: float | None
    """Standard deviation of the prompts' accuracies (n - 1)."""
    worst: float


def crossed_mean(right: np.ndarray) -> CrossedMean:
    """The mean of an array (prompts, documents) of 0 and 1, as an estimate for other prompts and other documents.

    One prompt has an error over documents alone, which is the one that lm-eval prints.

    Examples
    --------
    >>> skill = np.array([[0.6], [0.7], [0.75], [0.8], [0.7]])  # of five prompts
    >>> found = crossed_mean(np.random.default_rng(0).random((5, 200)) < skill)
    >>> [round(number, 3) for number in found]
    [0.695, 0.045, 0.557, 0.805, 0.101, 0.55]
    """
    right = np.asarray(right, dtype=float)
    by_prompt = right.mean(axis=1).tolist()
    mean, error = float(right.mean()), _standard_error(right)
    low, high = (None, None) if error is None else _interval(mean, _half_width(_sources(right), 1 - LEVEL))
    return CrossedMean(mean, error, low, high, standard_deviation(by_prompt), min(by_prompt))


def average_interval(datasets: Sequence[np.ndarray]) -> tuple[float, float]:
    """The 95 % interval of an accuracy averaged over datasets, each of them an array (prompts, documents) of its own.

    What documents, or prompts, of all datasets add has as many degrees of freedom as Satterthwaite gives their sum: the
    two prompts of one dataset tell little about the spread, those of nine tell enough.

    Examples
    --------
    >>> right = np.array([[1, 1, 0, 1, 0, 1, 1, 1, 0, 1]])
    >>> [round(end, 3) for end in average_interval([right])], round(crossed_mean(right).low, 3)
    ([0.31, 0.924], 0.31)
    >>> [round(end, 3) for end in average_interval([right, right])]
    [0.442, 0.873]
    """
    values = [np.asarray(one, dtype=float) for one in datasets]
    kinds = grouped((one for some in values for one in _sources(some)), lambda one: one.of_prompts).values()
    half_width = _half_width([_added(alike) for alike in kinds], 1 - LEVEL) / len(values)
    return _interval(float(np.mean([one.mean() for one in values])), half_width)


def _interval(mean: float, half_width: float) -> tuple[float, float]:
    """In log-odds, as wide as the derivative of the logit says; an accuracy of 0 or 1 has no width."""
    if half_width == 0:
        return mean, mean
    in_log_odds = half_width / (mean * (1 - mean))
    return float(expit(logit(mean) - in_log_odds)), float(expit(logit(mean) + in_log_odds))


class CrossedTest(NamedTuple):
    """A against B over the same prompts and documents.

    `better` and `worse`: documents that A answers correctly under more, or fewer, prompts than B.
    """

    p_value: float
    difference: float
    standard_error: float | None
    order_changes: float
    """See :func:`order_changes`."""
    better: int
    worse: int
    documents: int
    prompts: int

    def mirrored(self) -> CrossedTest:
        """B against A."""
        return self._replace(difference=-self.difference, better=self.worse, worse=self.better)


def crossed_test(a: np.ndarray, b: np.ndarray) -> CrossedTest:
    """Two-sided test of `a` against `b`, right or wrong of shape (prompts, documents), paired by both.

    The p-value is the level at which the interval of the mean difference ends at 0. One prompt, one document, or
    differences that are all the same have no such interval: there the test is the exact one over documents.

    Examples
    --------
    >>> a = np.array([[1, 1, 1, 1, 0, 1], [1, 1, 0, 1, 1, 1]])
    >>> b = np.array([[0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 1, 0]])
    >>> found = crossed_test(a, b)
    >>> round(found.difference, 3), round(found.p_value, 2), found.order_changes
    (0.333, 0.2, 0.0)
    """
    a, b = np.asarray(a), np.asarray(b)
    difference = a.astype(float) - b.astype(float)
    mean = float(difference.mean())
    over_documents = paired_test(a, b)
    sources = _sources(difference) if len(a) > 1 else []
    return CrossedTest(
        p_value=_p_value(sources, abs(mean)) if sources else over_documents.p_value,
        difference=mean,
        standard_error=_standard_error(difference),
        order_changes=order_changes(difference.mean(axis=1)),
        better=over_documents.better,
        worse=over_documents.worse,
        documents=over_documents.documents,
        prompts=over_documents.seeds,
    )


def order_changes(differences: np.ndarray) -> float:
    """Share of the prompts under which the sign of the difference is not that of the mean; a tie counts half.

    Examples
    --------
    >>> order_changes(np.array([0.02, 0.05, -0.01, 0.0]))
    0.375
    """
    by_prompt, mean = np.round(differences, DIGITS), np.round(np.mean(differences), DIGITS)
    return float((1 - np.sign(by_prompt) * np.sign(mean)).mean() / 2)


# ------------------------------------------------------------------ variances


class _Variances(NamedTuple):
    """What documents and prompts, each with the residuals in it, and residuals add to the variance of the mean."""

    documents: float
    prompts: float
    residual: float


def _variances(values: np.ndarray) -> _Variances:
    """a, b and c of an array with two prompts and two documents or more."""
    prompts, documents = values.shape
    by_prompt, by_document = values.mean(axis=1, keepdims=True), values.mean(axis=0, keepdims=True)
    residual = values - by_prompt - by_document + values.mean()
    mean_square = float((residual**2).sum()) / ((prompts - 1) * (documents - 1))
    return _Variances(
        documents=float(by_document.var(ddof=1)) / documents,
        prompts=float(by_prompt.var(ddof=1)) / prompts,
        residual=mean_square / (prompts * documents),
    )


def _standard_error(values: np.ndarray) -> float | None:
    if min(values.shape) == 1:
        return standard_error(values.mean(axis=0))
    a, b, c = _variances(values)
    return float(np.sqrt(c + max(0.0, a - c) + max(0.0, b - c)))


class _Source(NamedTuple):
    """A part of the variance, and how many degrees of freedom its estimate has."""

    variance: float
    freedom: float
    of_prompts: bool = False


def _sources(values: np.ndarray) -> list[_Source]:
    """What an interval is made of: documents and prompts, or residuals if neither differ, or nothing.

    One document does not tell what another would give.
    """
    prompts, documents = values.shape
    if prompts == 1 or documents == 1:
        error = standard_error(values[0])
        return [] if error is None else _varying([_Source(error**2, documents - 1)])
    a, b, c = _variances(values)
    parts = [_Source(a - c, documents - 1), _Source(b, prompts - 1, of_prompts=True)]
    return _varying(parts) or _varying([_Source(c, documents - 1)])


def _varying(sources: Iterable[_Source]) -> list[_Source]:
    return [one for one in sources if one.variance > ROUNDING]


def _added(sources: Sequence[_Source]) -> _Source:
    """The variance of a sum, with Satterthwaite's degrees of freedom."""
    variance = sum(one.variance for one in sources)
    return _Source(variance, variance**2 / sum(one.variance**2 / one.freedom for one in sources))


def _half_width(sources: Sequence[_Source], error: float) -> float:
    """Half of the interval that misses the mean with this probability."""
    return float(np.sqrt(sum(part.variance * stdtrit(part.freedom, error / 2) ** 2 for part in sources)))


def _p_value(sources: Sequence[_Source], distance: float) -> float:
    """The error at which half the interval is as wide as the mean is away from 0."""

    def surplus(log_error: float) -> float:
        return _half_width(sources, float(np.exp(log_error))) - distance

    smallest = float(np.log(SMALLEST_P_VALUE))
    if distance == 0:
        return 1.0
    return float(np.exp(brentq(surplus, smallest, 0.0))) if surplus(smallest) > 0 else SMALLEST_P_VALUE
