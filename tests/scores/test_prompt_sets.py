"""Which score tables an ensemble can be made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from lm_eval_proca.scores.prompt_sets import OnePrompt, sets_of
from lm_eval_proca.scores.score_table import ScoreTable
from tests.score_tables import made_prompts


def named(tables: Sequence[ScoreTable]) -> list[OnePrompt]:
    return [OnePrompt(f"{chr(97 + k)}.parquet", table, table.record.prompt_hash) for k, table in enumerate(tables)]


def changed(table: ScoreTable, **record: Any) -> ScoreTable:
    return replace(table, record=replace(table.record, **record))


def names(sets: Sequence[Sequence[OnePrompt]]) -> list[list[str]]:
    return [[one.name for one in some] for some in sets]


def test_seeds_of_a_sweep_are_one_set_though_their_unlabeled_rows_differ_by_a_few() -> None:
    tables = made_prompts(3)
    assert len({table.record.unlabeled_hash for table in tables}) == 3
    sets, reasons = sets_of(named(tables))
    assert names(sets) == [["a.parquet", "b.parquet", "c.parquet"]]
    assert reasons == []


def test_a_run_with_several_prompts_is_a_set_of_its_own_in_the_order_of_its_prompts() -> None:
    tables = [
        changed(table, prompts=2, prompt=1 - k % 2, seed=seed, vary=vary, prompt_hash=f"{seed}-{vary}-{k}")
        for seed, vary in ((0, "orders"), (10, "orders"), (10, "demonstrations"))
        for k, table in enumerate(made_prompts(2))
    ]
    sets, reasons = sets_of(named(tables))
    assert names(sets) == [["b.parquet", "a.parquet"], ["d.parquet", "c.parquet"], ["f.parquet", "e.parquet"]]
    assert reasons == []


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        ({"task": "proca_mr"}, "another task"),
        ({"model_hash": "other"}, "another model"),
        ({"model": "org/other"}, "another model"),
        ({"documents_hash": "other"}, "other evaluated documents"),
        ({"num_fewshot": 8}, "another number of shots"),
        ({"estimate_source": "file:made.jsonl"}, "other unlabeled rows"),
        ({"estimate_size": 50}, "other unlabeled rows"),
        ({"prompts": 5, "prompt": 2}, "prompts of another run"),
        ({"prompts": 3}, "prompts of another run"),
        ({"task": "x", "num_fewshot": 1}, "another task and another number of shots"),
    ],
)
def test_a_table_that_does_not_belong_is_left_out_with_a_reason(difference: dict[str, Any], words: str) -> None:
    first, second, third = made_prompts(3)
    sets, reasons = sets_of(named([first, second, changed(third, **difference)]))
    assert names(sets) == [["a.parquet", "b.parquet"]]
    assert reasons == [f"c.parquet is in no set: it has {words} than a.parquet."]


def test_the_same_prompt_counts_once() -> None:
    first, second = made_prompts(2)
    sets, reasons = sets_of(named([first, second, first]))
    assert names(sets) == [["a.parquet", "b.parquet"]]
    assert reasons == ["c.parquet has the same prompt as a.parquet."]


def test_one_prompt_is_no_set() -> None:
    [first] = made_prompts(1)
    assert sets_of(named([first])) == ([], ["a.parquet is the only prompt; a set has two or more."])


def test_tables_that_do_not_say_what_they_are_of_are_no_prompts() -> None:
    first, second = made_prompts(2)
    sets, reasons = sets_of(named([first, changed(second, documents_hash=None)]))
    assert sets == []
    assert reasons[0] == "b.parquet does not say which prompt and documents it has; score again."
