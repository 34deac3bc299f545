"""From scores to filters, in four steps.

The scores of all processes become one table per prompt. The tables are written, if asked for. Calibrators are fitted on
each. Their log-probabilities become the responses of lm-eval's filters (`proca`, `conca`, `bc`, ...).
"""

from __future__ import annotations

import importlib.metadata
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from lm_eval.api.filter import Filter
from lm_eval.api.group import Group
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

import lm_eval_proca
from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.distributed import compute_once, gather, is_first_process
from lm_eval_proca.errors import DistributedError, ProcaError, TaskError
from lm_eval_proca.harness.documents import Doc, Document
from lm_eval_proca.harness.settings import MEANINGLESS_METRICS
from lm_eval_proca.representations import Answered, Asked, Layer, Representation, Wanted
from lm_eval_proca.scores.fitting import RAW, Fit, fit_all, in_words, recorded
from lm_eval_proca.scores.identity import score_table_name
from lm_eval_proca.scores.record import RunRecord
from lm_eval_proca.scores.score_table import NO_GOLD, ROLES, ScoreTable
from lm_eval_proca.scores.together import Prompts, methods_of, report

logger = logging.getLogger("lm_eval.proca")  # below lm-eval's own logger, the only one that its command shows

PACKAGES = ("lm-eval", "transformers", "torch", "scikit-learn")
AVERAGED_OVER_PROMPTS = ("acc_prompts", "acc_together")
"""What a group averages beside the accuracy of one prompt."""
GIVE_REPRESENTATIONS = ("hf-shared-prefix", "vllm-shared-prefix", "local-completions-shared-prefix")
SAME_SCORES = 0.01
"""Scores of the same model on two batch sizes lie closer; those of two models do not."""


@dataclass(frozen=True)
class ScoringPlan:
    """What a run scores; the same on every process."""

    documents: Mapping[int, Document]
    """Every document of every process, by the id that it has in lm-eval under prompt 0."""
    further: Mapping[int, Doc]
    """Those that only calibrators are fitted on; their ids come after those of all evaluation documents."""
    records: Sequence[RunRecord]
    """One for each prompt."""
    drawn: Mapping[str, str] = field(default_factory=dict)
    """Hashes of inputs that were drawn at random and are no rows of the data, by their role."""

    @property
    def record(self) -> RunRecord:
        return self.records[0]

    @cached_property
    def stride(self) -> int:
        """Under the next prompt a document has its id plus this."""
        return max(self.documents) + 1

    def is_lm_evals(self, request: Instance) -> bool:
        """Whether a request is one that lm-eval itself would make."""
        return request.doc_id < self.stride and request.doc_id not in self.further

    @cached_property
    def lacks_gold(self) -> bool:
        """Whether an evaluation document has no gold label."""
        return any(one.role == "eval" and one.gold == NO_GOLD for one in self.documents.values())


# ------------------------------------------------------------------ before and after the model


def ask_for_representations(
    requests: Iterable[Instance], calibrators: Iterable[Calibrator], representation: str, layers: Sequence[Layer]
) -> None:
    """Ask the model for what `proca.representation` names, if a calibrator uses it."""
    if representation == "none" or not any(calibrator.uses_representations for calibrator in calibrators):
        return
    wanted = Wanted(() if representation == "probes" else tuple(layers), representation != "layers")
    for of_document in by_document(requests).values():
        labels = tuple(dict.fromkeys(request.args[1] for request in of_document))
        first = of_document[0]  # all labels of a document stand behind the same prompt
        first.arguments = Asked.of(first.args, replace(wanted, labels=labels))


@dataclass(frozen=True)
class ScoredDocument:
    """A document, its label scores, and what else the model said of its first label."""

    document: Document
    scores: list[float]
    truncated: bool | None = None
    """None where the model does not tell."""
    representation: Representation = Answered.representation
    values: np.ndarray | None = None
    """Of shape (views, width)."""
    missing: str = ""
    """Why there is no representation."""


def by_document(instances: Iterable[Instance]) -> dict[int, list[Instance]]:
    """The requests of each document, in the order of its labels."""
    of_document: defaultdict[int, list[Instance]] = defaultdict(list)
    for instance in sorted(instances, key=lambda instance: instance.idx):
        of_document[instance.doc_id].append(instance)
    return of_document


def scored_documents(instances: Iterable[Instance], plan: ScoringPlan, prompt: int = 0) -> list[ScoredDocument]:
    """What this process has scored under a prompt."""
    wanted = (one for one in instances if one.doc_id // plan.stride == prompt)
    scored = []
    for doc_id, requests in by_document(wanted).items():
        # The evaluator pads ranks with copies of requests, so an instance may hold its response twice.
        answers = [_answered(request.resps[0]) for request in requests]
        cut = [answer.truncated for answer in answers if answer.truncated is not None]
        first, asked = answers[0], isinstance(requests[0].args, Asked)
        scored.append(
            ScoredDocument(
                document=plan.documents[doc_id % plan.stride],
                scores=[float(score) for score, _ in answers],
                truncated=any(cut) if cut else None,
                representation=first.representation,
                values=first.values,
                missing=first.missing or ("the file of --use_cache has none" if asked else "none was asked for"),
            )
        )
    return scored


def _answered(response: tuple[float, bool]) -> Answered:
    """What stock models give, and what files of `--use_cache` hold of them, has no representation."""
    if isinstance(response, Answered):
        return response
    return Answered.of(response, missing=f"of lm-eval's models only {', '.join(GIVE_REPRESENTATIONS)} give one")


def let_go(instances: Iterable[Instance]) -> None:
    """Leave lm-eval the plain pairs that it knows: representations are in the tables, and take room."""
    for instance in instances:
        instance.resps = [tuple(response) for response in instance.resps]


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
            f"{task}: {len(missing)} documents were not scored by any of the {len(shards)} processes, the first is "
            f"{missing[0]}; stock `--model hf` loses documents on several nodes (local rank with global world size), "
            f"use `--model hf-shared-prefix` there."
        )
    return sorted(found.values(), key=lambda scored: (ROLES.index(scored.document.role), scored.document.index))


def score_table(scored: Sequence[ScoredDocument], record: RunRecord) -> ScoreTable:
    """The documents as a table; the gold labels of estimate rows go into a column of their own."""
    roles = np.array([one.document.role for one in scored])
    gold = np.array([one.document.gold for one in scored], dtype=np.int64)
    values = [one.values for one in scored if one.values is not None] if not missing_representations(scored) else []
    cut = [one.truncated for one in scored if one.truncated is not None]
    others = {name: importlib.metadata.version(name) for name in PACKAGES}
    return ScoreTable(
        role=roles,
        index=np.array([one.document.index for one in scored], dtype=np.int64),
        gold=np.where(roles == "eval", gold, NO_GOLD),
        estimate_gold=np.where(roles == "estimate", gold, NO_GOLD),
        scores=np.array([one.scores for one in scored], dtype=np.float64),
        record=replace(
            record,
            truncated_prompts=sum(cut) if cut else None,
            representation=scored[0].representation.as_json() if values else {},
            versions={"lm-eval-proca": lm_eval_proca.__version__, **others},
        ),
        representations=np.stack(values) if values else None,
    )


# ------------------------------------------------------------------ tables and fits


def check_scores_dir(task: str, folder: str | None) -> None:
    """Fail early if `scores_dir` cannot be created; only the process that will write creates it."""

    def make() -> None:
        try:
            Path(str(folder)).expanduser().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise TaskError(
                f"{task}: proca.scores_dir={folder} cannot be a folder for score tables ({error.strerror}); name "
                f"another one."
            ) from error

    if folder is not None:
        compute_once(make)


class Calibration(NamedTuple):
    """The fits of prompt 0 by filter, the record of the run, and, if there are several prompts, all of them."""

    fits: dict[str, Fit]
    record: RunRecord
    prompts: dict[str, Prompts]


def calibrate(
    plan: ScoringPlan,
    requests: Iterable[Instance],
    calibrators: Mapping[str, Calibrator],
    *,
    scores_dir: str | None,
) -> Calibration:
    """Fit the calibrators under every prompt.

    A failed fit and scores that are not finite remove only calibrated rows of this task.
    """
    # Beyond the labels come the requests of acc_mutual_info, which score every label without a prompt.
    wanted = [one for one in requests if one.idx < len(plan.record.labels)]
    tables: list[ScoreTable] = []
    fitted: list[dict[str, Fit]] = []
    failures: dict[str, str] = {}
    for k, record in enumerate(plan.records):
        found = merge(gather(scored_documents(wanted, plan, k)), plan.documents.values(), task=record.task)
        table = score_table(found, record)
        if scores_dir is not None:
            _keep(table, Path(scores_dir).expanduser())
        # Made once and handed to all processes: a tie within rounding is decided the same way everywhere.
        fits, failed = compute_once(partial(fit_all, table, calibrators, no_states=missing_representations(found)))
        failures |= {name: f"prompt {k}: {why}" if k else why for name, why in failed.items() if name not in failures}
        tables.append(table)
        fitted.append(fits)
    fits = {name: one for name, one in fitted[0].items() if name not in failures}
    record = _naming_inputs(recorded(tables[0], fits, failures), calibrators, plan.drawn)
    prompts = compute_once(partial(methods_of, tables, fitted)) if len(tables) > 1 else {}
    record = replace(record, together=report(prompts, tables[0].gold_of("eval")))
    if is_first_process():
        _warn(record, tables[0])
    return Calibration(fits, record, prompts)


def _naming_inputs(record: RunRecord, calibrators: Mapping[str, Calibrator], drawn: Mapping[str, str]) -> RunRecord:
    """The report of a fit on inputs that were drawn says which they were: no other field of the record does."""
    named = {name: {"inputs_hash": drawn[role]} for name in record.fits if (role := calibrators[name].fits_on) in drawn}
    return replace(record, fits={name: {**told, **named.get(name, {})} for name, told in record.fits.items()})


def missing_representations(scored: Sequence[ScoredDocument]) -> str:
    """Why representations cannot be used, in words; empty if every document has the same."""
    reasons = [one.missing for one in scored if one.values is None]
    if reasons:
        return f"{len(reasons)} of {len(scored)} documents have no representation: {reasons[0]}."
    kinds = list(dict.fromkeys(one.representation for one in scored))
    if len(kinds) > 1:
        return (
            f"Some documents have {kinds[0]}, others {kinds[1]}: the file of --use_cache is of another run; delete "
            f"it, or run without."
        )
    return ""


def _warn(record: RunRecord, table: ScoreTable) -> None:
    task = record.task
    for sentence in in_words(record.not_calibrated):
        logger.warning("%s: %s", task, sentence)
    for name, said in [*record.fits.items(), *record.together.items()]:
        for warning in said.get("warnings", ()):
            logger.warning("%s, %s: %s", task, name, warning)
    gold = table.gold_of("eval")
    if missing := int((gold == NO_GOLD).sum()):
        logger.warning(
            "%s: %d of %d evaluated documents have no gold label; they are calibrated, and no row counts them",
            task, missing, len(gold),
        )  # fmt: skip


def _keep(table: ScoreTable, folder: Path) -> None:
    """Write the score table. A full disk is logged; it must not end a run whose scores are there."""
    task = table.record.task
    try:
        path = compute_once(lambda: table.save(_free_path(folder / score_table_name(table), table)))
    except (OSError, ProcaError) as error:  # the latter where another process has failed
        logger.error("%s: the score table cannot be written to %s (%s)", task, folder, error)
    else:
        if is_first_process():
            size = path.stat().st_size / 2**20
            logger.info("%s: score table written to %s (%.1f MiB)", task, path, size)


def _free_path(path: Path, table: ScoreTable) -> Path:
    """A model that is a Python object has no name. Its tables are told apart by their scores."""
    if table.record.model_hash is not None:
        return path
    candidates = (path if number == 1 else path.with_stem(f"{path.stem}-{number}") for number in count(1))
    return next(one for one in candidates if not one.exists() or _same_scores(ScoreTable.load(one), table))


def _same_scores(one: ScoreTable, other: ScoreTable) -> bool:
    return one.scores.shape == other.scores.shape and np.allclose(
        one.scores, other.scores, rtol=0, atol=SAME_SCORES, equal_nan=True
    )


# ------------------------------------------------------------------ filters


class CalibrationFilter(Filter):
    """A calibrator in a task's `filter_list`; its keyword arguments are the calibrator's parameters.

    A filter of lm-eval sees the responses of its own process and nothing else. So the task fits the calibrators, on
    the scores of all processes, and gives out what they make of them: see :func:`give_out`.
    """

    def __init__(self, **params: Any) -> None:
        """Parameters are checked when the task is read."""

    def apply(self, resps: Any, docs: Any) -> NoReturn:
        raise TaskError(
            f"The filters {', '.join(CALIBRATORS)} calibrate only tasks with `class: !function "
            f"lm_eval_proca.CalibratedTask` in their YAML; add that line and a `calibration:` block."
        )


class Response(tuple[float, bool]):
    """The response for one label: lm-eval's pair of score and whether it is greedy, and what `process_results` asks."""

    calibrated: bool = False
    by_prompt: Sequence[int] = ()
    """The label that each prompt gives the document, if there are several prompts."""
    together: int = NO_GOLD
    """The label that all of them together give."""


def give_out(calibration: Calibration, instances: Iterable[Instance], documents: Mapping[int, Document]) -> None:
    """Calibrated scores to the evaluation requests of this process, as the responses of their filters.

    The responses of the other filters, which lm-eval made, stay; they are told what the prompts predict.
    """
    fits, prompts = calibration.fits, calibration.prompts
    evaluated = sorted(one.index for one in documents.values() if one.role == "eval")
    row = {index: number for number, index in enumerate(evaluated)}
    for instance in instances:
        place = row[documents[instance.doc_id].index]
        raw, is_greedy = instance.resps[0]
        for name, fit in fits.items():
            # Requests beyond the labels are those of acc_mutual_info; nobody reads them in a calibrated row.
            score = fit.log_proba[place, instance.idx] if instance.idx < fit.log_proba.shape[1] else raw
            instance.filtered_resps[name] = response = Response((float(score), is_greedy))
            response.calibrated = True
        for name in instance.filtered_resps if prompts and instance.idx == 0 else ():
            instance.filtered_resps[name] = response = _copy(instance.filtered_resps[name])
            found = prompts[name if name in fits else RAW]
            response.by_prompt = found.predicted[:, place].tolist()
            response.together = int(found.predicted_together[place])


def _copy(response: tuple[float, bool]) -> Response:
    """A response of lm-eval's as one of ours; the raw one is the very object that the model has returned."""
    copy = Response(response)
    copy.calibrated = getattr(response, "calibrated", False)
    return copy


# ------------------------------------------------------------------ groups


class GroupRows:
    """A group gets a calibrated row only if that row averages the same tasks as the raw row.

    lm-eval averages each filter over the tasks that have it. An average over other tasks than those of the raw row is
    not comparable: the row is left out, and a log line names the tasks in which the two differ. A group whose tasks all
    have several prompts also averages what these have beside `acc`.
    """

    def __init__(self, groups: Iterable[Group], ours: Collection[str]) -> None:
        self._groups = [group for group in groups if group.aggregate_metric_list]
        self._metrics = {group.name: group.aggregate_metric_list or [] for group in self._groups}
        self._listed = {
            (name, k): entry.filter_list for name, entries in self._metrics.items() for k, entry in enumerate(entries)
        }
        self._awaited = set(ours)
        self._rows: dict[str, set[str]] = {}

    def arrived(self, task: str, rows: Iterable[str]) -> None:
        """Once the calibrated rows of the last task are known, say what each group averages."""
        self._rows[task] = set(rows)
        if self._awaited <= self._rows.keys():
            for group in self._groups:
                self._choose(group)
                group.aggregate_metric_list = [*self._metrics[group.name], *self._over_prompts(group)]

    def _over_prompts(self, group: Group) -> Iterator[Any]:
        for entry in self._metrics[group.name]:
            averaged = [task for task in group.get_all_tasks() if entry.metric in _metrics(task)]
            single = [task.task_name for task in averaged if len(getattr(task, "prompts", ())) < 2]
            if entry.metric != "acc" or len(single) == len(averaged):
                continue
            if not single:
                yield from (replace(entry, metric=metric) for metric in AVERAGED_OVER_PROMPTS)
            elif is_first_process():
                told = ", ".join(single[:3])
                logger.warning("%s: no mean over prompts: some tasks have one prompt only (%s)", group.name, told)

    def _choose(self, group: Group) -> None:
        for k, entry in enumerate(self._metrics[group.name]):
            members = group.get_all_tasks()
            averaged = [task for task in members if entry.metric in _metrics(task)]
            ours = {name for task in averaged for name in getattr(task, "calibrators", ())}
            listed = self._listed[group.name, k]
            raw = sorted({one.name for task in averaged for one in getattr(task, "_filters", None) or ()} - ours)
            shown = raw if listed is None else [name for name in listed if name in raw]
            if not ours or not shown or entry.metric in MEANINGLESS_METRICS:
                continue
            wanted = sorted(ours & set(listed or ours) or ours)
            # Every calibrated row has an accuracy, which lm-eval would average also where the raw row has none.
            could = members if entry.metric == "acc" else averaged
            apart = {name: [one for one in could if self._has(one, name) != (one in averaged)] for name in wanted}
            entry.filter_list = [*shown, *(name for name in wanted if not apart[name])]
            for name, tasks in apart.items():
                told = [one.task_name for one in tasks if name in (getattr(one, "calibrators", None) or (name,))]
                if told and any(self._has(one, name) for one in averaged) and is_first_process():
                    logger.warning(
                        "%s: no row for %s: it and the raw row would average different tasks (%s)",
                        group.name, name, ", ".join(told[:3]),
                    )  # fmt: skip

    def _has(self, task: Any, row: str) -> bool:
        return row in self._rows.get(task.task_name, ())


def _metrics(task: Any) -> Collection[str]:
    return task._metric_fn_list if isinstance(task, ConfigurableTask) else task.aggregation()
