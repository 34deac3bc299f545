"""From rows to score tables: the requests of the harness, answered by any model of lm-eval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, TemplateLM

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.classify.question import Row, TextTask, Unusable
from lm_eval_proca.errors import TaskError
from lm_eval_proca.harness.documents import Doc, Document
from lm_eval_proca.harness.filters import (
    ScoredDocument,
    ScoringPlan,
    ask_for_representations,
    score_table,
    scored_documents,
)
from lm_eval_proca.scores.score_table import NO_GOLD, ScoreTable

CHUNK = 256
"""Rows whose requests are in memory together. Each chunk reads the common beginning of its prompts once."""


@dataclass(frozen=True)
class Scored:
    """The scores of rows, or why there are none."""

    rows: list[int] = field(default_factory=list)
    """The numbers of the rows that have scores, ascending."""
    tables: list[ScoreTable] = field(default_factory=list)
    """These rows under each prompt; empty if there are no such rows."""
    unusable: dict[int, str] = field(default_factory=dict)
    """Why the other rows have none."""


def joined(parts: Sequence[Scored]) -> Scored:
    """The rows of all parts, in their order."""
    unusable = {row: why for part in parts for row, why in part.unusable.items()}
    by_prompt = zip(*(part.tables for part in parts if part.tables), strict=True)
    return Scored([row for part in parts for row in part.rows], [_stacked(tables) for tables in by_prompt], unusable)


def _stacked(tables: Sequence[ScoreTable]) -> ScoreTable:
    states = [table.representations for table in tables if table.representations is not None]
    columns = ("role", "index", "gold", "estimate_gold", "scores")
    return ScoreTable(
        **{name: np.concatenate([getattr(table, name) for table in tables]) for name in columns},
        record=tables[0].record,
        representations=np.concatenate(states) if len(states) == len(tables) else None,
    )


@dataclass(frozen=True)
class Scorer:
    """A question and the model that answers it; the calibrator says whether representations are wanted."""

    task: TextTask
    lm: LM
    calibrator: Calibrator

    def score(self, rows: Mapping[int, Row]) -> Scored:
        """The scores of rows, given by their numbers, under every prompt."""
        numbers = sorted(rows)
        parts = [numbers[start : start + CHUNK] for start in range(0, len(numbers), CHUNK)]
        return joined([self._score({number: rows[number] for number in part}) for part in parts])

    @cached_property
    def blank_scores(self) -> list[list[float]]:
        """The scores of the content-free document under every prompt: what the model and the question are known by."""
        assert self.task.plan is not None
        found = self._answered(self.task.plan, {0: self.task.eval_docs[0]}, {})
        return [scored[0].scores for scored in found]

    def _score(self, rows: Mapping[int, Row]) -> Scored:
        assert self.task.plan is not None
        unusable: dict[int, str] = {}
        docs = {}
        for number, row in rows.items():
            try:
                docs[number] = self.task.question.doc(row)
            except Unusable as reason:
                unusable[number] = str(reason)
        documents = {number: Document("eval", number, NO_GOLD) for number in docs}
        plan = ScoringPlan(documents, {}, self.task.plan.records)
        by_prompt = self._answered(plan, docs, unusable) if docs else []
        for scored in by_prompt:
            has_states = any(one.values is not None for one in scored)
            for one in scored:
                if (why := _why_unusable(one, has_states)) is not None:
                    unusable.setdefault(one.document.index, why)
        usable = [number for number in docs if number not in unusable]
        if not usable:
            return Scored(unusable=unusable)
        tables = [
            score_table([one for one in scored if one.document.index not in unusable], record)
            for scored, record in zip(by_prompt, plan.records, strict=True)
        ]
        return Scored(usable, tables, unusable)

    def _answered(
        self, plan: ScoringPlan, docs: Mapping[int, Doc], unusable: dict[int, str]
    ) -> list[list[ScoredDocument]]:
        """The documents that can be put into every prompt, with their scores under each; why others cannot."""
        requests: dict[int, list[Instance]] = {}
        for number, doc in docs.items():
            try:
                made = [self.task.requests_under(prompt, plan, [(number, doc)], {}) for prompt in self.task.prompts]
                requests[number] = [request for of_prompt in made for request in of_prompt]
            except TaskError as error:  # of a Jinja template that does not fit this row
                unusable[number] = f"cannot be put into the prompt ({error.__cause__ or error})"
        asked = [request for of_document in requests.values() for request in of_document]
        ask_for_representations(asked, [self.calibrator], self.task.representation, self.task.layers)
        for request, answer in zip(asked, _answers(self.lm, asked), strict=True):
            request.resps.append(answer)
        return [scored_documents(asked, plan, prompt.number) for prompt in self.task.prompts]


def _answers(lm: LM, requests: list[Instance]) -> list[tuple[float, bool]]:
    if not requests:
        return []
    if isinstance(lm, TemplateLM):  # the others may have no such option
        return lm.loglikelihood(requests, disable_tqdm=True)
    return lm.loglikelihood(requests)


def _why_unusable(one: ScoredDocument, others_have_states: bool) -> str | None:
    if one.truncated:
        return "is too long for the model, which would lose the beginning of the prompt"
    if not np.isfinite(one.scores).all():
        return "has scores that are not finite numbers"
    if others_have_states and one.values is None:
        return "has no representation, unlike the rows beside it"
    return None
