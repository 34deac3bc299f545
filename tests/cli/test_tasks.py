"""`lm-eval-proca tasks` against a count of our own over the YAML files."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from pathlib import Path

import lm_eval.tasks
import pytest
import yaml

from lm_eval_proca.cli import main
from lm_eval_proca.harness.stock_tasks import judge
from lm_eval_proca.sweep.task_files import find_task_configs

OWN = """
task: {name}
dataset_path: somebody/quiz
test_split: test
fewshot_split: dev
output_type: multiple_choice
doc_to_text: question
doc_to_target: answer
doc_to_choice: {choices}
"""


@pytest.mark.parametrize(
    ("config", "labels", "obstacle"),
    [
        ({"doc_to_choice": ["no", "yes"]}, ("no", "yes"), None),
        ({"doc_to_choice": {"a": "no", "b": "yes"}}, ("no", "yes"), None),
        ({"doc_to_choice": ["yes", "yes "]}, None, "two labels are written alike"),
        ({"doc_to_choice": ["yes"]}, None, "fewer than two labels"),
        ({"doc_to_choice": "{{choices.text}}"}, None, "choices come from each document"),
        ({"doc_to_choice": len}, None, "choices come from a function"),
        ({"doc_to_choice": "/tasks/quiz/utils.choices"}, None, "choices come from a function"),
        ({}, None, "no doc_to_choice"),
        ({"output_type": "generate_until", "doc_to_choice": ["no", "yes"]}, None, "generates text"),
        ({"output_type": None}, None, "generates text"),
        ({"output_type": "loglikelihood"}, None, "output_type is loglikelihood"),
        ({"doc_to_text": 0, "doc_to_choice": ["no", "yes"]}, None, "several inputs per document"),
        ({"doc_to_target": [0, 1], "doc_to_choice": ["no", "yes"]}, None, "several gold labels per document"),
        ({"class": "/tasks/squad/task.SQuAD2"}, None, "a task written in Python"),
    ],
)
def test_what_a_configuration_tells(config, labels, obstacle):
    verdict = judge({"output_type": "multiple_choice", **config})
    assert (verdict.labels, verdict.obstacle) == (labels, obstacle)
    assert verdict.final == ("come from" not in str(obstacle))


@pytest.fixture
def small_index(monkeypatch: pytest.MonkeyPatch):
    """Our tasks and the user's, without lm-eval's ten thousand files."""
    from lm_eval_proca.sweep import task_files

    plain = task_files._index
    monkeypatch.setattr(task_files, "_index", lambda folders, **kwargs: plain(folders, include_defaults=False))


def test_the_list(small_index, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "quiz_fixed.yaml").write_text(OWN.format(name="quiz_fixed", choices="[A, B, C]"))
    (tmp_path / "quiz_open.yaml").write_text(OWN.format(name="quiz_open", choices='"{{options}}"'))
    (tmp_path / "group.yaml").write_text("group: quizzes\ntask: [quiz_fixed, {group: inner, task: [quiz_open]}]\n")
    for name in ("quiz_*", "quizzes"):
        assert main(["tasks", name, "--include_path", str(tmp_path)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [re.split(r"\s{2,}", line) for line in lines[2:4]] == [
            ["quiz_fixed", "yes", "3", "test, dev"],
            ["quiz_open", "the run decides", "test, dev", "choices come from each document"],
        ]
        assert lines[5] == "1 of 2 tasks have one fixed list of labels and can be calibrated: 1 with 3 labels"
    assert main(["tasks", "no_such_task"]) == 1
    assert "There is no task no_such_task" in capsys.readouterr().err


def test_the_nine_tasks_can_be_calibrated(small_index):
    ours = find_task_configs("proca")
    assert len(ours) == 9
    assert all(judge(config).labels for config in ours.values())


class _Loader(yaml.CSafeLoader):
    pass


_Loader.add_constructor("!function", lambda loader, node: ("function", loader.construct_scalar(node)))


def _resolved(path: str, known: dict[str, dict]) -> dict:
    if path not in known:
        with open(path, "rb") as file:
            config = yaml.load(file, Loader=_Loader)
        included = config.pop("include", [])
        merged: dict = {}
        for name in included if isinstance(included, list) else [included]:
            merged |= _resolved(os.path.normpath(os.path.join(os.path.dirname(path), name)), known)
        known[path] = merged | config
    return known[path]


@pytest.mark.slow
def test_every_fixed_list_in_the_files_of_lm_eval_is_accepted():
    """Counted over the files by plain PyYAML: multiple choice, and doc_to_choice is a list."""
    (folder,) = lm_eval.tasks.__path__
    known: dict[str, dict] = {}
    configs = [_resolved(path, known) for path in glob.glob(f"{folder}/**/*.yaml", recursive=True)]
    tasks = {config["task"]: config for config in configs if isinstance(config.get("task"), str)}
    expected = {
        name: len(config["doc_to_choice"])
        for name, config in tasks.items()
        if config.get("output_type") == "multiple_choice" and isinstance(config.get("doc_to_choice"), list)
    }
    found = {name: config for name, config in find_task_configs("*").items() if not name.startswith("proca_")}
    labels = {name: len(verdict.labels) for name in found if (verdict := judge(found[name])).labels}
    assert labels == expected
    assert len(found) == len(tasks)
    if len(tasks) == 13123:  # lm-eval 0.4.13, of which the README tells
        assert len(labels) == 5874
        assert Counter(labels.values())[4] == 4937
