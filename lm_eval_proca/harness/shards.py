"""Scored documents on their way from every process into one score table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lm_eval.api.instance import Instance

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.representation import unit_scale
from lm_eval_proca.errors import DistributedError
from lm_eval_proca.harness.requests import by_document
from lm_eval_proca.scores.score_table import NO_GOLD, ROLES, ScoreTable


@dataclass(frozen=True)
class Document:
    """What a document is scored for, its index among those, and its gold label or NO_GOLD."""

    role: str
    index: int
    gold: int

    def __str__(self) -> str:
        return f"{self.role.replace('_', '-')} document {self.index}"


@dataclass(frozen=True)
class ScoredDocument:
    """A document and its label scores; `truncated` is None where the model does not tell."""

    document: Document
    scores: list[float]
    truncated: bool | None
    hidden_states: dict[str, np.ndarray] | None
    """By layer; None where the model gave none."""


def ask_for_hidden_states(
    requests: Iterable[Instance], calibrators: Iterable[Calibrator], layers: Sequence[int | float]
) -> None:
    """Let a model that can keep hidden states of these layers, if a calibrator uses them."""
    if layers and any(calibrator.uses_representations for calibrator in calibrators):
        for request in requests:
            if request.idx == 0:  # all labels of a document stand behind the same prompt
                request.layers = tuple(layers)


def scored_documents(instances: Iterable[Instance], documents: Mapping[int, Document]) -> list[ScoredDocument]:
    """What this process has scored; `documents` says what lm-eval's document ids stand for."""
    scored = []
    for doc_id, of_document in by_document(instances).items():
        # The evaluator pads ranks with copies of requests, so an instance may hold its response twice.
        scores = [float(instance.resps[0][0]) for instance in of_document]
        cut = [instance.truncated for instance in of_document if hasattr(instance, "truncated")]
        scored.append(
            ScoredDocument(documents[doc_id], scores, any(cut) if cut else None, _hidden_states(of_document[0]))
        )
    return scored


def _hidden_states(request: Instance) -> dict[str, np.ndarray] | None:
    """Scaled to unit root mean square, which half precision can hold whatever the model."""
    states = getattr(request, "hidden_states", None)
    if states is None:
        return None
    scaled = unit_scale(states).astype(np.float16)
    return {str(layer): state for layer, state in zip(request.layers, scaled, strict=True)}


def merge(
    shards: Sequence[Sequence[ScoredDocument]], expected: Iterable[Document], *, task: str
) -> list[ScoredDocument]:
    """Every expected document once, by role and index; every rank may hold every document (tensor parallelism)."""
    found: dict[Document, ScoredDocument] = {}
    for shard in shards:
        for scored in shard:
            found.setdefault(scored.document, scored)
    missing = [document for document in expected if document not in found]
    if missing:
        raise DistributedError(
            f"{task}: {len(missing)} documents were scored by none of the {len(shards)} processes, the first is "
            f"{missing[0]}; stock `--model hf` loses documents on several nodes (local rank with global world size), "
            f"use `--model hf-shared-prefix` there."
        )
    return sorted(found.values(), key=lambda scored: (ROLES.index(scored.document.role), scored.document.index))


def score_table(scored: Sequence[ScoredDocument], metadata: dict[str, Any]) -> ScoreTable:
    """The documents as a table; the gold labels of estimate rows go into a column of their own."""
    roles = np.array([one.document.role for one in scored])
    gold = np.array([one.document.gold for one in scored], dtype=np.int64)
    return ScoreTable(
        role=roles,
        index=np.array([one.document.index for one in scored], dtype=np.int64),
        gold=np.where(roles == "eval", gold, NO_GOLD),
        estimate_gold=np.where(roles == "estimate", gold, NO_GOLD),
        scores=np.array([one.scores for one in scored], dtype=np.float64),
        metadata=metadata,
        representations=_representations([one.hidden_states for one in scored]),
    )


def _representations(states: Sequence[dict[str, np.ndarray] | None]) -> dict[str, np.ndarray]:
    """By layer; empty unless every document has them."""
    known = [one for one in states if one is not None]
    if not known or len(known) < len(states):
        return {}
    return {layer: np.stack([one[layer] for one in known]) for layer in known[0]}
