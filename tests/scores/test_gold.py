"""The gold label as lm-eval's own tasks decide it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm_eval_proca.scores.gold import gold_index
from tests.conftest import write_jsonl

LABELS = ["1", "True", "0", "2"]


@pytest.mark.parametrize(
    "target", [0, 1, 3, -1, True, False, np.int64(2), "1", "2", "0", "True", "False", "3", "", " 1"]
)
def test_the_index_is_the_only_answer_that_lm_eval_counts_as_right(tmp_path: Path, target: Any) -> None:
    from lm_eval.api.task import ConfigurableTask

    write_jsonl(tmp_path / "rows.jsonl", [{"text": "a"}])
    config = {
        "task": "made",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "text",
        "doc_to_choice": LABELS,
        "doc_to_target": lambda doc: target,
        "metric_list": [{"metric": "acc"}],
    }
    task = ConfigurableTask(config=config)
    answers = [[(float(k == chosen), False) for k in range(4)] for chosen in range(4)]
    right = [k for k, answer in enumerate(answers) if task.process_results({"text": "a"}, answer)["acc"]]
    gold = gold_index(target, LABELS)
    assert right == ([] if gold == -1 else [gold])
