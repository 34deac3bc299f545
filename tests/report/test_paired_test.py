"""The paired test against SciPy's exact binomial test and against counting every sign by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.stats import binomtest

from lm_eval_proca.report.paired_test import holm, paired_test


def test_by_hand():
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
