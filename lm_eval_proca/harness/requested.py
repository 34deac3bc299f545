"""The documents of a task of lm-eval as its requests show them: labels, gold, prompts; the same on every process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from lm_eval_proca.harness.estimate import fingerprint
from lm_eval_proca.harness.fixed_labels import Obstacle, check_words
from lm_eval_proca.harness.gather import gather
from lm_eval_proca.score_table import NO_GOLD


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
    for doc_id, requests in _by_document(task.instances).items():
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


def _by_document(instances: Iterable[Instance]) -> dict[int, list[Instance]]:
    of_document: defaultdict[int, list[Instance]] = defaultdict(list)
    for instance in sorted(instances, key=lambda instance: instance.idx):
        of_document[instance.doc_id].append(instance)
    return of_document


def gold_of(target: Any, labels: Sequence[str]) -> int:
    """Index of the gold label, by lm-eval's rule; a document that has none is wrong in every row."""
    if isinstance(target, str):
        return labels.index(target.strip()) if target.strip() in labels else NO_GOLD
    is_index = isinstance(target, (int, np.integer)) and 0 <= target < len(labels)
    return int(target) if is_index else NO_GOLD
