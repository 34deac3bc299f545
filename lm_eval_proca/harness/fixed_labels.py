"""Whether a task of lm-eval has one fixed list of labels, which calibration needs: as far as its YAML tells, and as
its requests show, with gold and prompts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lm_eval.api.task import ConfigurableTask

from lm_eval_proca.harness.estimate import fingerprint
from lm_eval_proca.harness.gather import gather
from lm_eval_proca.harness.requests import by_document
from lm_eval_proca.scores.score_table import NO_GOLD

PYTHON = "a task written in Python"
SEVERAL_INPUTS = "several inputs per document"
SEVERAL_TARGETS = "several gold labels per document"


class Obstacle(Exception):
    """What stands in the way of calibrating a task; it then runs unchanged."""


@dataclass(frozen=True)
class Verdict:
    """The labels of a task, or what stands in the way of calibrating it."""

    labels: tuple[str, ...] | None = None
    obstacle: str | None = None
    final: bool = True
    """False where the choices are known only once the requests are: a run then decides from these."""


def judge(config: Mapping[str, Any]) -> Verdict:
    """Of a resolved configuration, with functions as such or as lm-eval's index has them: absolute paths."""
    if "class" in config and not str(config["class"]).endswith("lm_eval_proca.CalibratedTask"):
        return Verdict(obstacle=PYTHON)
    kind = config.get("output_type") or "generate_until"
    if kind != "multiple_choice":
        return Verdict(obstacle="generates text" if kind == "generate_until" else f"output_type is {kind}")
    if isinstance(config.get("doc_to_text"), int):
        return Verdict(obstacle=SEVERAL_INPUTS)
    if isinstance(config.get("doc_to_target"), list):
        return Verdict(obstacle=SEVERAL_TARGETS)
    choices = config.get("doc_to_choice")
    if choices is None:
        return Verdict(obstacle="no doc_to_choice")
    if callable(choices) or (isinstance(choices, str) and os.path.isabs(choices)):
        return Verdict(obstacle="choices come from a function", final=False)
    if isinstance(choices, str):
        return Verdict(obstacle="choices come from each document", final=False)
    labels = tuple(str(word) for word in (choices.values() if isinstance(choices, Mapping) else choices))
    try:
        check_words(labels)
    except Obstacle as obstacle:
        return Verdict(obstacle=str(obstacle))
    return Verdict(labels)


def check_words(labels: tuple[str, ...]) -> None:
    """Labels must be told apart."""
    if len(labels) < 2:
        raise Obstacle("fewer than two labels")
    if len({word.strip() for word in labels}) < len(labels):
        raise Obstacle("two labels are written alike")


@dataclass(frozen=True)
class RequestedDocument:
    gold: int
    """Index of its label, or NO_GOLD."""
    prompt_hash: str


@dataclass(frozen=True)
class Requested:
    """What all processes together will have scored."""

    labels: tuple[str, ...]
    documents: dict[int, RequestedDocument]
    """By lm-eval's document id, ascending."""


def requested(task: ConfigurableTask) -> Requested:
    """Read from the requests alone: functions of a task that draw at random must not be called once more."""
    choices: set[tuple[str, ...]] = set()
    documents: dict[int, RequestedDocument] = {}
    for doc_id, requests in by_document(task.instances).items():
        if "acc_mutual_info" in task._metric_fn_list:  # every choice once more, without a prompt
            requests = requests[: len(requests) // 2]
        labels = tuple(instance.args[1].strip() for instance in requests)
        gold = gold_of(task.doc_to_target(requests[0].doc), labels)
        choices.add(labels)
        documents[doc_id] = RequestedDocument(gold, fingerprint([requests[0].args[0]]))

    shards = gather((choices if len(choices) == 1 else None, documents))
    (own, *_), everything = shards[0], {doc_id: one for _, shard in shards for doc_id, one in shard.items()}
    if own is None or any(others != own for others, _ in shards):
        raise Obstacle("choices differ between documents")
    (labels,) = own
    check_words(labels)
    if len(everything) <= max(everything):  # stock `--model hf` on several nodes: local rank with global world size
        raise Obstacle("some documents are scored by no process")
    return Requested(labels, dict(sorted(everything.items())))


def gold_of(target: Any, labels: Sequence[str]) -> int:
    """Index of the gold label, by lm-eval's rule; a document that has none is wrong in every row."""
    if isinstance(target, str):
        return labels.index(target.strip()) if target.strip() in labels else NO_GOLD
    is_index = isinstance(target, (int, np.integer)) and 0 <= target < len(labels)
    return int(target) if is_index else NO_GOLD
