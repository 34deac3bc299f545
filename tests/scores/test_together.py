"""Several prompts of one task: what they say together, and how they are judged by each other."""

from __future__ import annotations

import json
from itertools import combinations

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.metrics import cohen_kappa_score

from lm_eval_proca.metrics import accuracy
from lm_eval_proca.scores.fitting import make_calibrators
from lm_eval_proca.scores.prompt_sets import calibrate_together
from lm_eval_proca.scores.together import Prompts, doubts, report
from tests.score_tables import made_prompts

THREE = np.log(
    [  # three prompts, two documents, two labels
        [[0.9, 0.1], [0.6, 0.4]],
        [[0.8, 0.2], [0.3, 0.7]],
        [[0.4, 0.6], [0.2, 0.8]],
    ]
)


def confident(predicted: np.ndarray, probability: float, labels: int = 2) -> np.ndarray:
    """Log-probabilities (prompts, documents, labels) of prompts that give their label this probability."""
    others = (1 - probability) / (labels - 1)
    return np.log(np.where(np.eye(labels, dtype=bool)[predicted], probability, others))


def shares(a: float, b: float) -> list[float]:
    """Two probabilities, as the normalised cube roots of products of three."""
    return [a ** (1 / 3) / (a ** (1 / 3) + b ** (1 / 3)), b ** (1 / 3) / (a ** (1 / 3) + b ** (1 / 3))]


FIRST, SECOND = shares(0.9 * 0.8 * 0.4, 0.1 * 0.2 * 0.6), shares(0.6 * 0.3 * 0.2, 0.4 * 0.7 * 0.8)
"""What the three prompts together say of each document."""


def test_labels_and_agreement_by_hand() -> None:
    found = Prompts(THREE)
    np.testing.assert_array_equal(found.predicted, [[0, 0], [0, 1], [1, 1]])
    np.testing.assert_allclose(np.exp(found.together), [FIRST, SECOND])
    np.testing.assert_array_equal(found.predicted_together, [0, 1])
    np.testing.assert_array_equal(found.agreement, [0.5, 1.0, 0.5])


def test_probability_of_labels_by_hand() -> None:
    found = Prompts(THREE)
    expected = [(FIRST[0] + SECOND[0]) / 2, (FIRST[0] + SECOND[1]) / 2, (FIRST[1] + SECOND[1]) / 2]
    np.testing.assert_allclose(found.probability_of(found.predicted).mean(axis=1), expected)
    np.testing.assert_allclose(found.probability_of(np.zeros((3, 2), int)), [[FIRST[0], SECOND[0]]] * 3)


def test_kappa_is_that_of_fleiss_1971() -> None:
    """His example: 10 subjects, 14 raters, 5 categories, kappa 0.210."""
    votes = np.array(
        [
            [0, 0, 0, 0, 14], [0, 2, 6, 4, 2], [0, 0, 3, 5, 6], [0, 3, 9, 2, 0], [2, 2, 8, 1, 1],
            [7, 7, 0, 0, 0], [3, 2, 6, 3, 0], [2, 5, 3, 2, 2], [6, 5, 2, 1, 0], [0, 2, 2, 3, 7],
        ]
    )  # fmt: skip
    predicted = np.stack([np.repeat(np.arange(5), row) for row in votes], axis=1)
    assert Prompts(confident(predicted, 0.9, labels=5)).kappa == pytest.approx(0.210, abs=5e-4)


def test_kappa_counts_pairs_that_agree() -> None:
    predicted = np.random.default_rng(0).integers(3, size=(4, 50))
    pairs = [np.mean(predicted[a] == predicted[b]) for a, b in combinations(range(4), 2)]
    by_chance = sum(np.mean(predicted == label) ** 2 for label in range(3))
    found = Prompts(confident(predicted, 0.8, labels=3))
    assert found.kappa == pytest.approx((np.mean(pairs) - by_chance) / (1 - by_chance))
    assert Prompts(confident(np.ones((3, 5), int), 0.8)).kappa == 1.0


def test_kappas_with_all_together_are_those_of_cohen() -> None:
    found = Prompts(log_softmax(np.random.default_rng(3).normal(size=(4, 80, 3)), axis=2))
    expected = [cohen_kappa_score(one, found.predicted_together) for one in found.predicted]
    np.testing.assert_allclose(found.kappas, expected)


@pytest.fixture
def answers() -> tuple[np.ndarray, np.ndarray]:
    """Gold labels of 300 documents, and the labels of five prompts that are each right about nine times of ten."""
    rng = np.random.default_rng(1)
    gold = rng.integers(2, size=300)
    return gold, np.where(rng.random((5, 300)) < 0.9, gold, 1 - gold)


def test_a_prompt_that_turns_labels_round_is_found_without_labels(answers: tuple[np.ndarray, np.ndarray]) -> None:
    gold, reference = answers
    turned = reference.copy()
    turned[3] = 1 - turned[3]
    bc, method = (Prompts(confident(one, 0.9)) for one in (reference, turned))
    assert doubts(bc, bc) == {}
    assert list(doubts(method, bc)) == [3]
    said = report({"bc": bc, "turned": method}, gold)
    assert said["bc"]["warnings"] == []
    [warning, *_] = said["turned"]["warnings"]
    assert warning.startswith("Prompt 3 has gone wrong: all prompts together find its labels ")
    assert said["turned"]["accuracy"] == pytest.approx((turned == gold).mean(axis=1).tolist())
    # The truth is not needed for any of this but the accuracy.
    unlabeled = report({"bc": bc, "turned": method}, np.full(300, -1))
    assert unlabeled["turned"] == {**said["turned"], "accuracy": None}


def test_a_prompt_that_stands_apart_is_named(answers: tuple[np.ndarray, np.ndarray]) -> None:
    """Batch calibration says the same under this prompt, so it speaks neither for nor against it."""
    _, labels = answers
    labels = labels.copy()
    labels[3] = np.random.default_rng(2).integers(2, size=300)
    apart = Prompts(confident(labels, 0.9))
    share = np.mean(labels[3] == apart.predicted_together)
    sentence = f"Prompt 3 stands apart: it gives only {share:.0%} of the documents the label of all prompts together."
    assert doubts(apart, apart) == {3: sentence}


def test_a_difference_by_chance_names_no_prompt(answers: tuple[np.ndarray, np.ndarray]) -> None:
    _, reference = answers
    other = reference.copy()
    other[2, :3] = 1 - other[2, :3]
    bc, method = (Prompts(confident(one, 0.9)) for one in (reference, other))
    assert doubts(method, bc) == {}


def test_a_prompt_that_is_less_probable_than_batch_calibration_is_found(
    answers: tuple[np.ndarray, np.ndarray],
) -> None:
    gold, reference = answers
    worse = reference.copy()
    worse[2, :40] = 1 - gold[:40]
    bc, method = (Prompts(confident(one, 0.9)) for one in (reference, worse))
    [(number, reason)] = doubts(method, bc).items()
    assert number == 2
    own, other = (method.probability_of(one)[2].mean() for one in (worse, reference))
    assert own < other
    assert reason == (
        f"Prompt 2 has gone wrong: all prompts together find its labels {own:.1%} probable, those of batch calibration "
        f"under the same prompt {other:.1%}."
    )


def test_scores_that_are_not_finite_have_no_estimated_accuracy() -> None:
    """And a results file holds no NaN, which is not JSON."""
    tables = made_prompts(2)
    tables[1].scores[tables[1].role == "eval", 0] = np.nan
    said = calibrate_together(tables, make_calibrators(["bc"])).report
    assert list(said) == ["none"]
    assert said["none"]["estimated_accuracy"] is None
    json.dumps(said, allow_nan=False)


def test_prompts_that_do_not_agree_are_said_to_be_so() -> None:
    predicted = np.random.default_rng(2).integers(2, size=(5, 400))
    said = report({"bc": Prompts(confident(predicted, 0.9))}, predicted[0])["bc"]
    assert abs(said["kappa"]) < 0.1
    assert any("do not agree with each other" in warning for warning in said["warnings"])


def test_a_set_is_the_mean_of_what_every_prompt_says_alone() -> None:
    tables = made_prompts(4)
    calibrators = make_calibrators(["bc", "conca"])
    together = calibrate_together(tables, calibrators)
    gold = tables[0].gold_of("eval")
    log_proba = []
    for table in tables:  # batch calibration, written out: the mean log-probability is taken off
        unlabeled, scores = (log_softmax(table.scores_of(role), axis=1) for role in ("estimate", "eval"))
        log_proba.append(log_softmax(scores - unlabeled.mean(axis=0), axis=1))
    predicted = np.mean(log_proba, axis=0).argmax(axis=1)
    assert list(together.methods) == ["none", "bc", "conca"]
    found = together.methods["bc"]
    np.testing.assert_array_equal(found.predicted_together, predicted)
    assert found.measures_together(gold)["accuracy"].value == accuracy(gold, predicted)
    alone = [accuracy(gold, one.argmax(axis=1)) for one in log_proba]
    over = found.over_prompts(gold)
    assert over is not None
    assert (over.mean, over.worst) == (pytest.approx(np.mean(alone)), min(alone))
    assert over.sd == pytest.approx(np.std(alone, ddof=1))
    assert accuracy(gold, predicted) > max(alone)


def test_a_method_that_fails_under_one_prompt_has_no_row() -> None:
    tables = made_prompts(3)
    tables[1].scores[tables[1].role == "content_free"] = np.nan
    together = calibrate_together(tables, make_calibrators(["bc", "conca"]))
    assert list(together.methods) == ["none", "bc"]
    assert together.failures["conca"].startswith("prompt 1: ")
    assert [list(fits) for fits in together.fits] == [["bc"]] * 3
