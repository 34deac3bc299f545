"""The plan of a run: every document that will be scored, checked before any of them is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import lm_eval_proca
from lm_eval_proca.errors import TaskError
from lm_eval_proca.harness.data import fixed_part
from lm_eval_proca.harness.estimate import (
    UnlabeledDoc,
    content_free_docs,
    draw_rows,
    fingerprint,
    read_estimate_file,
    without_label,
)
from lm_eval_proca.harness.requests import prompt_of
from lm_eval_proca.harness.shards import Document
from lm_eval_proca.scores.identity import identity_of_task
from lm_eval_proca.scores.score_table import NO_GOLD

if TYPE_CHECKING:
    from lm_eval_proca.harness.task import CalibratedTask

Labeled = tuple[UnlabeledDoc, int]
"""A document without its label, and the label, which only the score table is told."""


@dataclass(frozen=True)
class Plan:
    """What a run scores; the same on every process."""

    documents: dict[int, Document]
    """Every document of every process, by the id that it has in lm-eval."""
    calibration_docs: Mapping[int, dict[str, Any]]
    """Those that calibrators are fitted on; their ids come after those of all evaluation documents."""
    record: dict[str, Any]
    """What the results file and the score table say about this run."""
    origin: dict[str, Any]
    """Model and identity, from the task's files as they are now: they may be edited while the model scores."""

    @property
    def cost(self) -> str:
        counts = Counter(document.role for document in self.documents.values())
        documents = " + ".join(f"{count} {role.replace('_', '-')}" for role, count in counts.items())
        labels, shots, seed = len(self.record["labels"]), self.record["num_fewshot"], self.record["seed"]
        return (
            f"{documents} documents x {labels} labels = {counts.total() * labels} requests behind one prompt of "
            f"{shots} shots (seed {seed})"
        )


def make_plan(
    task: CalibratedTask, *, limit: int | None, samples: Sequence[int] | None, prompt_options: Mapping[str, Any]
) -> Plan:
    total = len(task.eval_docs)
    evaluated = sorted(set(samples)) if samples else fixed_part(total, int(limit)) if limit else list(range(total))
    # With --samples, lm-eval numbers the chosen documents anew.
    documents = {
        (number if samples else i): Document("eval", i, task.gold(task.eval_docs[i]))
        for number, i in enumerate(evaluated)
    }
    blank = content_free_docs(task.eval_docs[0], task.settings.text_fields, task.label_column)
    roles = {calibrator.fits_on for calibrator in task.calibrators.values()}
    generated_by: dict[str, Any] = {}
    from_file: list[UnlabeledDoc] | None = None
    if file := task.settings.estimate_file:
        generated_by, from_file = read_estimate_file(file, task=task.task_name, text_fields=task.settings.text_fields)
    calibration: dict[str, list[Labeled]] = {}
    if "estimate" in roles:
        calibration["estimate"] = _estimate_docs(task) if from_file is None else _usable(task, from_file)
    if "content_free" in roles:
        calibration["content_free"] = [(doc, NO_GOLD) for doc in blank]
    if "content_free" in roles or from_file is not None:
        _check_shown_columns(task, blank[0], prompt_options)

    calibration_docs: dict[int, UnlabeledDoc] = {}
    for role, docs in calibration.items():
        for index, (doc, gold) in enumerate(docs):
            doc_id = total + len(calibration_docs)
            calibration_docs[doc_id] = doc
            documents[doc_id] = Document(role, index, gold)
    _check_choices(task, documents, calibration_docs)
    estimate = [doc for doc, _ in calibration.get("estimate", ())]
    shots = task.config.num_fewshot or 0
    record = {
        "version": lm_eval_proca.__version__,
        "labels": task.labels,
        "num_fewshot": shots,
        "seed": task.sampler.seed,
        "demonstrations": task.sampler.indices(shots),
        "demonstration_counts": task.settings.demonstration_counts,
        "order_seed": task.settings.order_seed,
        "eval_rows": len(evaluated),
        "limit": limit,
        "estimate_size": len(estimate),
        "estimate_seed": _estimate_seed(task),
        "estimate_source": f"split:{task.settings.estimate_split}",
        "prompt_hash": fingerprint([prompt_of(task, blank[1], prompt_options, "The empty document")]),
        "estimate_hash": fingerprint(task.text_of(doc) for doc in estimate),
        "eval_hash": fingerprint(
            [task.text_of(doc), task.gold(doc)] for doc in map(task.eval_docs.__getitem__, evaluated)
        ),
    }
    if from_file is not None:
        record |= {"estimate_source": f"file:{file}", "generated_by": generated_by}
    origin = identity_of_task(task.config.metadata, asdict(task.settings), record)
    return Plan(documents, calibration_docs, record, origin)


def _estimate_seed(task: CalibratedTask) -> int:
    seed = task.settings.estimate_seed
    return task.sampler.seed if seed is None else seed


def _forbidden(task: CalibratedTask) -> set[tuple[str, ...]]:
    """Texts that must not be in the estimate set: demonstrated or evaluated ones."""
    return {task.text_of(row) for row in task.sampler.sample(task.config.num_fewshot or 0)} | task.evaluated_texts


def _estimate_docs(task: CalibratedTask) -> list[Labeled]:
    forbidden, size = _forbidden(task), task.settings.estimate_size
    rows = draw_rows(
        task.estimate_pool, size, _estimate_seed(task), allowed=lambda row: task.text_of(row) not in forbidden
    )
    if len(rows) < size:
        raise TaskError(
            f"{task.task_name}: estimate_size is {size}, but the estimate split has only {len(rows)} rows that are "
            f"neither evaluated nor demonstrations; set --metadata proca.estimate_size={len(rows)} or less."
        )
    return [(without_label(row, task.label_column), gold_if_any(task.gold, row)) for row in rows]


def gold_if_any(gold_of: Callable[[Any], int], doc: Mapping[str, Any]) -> int:
    try:
        return gold_of(doc)
    except Exception:  # an unlabeled row may fail in any template or function of the YAML
        return NO_GOLD


def _usable(task: CalibratedTask, docs: Sequence[UnlabeledDoc]) -> list[Labeled]:
    """Rows of a file that are neither demonstrated nor evaluated; other columns are those of the first document."""
    forbidden = _forbidden(task)
    usable = [doc for doc in docs if task.text_of(doc) not in forbidden][: task.settings.estimate_size]
    if len(usable) < len(task.labels):
        raise TaskError(
            f"{task.task_name}: {task.settings.estimate_file} has {len(usable)} usable documents, too few for "
            f"{len(task.labels)} labels; generate more."
        )
    blank = without_label(task.eval_docs[0], task.label_column)
    return [(UnlabeledDoc({**blank, **doc}), NO_GOLD) for doc in usable]


def _check_choices(
    task: CalibratedTask, documents: Mapping[int, Document], calibration_docs: Mapping[int, UnlabeledDoc]
) -> None:
    """Every document has the labels of the first one, in their order."""
    if isinstance(task.config.doc_to_choice, (list, dict)):
        return
    for doc_id, document in documents.items():
        doc = calibration_docs[doc_id] if doc_id in calibration_docs else task.eval_docs[document.index]
        try:
            choices = list(task.doc_to_choice(doc))
        except Exception as error:  # of any function or template of the YAML
            raise TaskError(
                f"{task.task_name}: doc_to_choice fails on {document} ({type(error).__name__}: {error}); a calibrated "
                f"task has one fixed list of labels, give it as a list."
            ) from error
        if choices != task.labels:
            raise TaskError(
                f"{task.task_name}: {document} has the labels {choices}, the first evaluated one {task.labels}; only "
                f"tasks with one fixed list of labels in one order can be calibrated (process_docs may drop rows)."
            )


def _check_shown_columns(task: CalibratedTask, blank: UnlabeledDoc, prompt_options: Mapping[str, Any]) -> None:
    """A column that the prompt shows and a content-free input keeps would carry one document's content into it."""
    shown = prompt_of(task, blank, prompt_options, "The content-free document")
    for column in task.eval_docs.column_names:
        if column in task.settings.text_fields or column not in blank:
            continue
        other = next((value for value in task.eval_docs[column] if value != blank[column]), blank[column])
        changed = UnlabeledDoc({**blank, column: other})
        if prompt_of(task, changed, prompt_options, f"A document with another {column}") != shown:
            raise TaskError(
                f"{task.task_name}: the prompt shows the column {column}, which differs between documents, but "
                f"calibration.text_fields is {', '.join(task.settings.text_fields)}, so that every content-free or "
                f"generated input would show the first document's; add {column} to text_fields."
            )


def missing_demonstrations(task: CalibratedTask) -> str | None:
    """Which labels no demonstration shows, unless that was asked for."""
    shots = task.config.num_fewshot or 0
    shown = {gold_if_any(task.gold, row) for row in task.sampler.sample(shots)}
    missing = [label for k, label in enumerate(task.labels) if k not in shown]
    if not shown or NO_GOLD in shown or not missing or task.settings.demonstration_counts is not None:
        return None
    return (
        f"none of the {shots} demonstrations of seed {task.sampler.seed} shows {', '.join(missing)}; choose their "
        f"labels with proca.demonstration_counts, or another --seed"
    )
