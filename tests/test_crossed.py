"""Documents and prompts as crossed sources: by hand, against a plain analysis of variance, and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from lm_eval.api.metrics import mean_stderr
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binomtest, norm, ttest_1samp
from scipy.stats import t as student

from lm_eval_proca.crossed import average_interval, crossed_mean, crossed_test
from lm_eval_proca.metrics import standard_error

REPLICATIONS = 6000


def test_two_prompts_and_three_documents_by_hand() -> None:
    """Means of prompts 2/3 and 1/3, of documents 1, 1/2 and 0; residuals ±(1/6, 1/3, 1/6), whose mean square is 1/6.

    a = (1/4) / 3 = 1/12, b = (1/18) / 2 = 1/36, c = (1/6) / 6 = 1/36, so V = 1/12.
    """
    found = crossed_mean(np.array([[1, 1, 0], [1, 0, 0]]))
    assert found.mean == pytest.approx(0.5)
    assert found.standard_error == pytest.approx(np.sqrt(1 / 12))
    assert found.sd == pytest.approx(np.sqrt(1 / 18))
    assert found.worst == pytest.approx(1 / 3)
    # Quantiles of Student's t from a printed table; at 1/2, the logit's derivative is 4.
    half = np.sqrt(4.3027**2 * (1 / 12 - 1 / 36) + 12.7062**2 * (1 / 36))
    assert found.low == pytest.approx(expit(-4 * half), rel=1e-3)
    assert found.high == pytest.approx(expit(4 * half), rel=1e-3)


def anova(values: np.ndarray) -> tuple[float, float, float]:
    """Mean squares of prompts, documents and residuals, as a textbook has them, by plain loops."""
    prompts, documents = values.shape
    grand = sum(values[p, d] for p in range(prompts) for d in range(documents)) / values.size
    of_prompt = [sum(values[p, d] for d in range(documents)) / documents for p in range(prompts)]
    of_document = [sum(values[p, d] for p in range(prompts)) / prompts for d in range(documents)]
    between_prompts = documents * sum((one - grand) ** 2 for one in of_prompt)
    between_documents = prompts * sum((one - grand) ** 2 for one in of_document)
    total = sum((values[p, d] - grand) ** 2 for p in range(prompts) for d in range(documents))
    residual = (total - between_prompts - between_documents) / ((prompts - 1) * (documents - 1))
    return between_prompts / (prompts - 1), between_documents / (documents - 1), residual


@pytest.mark.parametrize("prompts", [2, 3, 5, 10])
def test_error_and_test_are_those_of_an_analysis_of_variance(prompts: int) -> None:
    rng = np.random.default_rng(prompts)
    documents = 40
    skill = rng.uniform(0.3, 0.7, size=(prompts, 1)) + rng.uniform(-0.4, 0.4, size=documents)
    a, b = rng.random((2, prompts, documents)) < skill
    of_prompts, of_documents, residual = np.array(anova(a.astype(float))) / (prompts * documents)
    assert of_prompts > residual < of_documents, "nothing is below 0 here"
    assert crossed_mean(a).standard_error == pytest.approx(np.sqrt(of_prompts + of_documents - residual))

    of_prompts, of_documents, residual = np.array(anova(a.astype(float) - b)) / (prompts * documents)

    def half_width(level: float) -> float:
        of_source = student.ppf(1 - level / 2, [documents - 1, prompts - 1])
        return float(np.sqrt(of_source**2 @ [max(0, of_documents - residual), of_prompts]))

    found = crossed_test(a, b)
    distance = abs(a.mean() - b.mean())
    assert found.difference == pytest.approx(a.mean() - b.mean())
    assert found.p_value == pytest.approx(brentq(lambda level: half_width(level) - distance, 1e-9, 1), rel=1e-6)


def test_one_prompt_has_the_error_of_lm_eval_and_the_exact_test() -> None:
    a, b = (np.random.default_rng(0).random((2, 1, 50)) < 0.6).astype(float)
    found = crossed_mean(a)
    assert found.standard_error == pytest.approx(mean_stderr(a[0].tolist())) == pytest.approx(standard_error(a[0]))
    assert found.sd is None
    assert found.worst == found.mean
    tested = crossed_test(a, b)
    better, worse = int((a > b).sum()), int((a < b).sum())
    assert tested.p_value == pytest.approx(binomtest(better, better + worse).pvalue)
    assert (tested.better, tested.worse, tested.documents, tested.prompts) == (better, worse, 50, 1)


def test_one_document_has_no_error() -> None:
    several = crossed_mean(np.array([[1], [0], [1]]))
    assert (several.standard_error, several.low, several.high) == (None, None, None)
    assert several.sd == pytest.approx(np.sqrt(1 / 3))
    assert crossed_mean(np.array([[1]])).mean == 1
    assert crossed_test(np.array([[1], [1]]), np.array([[0], [0]])).p_value == 1


def test_prompts_that_agree_leave_the_error_of_the_documents() -> None:
    one = (np.random.default_rng(0).random((1, 60)) < 0.7).astype(float)
    assert crossed_mean(np.repeat(one, 4, axis=0)).standard_error == pytest.approx(standard_error(one[0]))


def test_prompts_more_alike_than_residuals_make_them_leave_the_error_of_the_mean_answers() -> None:
    right = np.array([[1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0], [1, 1, 0, 0, 1, 0]])
    assert len(set(right.sum(axis=1).tolist())) == 1
    assert crossed_mean(right).standard_error == pytest.approx(standard_error(right.mean(axis=0)))


def test_all_right_is_no_division_by_zero() -> None:
    found = crossed_mean(np.ones((3, 10)))
    assert (found.mean, found.standard_error, found.low, found.high) == (1, 0, 1, 1)


def test_with_one_source_the_test_is_students() -> None:
    """All documents alike: a test over prompts. All prompts alike: a test over documents."""
    over_prompts = np.array([1, 1, 0, 1, 1, 1.0])
    found = crossed_test(np.repeat(over_prompts[:, None], 30, axis=1), np.zeros((6, 30)))
    assert found.p_value == pytest.approx(ttest_1samp(over_prompts, 0).pvalue)
    over_documents = np.array([1, 0, 1, 1, 0, 1, 1.0])
    found = crossed_test(np.repeat(over_documents[None], 5, axis=0), np.zeros((5, 7)))
    assert found.p_value == pytest.approx(ttest_1samp(over_documents, 0).pvalue)


def test_where_nothing_varies_the_test_is_the_exact_one() -> None:
    found = crossed_test(np.ones((3, 8)), np.zeros((3, 8)))
    assert found.p_value == pytest.approx(2 * 0.5**8)
    assert crossed_test(np.ones((3, 8)), np.ones((3, 8))).p_value == 1


def test_order_changes_count_prompts_against_the_mean_and_ties_half() -> None:
    b = np.array([[1, 0, 0, 0]] * 4)
    a = np.array([[1, 1, 1, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]])  # +2, +2, -1, 0
    assert crossed_test(a, b).order_changes == crossed_test(b, a).order_changes == (1 + 0.5) / 4
    assert crossed_test(a[1:3], b[1:3]).order_changes == 0.5
    assert crossed_test(b, b).order_changes == 0.5, "equal everywhere: each prompt is a tie"


# ------------------------------------------------------------------ simulation


def latent_spread(accuracy: float, of_documents: float, points: float) -> float:
    """The standard deviation of prompts on the probit scale that gives accuracies this standard deviation."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)

    def spread(latent: float) -> float:
        middle = norm.ppf(accuracy) * np.sqrt(1 + of_documents**2 + latent**2)
        values = norm.cdf((middle + latent * nodes) / np.sqrt(1 + of_documents**2))
        return float(np.sqrt(np.cov(values, aweights=weights, ddof=0)))

    return float(brentq(lambda latent: spread(latent) - points, 0, 5)) if points else 0.0


def answers(prompts: int, documents: int, accuracy: float, points: float) -> np.ndarray:
    """Right and wrong (replications, prompts, documents) of a probit model; prompts and documents are drawn anew."""
    rng = np.random.default_rng([prompts, documents, round(1000 * points)])
    latent = latent_spread(accuracy, 1.0, points)
    middle = norm.ppf(accuracy) * np.sqrt(2 + latent**2)
    of_prompt = latent * rng.standard_normal((REPLICATIONS, prompts, 1))
    of_document = rng.standard_normal((REPLICATIONS, 1, documents))
    return middle + of_prompt + of_document + rng.standard_normal((REPLICATIONS, prompts, documents)) > 0


@pytest.mark.parametrize("points", [0, 0.03, 0.12])
@pytest.mark.parametrize(("prompts", "documents"), [(2, 100), (3, 100), (5, 200), (10, 100)])
def test_the_interval_of_a_mean_covers_what_it_says(prompts: int, documents: int, points: float) -> None:
    drawn = answers(prompts, documents, 0.7, points)
    found = np.array([crossed_mean(one) for one in drawn], dtype=float)
    covered = (found[:, 2] <= 0.7) & (found[:, 3] >= 0.7)
    assert 0.93 <= covered.mean() <= (0.97 if prompts > 3 else 0.99)
    error = np.sqrt((found[:, 1] ** 2).mean()) / found[:, 0].std()
    assert 0.95 <= error <= (1.05 if points > 0.06 else 1.15), "a negative variance counts as 0, so a little is added"
    if points > 0.06:
        over_documents = drawn.mean(axis=1)
        errors = over_documents.std(axis=1, ddof=1) / np.sqrt(documents)
        assert (abs(found[:, 0] - 0.7) < 1.96 * errors).mean() < 0.85, "documents alone are too sure"


@pytest.mark.parametrize("points", [0, 0.03, 0.12])
@pytest.mark.parametrize(("prompts", "documents"), [(2, 100), (3, 200), (5, 100), (10, 100)])
def test_two_equal_models_differ_in_one_of_twenty_tests(prompts: int, documents: int, points: float) -> None:
    """Prompts suit the models differently, but neither over all prompts; both find the same documents hard."""
    rng = np.random.default_rng([prompts, documents, round(1000 * points)])
    latent = latent_spread(0.7, 1.0, points)
    shape = (REPLICATIONS // 4, prompts, documents)
    of_both = 0.7 + rng.standard_normal((shape[0], 1, documents)) + latent / 2 * rng.standard_normal((*shape[:2], 1))
    models = [
        of_both
        + latent * rng.standard_normal((*shape[:2], 1))
        + 0.5 * rng.standard_normal((shape[0], 1, documents))
        + rng.standard_normal(shape)
        > 0
        for _ in range(2)
    ]
    errors = np.mean([crossed_test(a, b).p_value < 0.05 for a, b in zip(*models, strict=True)])
    assert (0.03 if prompts > 3 else 0.01) <= errors <= 0.07


def test_the_interval_of_an_average_over_datasets_covers_it() -> None:
    """Three tasks of other difficulty and size, one prompt each: errors of independent means add in squares."""
    rng, skills, sizes = np.random.default_rng(0), (0.55, 0.7, 0.9), (100, 200, 400)
    covered = 0
    for _ in range(2000):
        drawn = [rng.random((1, size)) < skill for skill, size in zip(skills, sizes, strict=True)]
        low, high = average_interval(drawn)
        covered += low <= np.mean(skills) <= high
    assert 0.94 < covered / 2000 < 0.965
    errors = [standard_error(one[0]) or 0.0 for one in drawn]
    assert high - low == pytest.approx(2 * 1.97 * np.sqrt(sum(error**2 for error in errors)) / 3, rel=0.03)


def test_the_interval_of_an_average_over_datasets_and_prompts_covers_it() -> None:
    """Probit models as above: four tasks, three prompts each, which differ by ten points."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(1000):
        drawn = [
            0.6 + rng.normal(0, 0.3, (3, 1)) + rng.normal(0, 0.8, (1, 200)) + rng.normal(0, 1, (3, 200)) > 0
            for _ in range(4)
        ]
        low, high = average_interval(drawn)
        covered += low <= norm.cdf(0.6 / np.sqrt(1 + 0.3**2 + 0.8**2)) <= high
    assert 0.94 < covered / 1000 < 0.99


def test_the_interval_of_one_dataset_is_that_of_its_mean() -> None:
    right = np.random.default_rng(1).random((4, 60)) < 0.7
    found = crossed_mean(right)
    assert average_interval([right]) == pytest.approx((found.low, found.high))
