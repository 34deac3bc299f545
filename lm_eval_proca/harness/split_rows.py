"""Unlabeled rows of another split of a task of lm-eval, behind lm-eval's own prompts: `proca.estimate_split`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from lm_eval.api.instance import Instance
from lm_eval.api.samplers import FirstNSampler
from lm_eval.api.task import ConfigurableTask

from lm_eval_proca.errors import TaskError
from lm_eval_proca.harness.estimate import draw_rows, fingerprint
from lm_eval_proca.harness.fixed_labels import Obstacle
from lm_eval_proca.harness.requests import requests_of
from lm_eval_proca.scores.fitting import ROWS_PER_LABEL

Doc = dict[str, Any]


@dataclass(frozen=True)
class SplitRows:
    """Rows of a split, drawn with a seed."""

    split: str
    seed: int | None
    docs: tuple[Doc, ...]

    def requests(self, task: ConfigurableTask, docs: Mapping[int, Doc], options: Mapping[str, Any]) -> list[Instance]:
        """The requests of this process's share of the rows by id; the same prompts on any number of processes."""
        made: list[Instance] = []
        with _demonstrations_without(task, self.docs):
            for doc_id, doc in list(docs.items())[options.get("rank", 0) :: options.get("world_size", 1)]:
                if hasattr(task, "sampler"):
                    task.sampler.set_rnd(crc32(f"{self.seed}-{doc_id}".encode()))
                made += requests_of(task, doc_id, doc, options, f"A row of the split {self.split}")
        return made


def draw_split_rows(
    task: ConfigurableTask, split: str, size: int, seed: int | None, labels: Sequence[str]
) -> SplitRows:
    """Up to `size` rows that are neither evaluated nor fixed demonstrations and have the labels of the task."""
    if split not in task.dataset:
        raise Obstacle(f"no split {split}")
    if split == (task.config.test_split or task.config.validation_split):
        raise Obstacle(f"the split {split} is the evaluated one")
    docs = task.dataset[split]
    pool = task.config.process_docs(docs) if task.config.process_docs else docs
    evaluated = {task.doc_to_text(doc) for doc in task.task_docs}
    sampler = getattr(task, "sampler", None)
    fixed = sampler.df[: task.config.num_fewshot or 0] if isinstance(sampler, FirstNSampler) else []
    shown = {fingerprint([doc]) for doc in fixed}

    def allowed(row: Doc) -> bool:
        try:
            fits = [choice.strip() for choice in task.doc_to_choice(row)] == list(labels)
            return fits and task.doc_to_text(row) not in evaluated and fingerprint([row]) not in shown
        except Exception as error:  # of any function or template of the YAML
            raise TaskError(
                f"{task.config.task}: a row of the split {split} cannot be put into the prompt "
                f"({type(error).__name__}: {error}); leave proca.estimate_split out."
            ) from error

    drawn = tuple(draw_rows(pool, size, seed, allowed=allowed))
    if len(drawn) < ROWS_PER_LABEL * len(labels):
        raise Obstacle(f"the split {split} has only {len(drawn)} usable rows")
    return SplitRows(split, seed, drawn)


@contextmanager
def _demonstrations_without(task: ConfigurableTask, rows: Sequence[Doc]) -> Iterator[None]:
    """No row of the estimate set is shown as a demonstration, least of all to itself; then all is as before."""
    sampler, shots = getattr(task, "sampler", None), task.config.num_fewshot or 0
    if sampler is None or not shots:
        yield
        return
    pool, state = sampler.df, sampler.rnd
    drawn = {fingerprint([row]) for row in rows}
    left = [row for row in pool if fingerprint([row]) not in drawn]
    if len(left) < shots:
        raise TaskError(
            f"{task.config.task}: the estimate set leaves {len(left)} rows for {shots} demonstrations; lower "
            f"proca.estimate_size."
        )
    try:
        sampler.replace_df(left)
        yield
    finally:
        sampler.replace_df(pool)
        sampler.rnd = state
