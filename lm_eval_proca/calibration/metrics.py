"""Measures of predictions against gold labels, and bootstrap intervals for any of them: pure functions of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lm_eval_proca.errors import CalibrationError


def accuracy(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Share of documents whose predicted label is the gold label.

    Examples
    --------
    >>> accuracy([0, 1, 1, 0], [0, 1, 0, 0])
    0.75
    """
    gold, predicted = _labels(gold, "gold"), _labels(predicted, "predicted")
    _check_lengths(gold, predicted)
    return float((gold == predicted).mean())


def macro_f1(gold: ArrayLike, predicted: ArrayLike) -> float:
    r"""Unweighted mean over labels of the F1 score.

    .. math:: \frac{1}{|L|} \sum_{l \in L} \frac{2\, TP_l}{2\, TP_l + FP_l + FN_l}

    where L are the labels that occur among the gold or the predicted ones, and TP, FP, FN count the documents of which
    label l is rightly predicted, wrongly predicted and missed.

    Examples
    --------
    >>> round(macro_f1([0, 1, 1, 0], [0, 1, 0, 0]), 4)
    0.7333
    """
    gold, predicted = _labels(gold, "gold"), _labels(predicted, "predicted")
    _check_lengths(gold, predicted)
    size = int(max(gold.max(), predicted.max())) + 1
    hits = np.bincount(gold[gold == predicted], minlength=size)
    occurrences = np.bincount(gold, minlength=size) + np.bincount(predicted, minlength=size)  # 2 TP + FP + FN
    present = occurrences > 0
    return float((2 * hits[present] / occurrences[present]).mean())


def brier_score(gold: ArrayLike, proba: ArrayLike) -> float:
    r"""Brier score of several classes: the sum over labels, not their mean, so between 0 and 2.

    .. math:: \frac{1}{n} \sum_{d=1}^{n} \sum_{l} (p_{d,l} - [l = y_d])^2

    where p are the predicted probabilities of document d and y its gold label.

    Examples
    --------
    >>> round(brier_score([0, 1], [[0.8, 0.2], [0.6, 0.4]]), 4)
    0.4
    """
    gold, proba = _check_probabilities(gold, proba)
    of_gold = proba[np.arange(len(gold)), gold]
    return float((np.square(proba).sum(axis=1) - 2 * of_gold + 1).mean())


def expected_calibration_error(gold: ArrayLike, proba: ArrayLike, *, n_bins: int = 15) -> float:
    r"""Expected calibration error of the predicted label, in bins of equal width.

    .. math:: \sum_{b=1}^{B} \frac{n_b}{n} \left| acc_b - conf_b \right|

    A document falls in bin b if its confidence, the probability of its most probable label, is in ((b - 1) / B, b / B];
    n_b documents do, acc_b is the accuracy of that label among them and conf_b their mean confidence.

    Examples
    --------
    >>> round(expected_calibration_error([0, 1, 1], [[0.9, 0.1], [0.7, 0.3], [0.3, 0.7]], n_bins=10), 4)
    0.1667
    """
    if n_bins < 1:
        raise CalibrationError(f"n_bins is {n_bins}; the calibration error needs at least 1 bin.")
    gold, proba = _check_probabilities(gold, proba)
    confidence = proba.max(axis=1)
    surplus = (proba.argmax(axis=1) == gold) - confidence
    bins = np.clip(np.ceil(confidence * n_bins).astype(int) - 1, 0, n_bins - 1)
    # n_b |acc_b - conf_b| is the absolute sum of (right - confidence) in bin b
    return float(np.abs(np.bincount(bins, weights=surplus, minlength=n_bins)).sum() / len(gold))


def bootstrap_interval(
    measure: Callable[..., float],
    *arrays: ArrayLike,
    n_resamples: int = 1000,
    level: float = 0.95,
    random_state: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a measure of documents.

    Parameters
    ----------
    measure : callable
        Called as ``measure(*arrays)`` with resampled rows.
    *arrays : array-like
        Equally long; row d of each belongs to document d. All are resampled by the same documents, so that
        the difference of two methods is measured on the same ones (a paired interval).
    n_resamples : int, default=1000
    level : float, default=0.95
        Share of the resamples inside the interval.
    random_state : int, default=0

    Returns
    -------
    low, high : float

    Examples
    --------
    >>> gold, raw, calibrated = [0, 1, 1, 0] * 50, [0] * 200, [0, 1, 0, 0] * 50
    >>> low, high = bootstrap_interval(lambda g, a, b: accuracy(g, b) - accuracy(g, a), gold, raw, calibrated)
    >>> bool(low < 0.25 < high)
    True
    """
    rows = [np.asarray(array) for array in arrays]
    _check_lengths(*rows)
    if n_resamples < 1 or not 0 < level < 1:
        raise CalibrationError(
            f"n_resamples is {n_resamples} and level {level}; a bootstrap interval needs at least 1 resample and a "
            f"level between 0 and 1."
        )
    rng = np.random.default_rng(random_state)
    values = []
    for _ in range(n_resamples):
        documents = rng.integers(len(rows[0]), size=len(rows[0]))
        values.append(measure(*(array[documents] for array in rows)))
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _labels(values: ArrayLike, name: str) -> NDArray[np.int64]:
    labels = np.asarray(values)
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer) or (labels < 0).any():
        raise CalibrationError(f"The {name} labels must be a list of label indices, whole numbers from 0.")
    return labels.astype(np.int64)


def _check_lengths(*arrays: NDArray[Any]) -> None:
    lengths = [len(array) for array in arrays]
    if not lengths or min(lengths) == 0 or min(lengths) != max(lengths):
        raise CalibrationError(
            f"The arguments have {lengths} rows; each must have one row for each of the same documents."
        )


def _check_probabilities(gold: ArrayLike, proba: ArrayLike) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    gold, proba = _labels(gold, "gold"), np.asarray(proba, dtype=np.float64)
    _check_lengths(gold, proba)
    if proba.ndim != 2 or not np.allclose(proba.sum(axis=1), 1, atol=1e-6) or (proba < 0).any():
        raise CalibrationError("The probabilities must be one row per document that sums to 1; did you forget np.exp?")
    if gold.max() >= proba.shape[1]:
        raise CalibrationError(f"The gold label {gold.max()} has no column among {proba.shape[1]} label probabilities.")
    return gold, proba
