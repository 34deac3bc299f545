from __future__ import annotations

from random import Random

import pytest
from lm_eval.api.samplers import ContextSampler

from lm_eval_proca.errors import TaskError
from lm_eval_proca.harness.documents import OnePromptSampler
from tests.conftest import made_sentences


def sampler(pool, *, seed=1234, allowed=lambda row: True, **options) -> OnePromptSampler:
    made = OnePromptSampler(pool, task="t", allowed=allowed, label_of=lambda row: row["label"], **options)
    return made.set_rnd(seed)


def test_demonstrations_are_the_first_draw_of_lm_evals_sampler():
    pool = made_sentences(50, seed=1)
    assert sampler(pool, seed=7).sample(4) == ContextSampler(pool, rnd=7).sample(4)


def test_every_document_gets_the_same_and_another_seed_others():
    made = sampler(made_sentences(50, seed=1))
    first = made.sample(4, eval_doc={"sentence": "x"})
    assert made.sample(4, eval_doc={"sentence": "y"}) == first
    assert made.set_rnd(5).sample(4) != first
    assert made.set_rnd(1234).sample(4) == first


def test_forbidden_rows_are_replaced():
    pool = made_sentences(30, seed=1)
    free = sampler(pool).indices(5)
    banned = {pool[i]["sentence"] for i in free[:3]}
    drawn = sampler(pool, allowed=lambda row: row["sentence"] not in banned).indices(5)
    assert len(set(drawn)) == 5
    assert not banned & {pool[i]["sentence"] for i in drawn}
    assert drawn[:2] == free[3:]


@pytest.mark.parametrize("counts", [(0, 8), (3, 5), (8, 0)])
def test_counts_per_label(counts):
    pool = made_sentences(40, seed=1)
    labels = [row["label"] for row in sampler(pool, counts=counts).sample(8)]
    assert (labels.count(0), labels.count(1)) == counts


def test_order_seed_permutes_and_nothing_else():
    pool = made_sentences(40, seed=1)
    plain = sampler(pool, counts=(4, 4)).indices(8)
    expected = list(plain)
    Random(3).shuffle(expected)
    assert sampler(pool, counts=(4, 4), order_seed=3).indices(8) == expected
    assert sorted(expected) == sorted(plain)


def test_first_n():
    pool = made_sentences(10, seed=1)
    assert sampler(pool, first=True).sample(3) == pool[:3]


def test_sentences_when_there_are_too_few_or_counts_disagree():
    pool = made_sentences(6, seed=1)
    with pytest.raises(TaskError, match="7 demonstrations were asked for, but only 6 rows"):
        sampler(pool).sample(7)
    with pytest.raises(TaskError, match="makes 5 demonstrations, but --num_fewshot is 4"):
        sampler(pool, counts=(2, 3)).sample(4)
    with pytest.raises(TaskError, match="one per label is needed"):
        sampler(pool, counts=(4,)).sample(4)
