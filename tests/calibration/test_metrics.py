"""Measures against scikit-learn and a plain loop, intervals against theory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from lm_eval_proca.calibration.metrics import (
    accuracy,
    bootstrap_interval,
    brier_score,
    expected_calibration_error,
    macro_f1,
)
from lm_eval_proca.errors import CalibrationError

pairs_of_labels = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=40)


@given(pairs_of_labels)
def test_accuracy_and_macro_f1_are_scikit_learns(pairs):
    gold, predicted = zip(*pairs, strict=True)
    assert accuracy(gold, predicted) == pytest.approx(accuracy_score(gold, predicted))
    assert macro_f1(gold, predicted) == pytest.approx(f1_score(gold, predicted, average="macro", zero_division=0))


def random_predictions(n_rows=500, n_labels=4, seed=0):
    rng = np.random.default_rng(seed)
    proba = rng.dirichlet(np.full(n_labels, 0.5), size=n_rows)
    return rng.integers(n_labels, size=n_rows), proba


def test_brier_score_by_its_definition():
    gold, proba = random_predictions()
    expected = np.mean([sum((p[k] - (k == g)) ** 2 for k in range(4)) for g, p in zip(gold, proba, strict=True)])
    assert brier_score(gold, proba) == pytest.approx(expected)
    assert brier_score([0, 1], [[1, 0], [0, 1]]) == 0
    assert brier_score([0, 1], [[0, 1], [1, 0]]) == 2  # the sum over labels, not their mean


@pytest.mark.parametrize("n_bins", [1, 7, 15])
def test_calibration_error_by_its_definition(n_bins):
    gold, proba = random_predictions()
    expected = 0.0
    for b in range(n_bins):
        rows = [
            (max(p), np.argmax(p) == g)
            for g, p in zip(gold, proba, strict=True)
            if b / n_bins < max(p) <= (b + 1) / n_bins
        ]
        if rows:
            confidence, right = np.transpose(rows).astype(float)
            expected += len(rows) / len(gold) * abs(right.mean() - confidence.mean())
    assert expected_calibration_error(gold, proba, n_bins=n_bins) == pytest.approx(expected)


def test_calibration_error_of_honest_and_of_boastful_predictions():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, size=20_000)
    proba = np.column_stack([confidence, 1 - confidence])
    gold = (rng.random(20_000) > confidence).astype(int)
    assert expected_calibration_error(gold, proba) < 0.02
    assert expected_calibration_error(gold, np.tile([1.0, 0.0], (20_000, 1))) == pytest.approx(0.25, abs=0.01)


def test_interval_is_that_of_the_normal_approximation_and_seeded():
    rng = np.random.default_rng(0)
    gold = np.zeros(1000, dtype=int)
    predicted = (rng.random(1000) > 0.8).astype(int)
    share = accuracy(gold, predicted)
    half_width = 1.96 * np.sqrt(share * (1 - share) / 1000)
    low, high = bootstrap_interval(accuracy, gold, predicted)
    assert low == pytest.approx(share - half_width, abs=0.004)
    assert high == pytest.approx(share + half_width, abs=0.004)
    assert bootstrap_interval(accuracy, gold, predicted) == (low, high)
    assert bootstrap_interval(accuracy, gold, predicted, random_state=1) != (low, high)


def test_interval_is_paired_by_document():
    gold = np.repeat([0, 1], 100)
    raw = np.zeros(200, dtype=int)
    better = raw.copy()
    better[100:150] = 1  # right wherever raw is, and on 50 more documents
    low, high = bootstrap_interval(lambda g, a, b: accuracy(g, b) - accuracy(g, a), gold, raw, better)
    assert 0.15 < low < 0.25 < high < 0.35
    same = bootstrap_interval(lambda g, a, b: accuracy(g, b) - accuracy(g, a), gold, raw, raw)
    assert same == (0.0, 0.0)


def test_a_higher_level_gives_a_wider_interval():
    gold, proba = random_predictions()
    low, high = bootstrap_interval(brier_score, gold, proba, level=0.5)
    wide_low, wide_high = bootstrap_interval(brier_score, gold, proba, level=0.99)
    assert wide_low < low < brier_score(gold, proba) < high < wide_high


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: accuracy([0, 1], [0]), r"have \[2, 1\] rows; each must have one row"),
        (lambda: accuracy([], []), r"labels must be a list of label indices|have \[0, 0\] rows"),
        (lambda: macro_f1([0, -1], [0, 1]), "The gold labels must be a list of label indices, whole numbers from 0"),
        (lambda: macro_f1([0, 1], [0.0, 1.0]), "The predicted labels must be a list of label indices"),
        (lambda: brier_score([0], [[-0.1, -2.3]]), "one row per document that sums to 1; did you forget np.exp"),
        (lambda: brier_score([2], [[0.5, 0.5]]), "The gold label 2 has no column among 2"),
        (lambda: expected_calibration_error([0], [[1.0, 0.0]], n_bins=0), "n_bins is 0"),
        (lambda: bootstrap_interval(accuracy, [0, 1], [0]), r"have \[2, 1\] rows"),
        (lambda: bootstrap_interval(accuracy, [0], [0], level=95), "level 95; a bootstrap interval needs"),
        (lambda: bootstrap_interval(accuracy, [0], [0], n_resamples=0), "n_resamples is 0"),
    ],
)
def test_says_what_is_wrong(call, sentence):
    with pytest.raises(CalibrationError, match=sentence):
        call()
