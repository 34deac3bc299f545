"""The record of a run: what is written is read again, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import Any

import pytest

from lm_eval_proca.errors import ResultsError
from lm_eval_proca.metrics import LabelCounts
from lm_eval_proca.scores.record import FORMAT, RunRecord, documents_hash

RECORD = RunRecord(
    task="proca_sst2",
    task_version="1",
    labels=("Negative", "Positive"),
    model="org/model",
    num_fewshot=4,
    seed=0,
    limit=0.5,
    eval_rows=10,
    estimate_source="split:train",
    estimate_size=60,
    demonstrations=(3, 1),
    model_hash="m",
    documents_hash="d",
    prompt_hash="p",
    unlabeled_hash="u",
    identity={"model": {"pretrained": "org/model"}},
    fits={"bc": {"n_rows": 60}},
    label_counts={"none": LabelCounts([9, 1], [5, 5], [5, 1], [0.8, 0.2])},
)


def test_a_record_survives_json():
    assert RunRecord.of_json(json.loads(json.dumps(RECORD.as_json())), "here") == RECORD
    assert RunRecord.of_json(json.loads(json.dumps(RunRecord().as_json())), "here") == RunRecord()


def test_every_field_is_written():
    assert RECORD.as_json().keys() == {"format", *(one.name for one in fields(RunRecord))}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 1}, f"has a record of format 1, this lm-eval-proca reads format {FORMAT}; run it again"),
        ({"format": None}, "has a record of format None"),
        ({"more": 1}, "was changed: it has other fields"),
        ({"labels": "Negative"}, "was changed: labels is 'Negative'"),
        ({"labels": ["a", 3]}, "was changed: labels is"),
        ({"num_fewshot": "4"}, "was changed: num_fewshot is '4'"),
        ({"num_fewshot": True}, "was changed: num_fewshot is True"),
        ({"fits": []}, "was changed: fits is []"),
        ({"label_counts": {"none": {}}}, "label_counts are not counts of its labels"),
        ({"label_counts": {"none": 3}}, "label_counts are not counts of its labels"),
        ({"label_counts": {"none": {"predicted": [1], "gold": [1], "hits": [1]}}}, "not counts of its labels"),
        ({"label_counts": {"none": {"predicted": "ab", "gold": "ab", "hits": "ab"}}}, "not counts of its labels"),
    ],
)
def test_what_lm_eval_proca_does_not_write_is_refused_with_a_sentence(change: dict[str, Any], sentence: str):
    with pytest.raises(ResultsError, match=r"results\.json") as error:
        RunRecord.of_json({**RECORD.as_json(), **change}, "results.json")
    assert sentence in str(error.value)


@pytest.mark.parametrize("value", [None, 3, [], {"version": "0.1.0", "labels": ["a", "b"], "eval_hash": "x"}])
def test_records_of_earlier_versions_are_refused(value: Any):
    with pytest.raises(ResultsError, match="record of format"):
        RunRecord.of_json(value, "results.json")


def test_what_was_evaluated_is_documents_and_gold():
    documents = [("a", 0), ("b", 1)]
    assert documents_hash(documents) == documents_hash(list(documents))
    assert documents_hash(documents) != documents_hash([("a", 1), ("b", 1)])
    assert documents_hash(documents) != documents_hash(documents[::-1])


def test_a_calibrator_depends_on_model_and_prompt():
    assert RECORD.origin["model_args"] == {"pretrained": "org/model"}
    assert replace(RECORD, prompt_hash="q").origin != RECORD.origin
    assert RunRecord().origin == {}
