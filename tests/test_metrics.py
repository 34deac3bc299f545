"""Statistics against scikit-learn, SciPy, simulation, and counting by hand."""

from __future__ import annotations

import itertools
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.stats import binomtest, bootstrap, kendalltau, permutation_test
from sklearn.metrics import accuracy_score, brier_score_loss, f1_score, recall_score

from lm_eval_proca.metrics import (
    accuracy,
    added,
    calibration_error,
    count_labels,
    holm,
    kendall_tau,
    mean,
    mean_by,
    measures,
    paired_test,
    standard_deviation,
    standard_error,
)

# ------------------------------------------------------------------ over seeds


def test_the_standard_deviation_is_that_of_a_sample():
    assert standard_deviation([0.6, 0.7, 0.8]) == pytest.approx(0.1)
    assert standard_deviation([0.7]) is None


def test_equal_means_are_equal_whatever_the_order():
    assert mean([0.1, 0.1, 0.4]) == mean([0.1, 0.2, 0.3])
    assert str(mean([-1e-17, 0.0])) == "0.0"


def test_means_are_over_everything_that_is_not_named():
    values = [0.5, 0.7, 0.9, 0.4]
    rows = [{"task": "ab"[k // 3], "seed": k, "accuracy": value} for k, value in enumerate(values)]
    first, second = mean_by(rows, "task")
    assert first["accuracy"] == pytest.approx(statistics.mean(values[:3]))
    assert first["sd"] == pytest.approx(statistics.stdev(values[:3]))
    assert (first["n"], second["n"], second["sd"]) == (3, 1, None)


# ------------------------------------------------------------------ over documents


def random_predictions(n_rows: int, n_labels: int):
    rng = np.random.default_rng([n_rows, n_labels])
    gold = rng.integers(n_labels, size=n_rows)
    proba = rng.dirichlet(np.full(n_labels, 0.5), size=n_rows)
    proba = 0.7 * proba + 0.3 * np.eye(n_labels)[gold]
    return gold, proba, proba.argmax(axis=1)


@pytest.mark.parametrize(("n_rows", "n_labels"), [(1, 3), (60, 2), (61, 5), (15, 14)])
def test_measures_are_scikit_learns(n_rows, n_labels):
    gold, proba, predicted = random_predictions(n_rows, n_labels)
    found = measures(gold, proba, predicted)
    assert found["accuracy"].value == accuracy(gold, predicted) == accuracy_score(gold, predicted)
    assert found["macro_f1"].value == pytest.approx(f1_score(gold, predicted, average="macro"))
    labels = range(n_labels)
    assert found["brier"].value == pytest.approx(brier_score_loss(gold, proba, labels=labels, scale_by_half=False))
    assert (found["brier"].low is None) == (n_rows == 1), "one document has no spread"


def test_intervals_are_scipys_bootstrap_of_scikit_learns_measures():
    gold, proba, predicted = random_predictions(80, 3)
    found = measures(gold, proba, predicted)
    plain = {
        "accuracy": (accuracy_score, (gold, predicted)),
        "macro_f1": (lambda g, p: f1_score(g, p, average="macro"), (gold, predicted)),
        "brier": (lambda g, *p: brier_score_loss(g, np.stack(p, axis=1), scale_by_half=False), (gold, *proba.T)),
    }
    for name, (measure, data) in plain.items():
        expected = bootstrap(
            data, measure, paired=True, vectorized=False, n_resamples=200, method="percentile", random_state=1
        ).confidence_interval  # another seed and fewer resamples, so a few per cent of the width apart
        width = expected.high - expected.low
        assert found[name].low == pytest.approx(expected.low, abs=0.25 * width), name
        assert found[name].high == pytest.approx(expected.high, abs=0.25 * width), name


def test_the_interval_of_accuracy_is_that_of_the_normal_approximation_and_repeats():
    rng = np.random.default_rng(0)
    gold = np.zeros(1000, dtype=int)
    predicted = (rng.random(1000) > 0.8).astype(int)
    proba = np.eye(2)[predicted]
    value, low, high = measures(gold, proba, predicted)["accuracy"]
    half_width = 1.96 * np.sqrt(value * (1 - value) / 1000)
    assert low == pytest.approx(value - half_width, abs=0.004)
    assert high == pytest.approx(value + half_width, abs=0.004)
    assert measures(gold, proba, predicted)["accuracy"] == (value, low, high)


def test_without_probabilities_only_labels_are_measured():
    gold, proba, predicted = random_predictions(60, 3)
    complete = measures(gold, proba, predicted)
    proba[7, 1] = np.nan
    found = measures(gold, proba, predicted)
    assert found["accuracy"] == complete["accuracy"]
    assert found["macro_f1"] == complete["macro_f1"]
    assert found["brier"].value is found["calibration_error"].value is None


def test_calibration_error_is_the_mean_over_pairs_of_different_documents():
    # Ten documents are one bin.
    gold, proba, _ = random_predictions(10, 3)
    surplus = [float(np.argmax(p) == g) - max(p) for g, p in zip(gold, proba, strict=True)]
    pairs = [a * b for a, b in itertools.permutations(surplus, 2)]
    expected = max(0.0, statistics.mean(pairs)) ** 0.5
    assert calibration_error(gold, proba).value == pytest.approx(expected)


def confident(confidence: np.ndarray, share_right: np.ndarray, rng: np.random.Generator):
    proba = np.column_stack([confidence, 1 - confidence])
    return (rng.random(len(confidence)) > share_right).astype(int), proba


TRUTHS = {
    "perfect": lambda c: c,
    "perfect and nearly certain": lambda c: c,
    "always 0.1 too high": lambda c: c - 0.1,
    "too high where unsure": lambda c: np.where(c < 0.8, c - 0.15, c),
    "flat": lambda c: np.full_like(c, 0.75),
}


@pytest.mark.parametrize("truth", TRUTHS)
@pytest.mark.parametrize("rows", [100, 1000])
def test_the_interval_of_the_calibration_error_holds_the_truth_as_often_as_it_says(truth, rows):
    rng = np.random.default_rng(rows)
    share_right = TRUTHS[truth]
    least = 0.98 if "certain" in truth else 0.5
    many = rng.uniform(least, 1, size=200_000)
    true_error = np.sqrt(np.mean((many - share_right(many)) ** 2))
    held = 0
    for _ in range(400):
        confidence = rng.uniform(least, 1, size=rows)
        value, low, high = calibration_error(*confident(confidence, share_right(confidence), rng))
        assert low <= value <= high
        held += low <= true_error <= high
    assert 0.90 < held / 400 < 0.99


def test_the_squared_calibration_error_has_no_bias():
    # Of a perfect predictor it is as often below zero, shown as 0, as above; the plain one would always be above.
    rng = np.random.default_rng(0)
    shown = []
    for _ in range(300):
        confidence = rng.uniform(0.5, 1, size=200)
        shown.append(calibration_error(*confident(confidence, confidence, rng)).value)
    assert 0.4 < np.mean(np.array(shown) == 0) < 0.7


def test_calibration_error_of_boasting_and_of_equal_confidences():
    gold = np.arange(1000) % 4 > 0  # the first label is right for a quarter
    certain = np.tile([1.0, 0.0], (1000, 1))
    value, low, high = calibration_error(gold.astype(int), certain)
    assert value == pytest.approx(0.75, abs=0.001)
    assert 0.70 < low < value < high < 0.80
    assert calibration_error(np.zeros(50, dtype=int), np.tile([1.0, 0.0], (50, 1))) == (0, 0, 0)


# ------------------------------------------------------------------ between two


def test_paired_test_by_hand():
    # 8 documents differ, 7 of them for the better: 2 * (1 + 8) / 2**8.
    a = np.array([[1] * 7 + [0] + [1, 0]], dtype=bool)
    b = np.array([[0] * 7 + [1] + [1, 0]], dtype=bool)
    test = paired_test(a, b)
    assert test.p_value == pytest.approx(18 / 256)
    assert (test.better, test.worse, test.documents, test.seeds) == (7, 1, 10, 1)


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (5, 5), (9, 1), (1, 9), (300, 240), (1999, 0)])
def test_one_seed_is_mcnemar_exact(better, worse):
    a = np.array([[True] * better + [False] * worse + [True] * 3])
    b = np.array([[False] * better + [True] * worse + [True] * 3])
    expected = binomtest(better, better + worse).pvalue if better + worse else 1.0
    assert paired_test(a, b).p_value == pytest.approx(expected, rel=1e-9, abs=1e-300)


answers = npst.arrays(bool, st.tuples(st.just(2), st.integers(1, 3), st.integers(1, 9)))


@given(answers)
def test_several_seeds_against_every_combination_of_signs(both):
    difference = both[0].sum(axis=0).astype(int) - both[1].sum(axis=0)
    signs = np.array(list(itertools.product([-1, 1], repeat=len(difference))))
    expected = np.mean(np.abs(signs @ difference) >= abs(difference.sum()))
    assert paired_test(both[0], both[1]).p_value == pytest.approx(expected)


def test_many_documents_against_scipys_random_signs():
    rng = np.random.default_rng(3)
    a, b = rng.random((3, 120)) < 0.7, rng.random((3, 120)) < 0.65
    totals = a.sum(axis=0).astype(float), b.sum(axis=0).astype(float)
    drawn = permutation_test(
        totals, lambda x, y, axis: (x - y).sum(axis=axis), permutation_type="samples", vectorized=True, random_state=0
    )
    assert paired_test(a, b).p_value == pytest.approx(drawn.pvalue, abs=0.02)


@given(answers)
def test_exchanging_the_two_exchanges_better_and_worse(both):
    forth, back = paired_test(both[0], both[1]), paired_test(both[1], both[0])
    assert forth.p_value == pytest.approx(back.p_value)
    assert (forth.better, forth.worse) == (back.worse, back.better)


def test_repeating_a_prompt_adds_no_evidence():
    # Pooled over seeds, McNemar's test would count each document five times.
    rng = np.random.default_rng(0)
    a, b = rng.random((1, 60)) < 0.7, rng.random((1, 60)) < 0.5
    once = paired_test(a, b).p_value
    assert paired_test(np.repeat(a, 5, axis=0), np.repeat(b, 5, axis=0)).p_value == pytest.approx(once)


def test_holm_by_hand():
    # Sorted: 0.01*4, 0.02*3, 0.04*2, 0.3*1; never falling.
    assert holm([0.04, 0.01, 0.3, 0.02]) == pytest.approx([0.08, 0.04, 0.3, 0.06])
    assert holm([0.02, 0.025]) == pytest.approx([0.04, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_kendalls_tau_is_scipys_and_none_where_all_are_tied():
    a, b = [0.1, 0.2, 0.3, 0.3], [0.2, 0.1, 0.4, 0.5]
    assert kendall_tau(a, b) == kendalltau(a, b).statistic
    assert kendall_tau(a, [0.5] * 4) is None


# ------------------------------------------------------------------ over labels


def test_label_bias_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(4)
    gold, proba = rng.integers(4, size=300), rng.dirichlet(np.ones(4), size=300)
    predicted = proba.argmax(axis=1)
    found = count_labels(gold, proba, predicted)
    recalls = recall_score(gold, predicted, average=None)
    assert found.recall == pytest.approx(recalls.tolist())
    assert found.recall_sd == pytest.approx(np.std(recalls))
    assert found.predicted_share == [np.mean(predicted == label) for label in range(4)]
    assert found.gold_share == [np.mean(gold == label) for label in range(4)]
    assert found.mean_probability == pytest.approx(proba.mean(axis=0))


def test_a_label_that_no_document_has_is_not_in_the_spread_of_recalls() -> None:
    gold, predicted = np.array([0, 0, 1]), np.array([0, 2, 1])
    found = count_labels(gold, np.full((3, 3), np.nan), predicted)
    assert found.recall == [0.5, 1.0, None]
    assert found.recall_sd == 0.25
    assert found.mean_probability is None


def test_labels_of_several_tasks_are_counted_together() -> None:
    rng = np.random.default_rng(5)
    gold, predicted = rng.integers(3, size=(2, 90)), rng.integers(3, size=(2, 90))
    proba = np.full((90, 3), 1 / 3)
    together = added(count_labels(a, proba, b) for a, b in zip(gold, predicted, strict=True))
    assert together.documents == 180
    assert together.recall_sd == pytest.approx(np.std(recall_score(gold.ravel(), predicted.ravel(), average=None)))


def test_documents_without_a_gold_label_count_nowhere() -> None:
    rng = np.random.default_rng(6)
    gold, proba = rng.integers(3, size=60), rng.dirichlet(np.ones(3), size=60)
    known = rng.random(60) < 0.7
    partly, predicted = np.where(known, gold, -1), proba.argmax(axis=1)
    assert accuracy(partly, predicted) == accuracy(gold[known], predicted[known])
    assert measures(partly, proba, predicted) == measures(gold[known], proba[known], predicted[known])
    assert count_labels(partly, proba, predicted) == count_labels(gold[known], proba[known], predicted[known])
    assert sum(count_labels(partly, proba, predicted).predicted_share) == pytest.approx(1)
    nothing = measures(np.full(60, -1), proba, predicted)
    assert {measure.value for measure in nothing.values()} == {None}
    assert np.isnan(accuracy(np.full(60, -1), predicted))


def test_standard_error_is_that_of_lm_eval() -> None:
    from lm_eval.api.metrics import mean_stderr

    right = np.random.default_rng(6).random(77) < 0.3
    assert standard_error(right) == pytest.approx(mean_stderr(right.tolist()))
    assert standard_error(right[:1]) is None
