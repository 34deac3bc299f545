"""`proca_demo` keeps its promises: enough sentences of each kind, balanced, unlike one another, and found offline."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from lm_eval.tasks import TaskManager

LABELED = {"validation": 200, "train": 32}
"""Labeled splits and the least number of their sentences."""


@pytest.fixture(scope="module")
def sentences(task_configs: Path) -> dict[str, list[dict]]:
    return {
        file.stem: [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for file in (task_configs / "demo").glob("*.jsonl")
    }


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower().replace("'", ""))


@pytest.mark.parametrize(("split", "least"), LABELED.items())
def test_labeled_sentences_are_many_and_balanced(sentences, split, least):
    rows = sentences[split]
    assert len(rows) >= least
    assert all(row.keys() == {"text", "label"} for row in rows)
    counts = Counter(row["label"] for row in rows)
    assert counts == {0: len(rows) / 2, 1: len(rows) / 2}


def test_estimate_sentences_are_many_and_carry_no_label(sentences):
    assert len(sentences["estimate"]) >= 400
    assert all(row.keys() == {"text"} for row in sentences["estimate"])


def test_no_two_sentences_share_six_words_in_a_row(sentences):
    """Across all three files: so no sentence occurs twice, and no template was filled."""
    found = defaultdict(set)
    texts = [row["text"] for rows in sentences.values() for row in rows]
    for text in texts:
        tokens = words(text)
        for start in range(len(tokens) - 5):
            found[" ".join(tokens[start : start + 6])].add(text)
    assert {run: shared for run, shared in found.items() if len(shared) > 1} == {}
    assert len({tuple(words(text)) for text in texts}) == len(texts)


def test_neither_label_word_nor_stray_space_is_in_a_sentence(sentences):
    texts = [row["text"] for rows in sentences.values() for row in rows]
    assert [text for text in texts if re.search("positive|negative", text, re.IGNORECASE)] == []
    assert [text for text in texts if text != " ".join(text.split())] == []


def test_demo_loads_from_the_task_folder_alone(task_configs, sentences, monkeypatch, tmp_path):
    """No hub, no local datasets, and the working directory does not matter."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    manager = TaskManager(include_path=str(task_configs), include_defaults=False)
    task = manager.load("proca_demo")["tasks"]["proca_demo"]
    assert list(task.eval_docs) == sentences["validation"]
    assert task.settings.estimate_size <= len(sentences["estimate"])
    doc = next(doc for doc in sentences["validation"] if doc["text"].startswith("The waiter sighed when I asked"))
    context = task.fewshot_context(doc, num_fewshot=0)
    gold = task.construct_requests(doc, context)[doc["label"]]
    assert "".join(gold.args) == f"Review: {doc['text']}\nSentiment: Negative"
