"""What one run of one task was: the one schema of results files and score tables.

Four questions have four hashes, which are never mixed: who the model is, what was evaluated (documents and gold
labels), under which prompt, and which unlabeled rows the calibrators were fitted on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from lm_eval_proca.errors import ResultsError
from lm_eval_proca.metrics import LabelCounts

FORMAT = 5
"""Raise this when you add, remove or redefine a field. Records of another format are refused."""

EVALUATION_ROWS = "evaluation rows, cross-fitted"
"""The source of unlabeled rows of a run that has no others than those that it evaluates."""

Json = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run of one task, as it is written under `metadata.proca` of a results file and into a score table.

    A run with several prompts has a score table of each, and the results file says what prompt 0 was. None stands for
    what is not known. `label_counts`, `fits` and `not_calibrated` are by filter: what each method
    predicts, the report of its fit, and why it has no row. A score table is written before the fits, so these are empty
    there.
    """

    task: str = "unknown"
    task_version: str | None = None
    labels: tuple[str, ...] = ()
    labels_are_positions: bool = False
    """Whether the choices differ between documents, so that a label is a position among them."""
    model: str | None = None
    """Name of the weights, for readers; `model_hash` says whether two are the same."""
    num_fewshot: int | None = None
    seed: int | None = None
    limit: float | None = None
    eval_rows: int | None = None
    estimate_source: str = EVALUATION_ROWS
    estimate_size: int | None = None
    estimate_seed: int | None = None
    generated_by: Json = field(default_factory=dict)
    demonstrations: tuple[int, ...] | None = None
    demonstrated_by: Json = field(default_factory=dict)
    """Where demonstrations come from that a model has labeled itself: see :mod:`lm_eval_proca.sweep.self_labelled`."""
    demonstration_counts: tuple[int, ...] | None = None
    order_seed: int | None = None
    prompts: int = 1
    """How many prompts the run has."""
    prompt: int = 0
    """Which of them this is about."""
    vary: str | None = None
    """What differs between the prompts of a run: demonstrations, orders or templates."""
    template: int | None = None
    """Which of the task's templates, if it has several; 1 is its own."""
    truncated_prompts: int | None = None
    representation: Json = field(default_factory=dict)
    """What stands beside the scores: see :class:`lm_eval_proca.representations.Representation`."""
    model_hash: str | None = None
    documents_hash: str | None = None
    prompt_hash: str | None = None
    unlabeled_hash: str | None = None
    identity: Json = field(default_factory=dict)
    """See :mod:`lm_eval_proca.scores.identity`."""
    filters: Json = field(default_factory=dict)
    versions: Json = field(default_factory=dict)
    folds: int = 1
    """In how many parts the evaluation rows were cross-fitted, where there were no other rows to fit on."""
    fits: Json = field(default_factory=dict)
    not_calibrated: Json = field(default_factory=dict)
    label_counts: Mapping[str, LabelCounts] = field(default_factory=dict)
    together: Json = field(default_factory=dict)
    """By filter, of a run with several prompts: see :func:`lm_eval_proca.scores.together.report`."""

    @property
    def generated(self) -> bool:
        """Whether the model wrote its estimate set itself, as in the paper's ProCa-g."""
        return bool(self.generated_by)

    @property
    def origin(self) -> dict[str, Any]:
        """Model and prompt behind the scores, as far as they are known: what a calibrator depends on."""
        known = {key: getattr(self, key) for key in ("task", "model", "num_fewshot", "seed", "prompt_hash")}
        known["model_args"] = self.identity.get("model")
        return {key: value for key, value in known.items() if value not in (None, {}, "unknown")}

    def as_json(self) -> dict[str, Any]:
        """The record as a results file and a score table hold it."""
        counts = {name: one._asdict() for name, one in self.label_counts.items()}
        shown = {one.name: getattr(self, one.name) for one in fields(self)} | {"label_counts": counts}
        return {"format": FORMAT, **{key: list(one) if isinstance(one, tuple) else one for key, one in shown.items()}}

    @classmethod
    def of_json(cls, value: Any, where: str) -> RunRecord:
        """Read what :meth:`as_json` gave; anything else is refused with a sentence about `where` it stands."""
        if not isinstance(value, dict) or value.get("format") != FORMAT:
            found = value.get("format", 1) if isinstance(value, dict) else "unknown"
            raise ResultsError(
                f"{where} has a record of format {found}, this lm-eval-proca reads format {FORMAT}; run it again"
            )
        kinds = {one.name: str(one.type) for one in fields(cls)}
        if value.keys() - {"format"} != kinds.keys():
            raise ResultsError(f"the record of {where} was changed: it has other fields than lm-eval-proca writes")
        given: dict[str, Any] = {}
        for name, kind in kinds.items():
            if not _is_of_kind(value[name], kind):
                raise ResultsError(f"the record of {where} was changed: {name} is {value[name]!r}")
            given[name] = tuple(value[name]) if isinstance(value[name], list) else value[name]
        try:
            given["label_counts"] = {name: LabelCounts(**one) for name, one in value["label_counts"].items()}
            columns = [column for one in given["label_counts"].values() for column in one[:3]]
            fine = all(len(one) == len(given["labels"]) and _is_of_kind(one, "tuple[int, ...]") for one in columns)
        except TypeError:
            fine = False
        if not fine:
            raise ResultsError(f"the record of {where} was changed: label_counts are not counts of its labels")
        return cls(**given)


_KINDS: Json = {"str": str, "int": int, "float": (int, float), "bool": bool, "None": type(None), "tuple": list}


def _is_of_kind(value: Any, kind: str) -> bool:
    """Whether a value of JSON may stand in a field of this annotation."""
    kinds = [part.partition("[")[0] for part in kind.split(" | ")]
    if isinstance(value, bool):
        return "bool" in kinds
    if isinstance(value, list) and "tuple" in kinds:
        item = int if "tuple[int" in kind else str
        return all(type(one) is item for one in value)
    return any(isinstance(value, _KINDS.get(one, dict)) for one in kinds)


def fingerprint(parts: Iterable[Any]) -> str:
    """Short SHA-256 of a sequence of JSON-ready parts: equal rows, equal hash."""
    found = hashlib.sha256()
    for part in parts:
        found.update(json.dumps(part, sort_keys=True, ensure_ascii=False, default=str).encode())
        found.update(b"\n")
    return found.hexdigest()[:16]


def documents_hash(documents: Iterable[Sequence[Any]]) -> str:
    """A hash of what was evaluated: for each document, in order, what stands for it and the index of its gold label."""
    return fingerprint(documents)
