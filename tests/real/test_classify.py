"""SmolLM2 on real TREC questions: texts in, labels out, with the labels that lm_eval gives to the same prompt."""

from __future__ import annotations

import json
from pathlib import Path

import lm_eval
import pytest
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from lm_eval_proca import TextClassifier
from lm_eval_proca.models.shared_prefix import SharedPrefixLM
from tests.conftest import ROOT, write_jsonl

pytestmark = [pytest.mark.real, pytest.mark.slow]

YAML = """
task: questions
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
description: {description}
doc_to_text: {template}
doc_to_target: coarse_label
doc_to_choice: {labels}
metric_list: [{{metric: acc}}]
"""


def test_the_accuracy_of_lm_eval_with_the_same_prompt(smollm2: Path, real_data: Path, tmp_path: Path):
    rows = [json.loads(line) for line in (real_data / "trec" / "test.jsonl").read_text().splitlines()[:100]]
    task = load_yaml(ROOT / "task_configs" / "proca_trec.yaml")
    labels, template, description = task["doc_to_choice"], task["doc_to_text"], task["description"]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    words = {"labels": labels, "template": template, "description": description}
    shown = {key: json.dumps(value) for key, value in words.items()}
    (tmp_path / "questions.yaml").write_text(YAML.format(rows=tmp_path / "rows.jsonl", **shown))
    lm = SharedPrefixLM(pretrained=str(smollm2), device="cpu", dtype="float32", batch_size="auto")
    manager = TaskManager(include_path=tmp_path, include_defaults=False, metadata={"proca.calibrate": True})
    results = lm_eval.simple_evaluate(model=lm, tasks=["questions"], task_manager=manager, bootstrap_iters=0)
    expected = results["results"]["questions"]

    texts, gold = [row["text"] for row in rows], [labels[row["coarse_label"]] for row in rows]
    for method in ("bc", "proca_h"):
        found = TextClassifier(model=lm, calibrator=method, **words).fit_predict(texts)
        right = sum(one == other for one, other in zip(found, gold, strict=True))
        assert right / len(rows) == pytest.approx(expected[f"acc,{method}"], abs=1e-12)
        assert right / len(rows) > expected["acc,none"]
