"""`--metadata proca.calibrate=true`: calibrated rows for lm-eval's own tasks, as they are.

Prompts, demonstrations, documents and requests stay lm-eval's. The unlabeled rows are the evaluation rows themselves,
cross-fitted: a document is calibrated by a fit that has not seen it (see lm_eval_proca/fitting.py). Only
`proca.estimate_split` asks for more: unlabeled rows of another split, scored behind lm-eval's own prompts.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.samplers import FirstNSampler
from lm_eval.api.task import ConfigurableTask

import lm_eval_proca
from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator
from lm_eval_proca.harness.config import MEANINGLESS_METRICS
from lm_eval_proca.harness.estimate import fingerprint
from lm_eval_proca.harness.filters import CalibratedResponse, give_out
from lm_eval_proca.harness.fixed_labels import (
    DIFFERENT_CHOICES,
    PYTHON,
    SEVERAL_INPUTS,
    SEVERAL_TARGETS,
    judge,
    obstacle_in,
)
from lm_eval_proca.harness.gather import gather, is_first_process
from lm_eval_proca.harness.outcome import check_scores_dir, fit_scores
from lm_eval_proca.harness.plan import Plan
from lm_eval_proca.harness.settings import CALIBRATE, PREFIX, settings_of_run, without_settings
from lm_eval_proca.harness.shards import Document
from lm_eval_proca.harness.task import CalibratedTask
from lm_eval_proca.identity import identity_of_task
from lm_eval_proca.score_table import NO_GOLD

if TYPE_CHECKING:
    from lm_eval.api.group import Group
    from lm_eval.tasks.manager import TaskDict

    from lm_eval_proca.calibration.base import Calibrator

logger = logging.getLogger("lm_eval.proca")

READ = (CALIBRATE, "scores_dir")
"""The settings that lm-eval's own tasks read; the others are about prompts and rows, which stay lm-eval's."""


def calibrate_loaded(loaded: TaskDict, metadata: Mapping[str, Any] | None) -> None:
    """Let the loaded tasks that can be calibrated be so, if the metadata of the run ask for it."""
    given = settings_of_run(metadata or {})
    if not given.get(CALIBRATE):
        return
    groups: defaultdict[str, list[Group]] = defaultdict(list)
    for group in loaded.get("groups", {}).values():
        for task in group.get_all_tasks():
            groups[task.task_name].append(group)
    report = Report()
    for name, task in loaded["tasks"].items():
        if isinstance(task, (CalibratedTask, CrossFitted)):
            continue
        if (obstacle := _obstacle(task)) is not None:
            report.unchanged[obstacle].append(name)
            continue
        report.awaited.add(name)
        task.groups, task.report, task.scores_dir = groups[name], report, given.get("scores_dir")
        cls = type(task)
        task.__class__ = type(f"CrossFitted{cls.__name__}", (CrossFitted, cls), {})
    if report.awaited and (unread := sorted(set(given) - set(READ))):
        names = ", ".join(f"{PREFIX}.{key}" for key in unread)
        logger.warning("proca.calibrate: lm-eval's own tasks do not read %s; they run as they are", names)
    report.say_if_complete()


def _obstacle(task: Any) -> str | None:
    if not isinstance(task, ConfigurableTask):
        return PYTHON
    verdict = judge(vars(task.config))
    if verdict.obstacle is not None and verdict.final:
        return verdict.obstacle
    if task.multiple_input:
        return SEVERAL_INPUTS
    return SEVERAL_TARGETS if task.multiple_target else None


@dataclass
class Report:
    """What a run says once about its tasks, as soon as the requests of the last of them are known."""

    awaited: set[str] = field(default_factory=set)
    calibrated: list[str] = field(default_factory=list)
    unchanged: defaultdict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    """Tasks without calibrated rows by what stands in the way."""
    many_prompts: list[str] = field(default_factory=list)
    """Tasks that draw new demonstrations for every document."""

    def add(self, name: str, obstacle: str | None, *, many_prompts: bool) -> None:
        if name not in self.awaited:  # evaluated again
            return
        self.awaited.remove(name)
        if obstacle is not None:
            self.unchanged[obstacle].append(name)
        else:
            self.calibrated.append(name)
            if many_prompts:
                self.many_prompts.append(name)
        self.say_if_complete()

    def say_if_complete(self) -> None:
        if self.awaited or not is_first_process():
            return
        if self.calibrated:
            logger.info(
                "proca.calibrate: calibrated rows for %s, fitted on their own evaluation rows with no further request",
                _counted(self.calibrated),
            )
        if self.unchanged:
            reasons = "; ".join(f"{reason}: {_counted(names)}" for reason, names in self.unchanged.items())
            count = sum(map(len, self.unchanged.values()))
            logger.info("proca.calibrate: %d of the tasks cannot be calibrated and run unchanged (%s)", count, reasons)
        if self.many_prompts:
            logger.info(
                "proca.calibrate: new demonstrations for every document in %s; what is calibrated there is the average "
                "bias of many prompts",
                _counted(self.many_prompts),
            )


def _counted(names: Sequence[str], shown: int = 3) -> str:
    more = ", ..." if len(names) > shown else ""
    return f"{len(names)} task{'s' * (len(names) > 1)} ({', '.join(names[:shown])}{more})"


class CrossFitted(ConfigurableTask):
    """Put before the class of a loaded task: calibrated rows beside the raw one, which stays as it is."""

    groups: Sequence[Group]
    report: Report
    scores_dir: str | None
    seed: int | None = None
    plan: Plan | None = None
    """None where the requests show that the task cannot be calibrated."""

    def set_fewshot_seed(self, seed: int | None = None) -> None:
        super().set_fewshot_seed(seed)
        self.seed = seed

    def build_all_requests(self, *, limit: int | None = None, samples: list[int] | None = None, **options: Any) -> None:
        super().build_all_requests(limit=limit, samples=samples, **options)
        found = _requested(self, self._instances)
        self.plan, obstacle = None, found if isinstance(found, str) else None
        if isinstance(found, Requested):
            check_scores_dir(self.config.task, self.scores_dir)
            self.config.metadata = without_settings(self.config.metadata or {})
            self.plan = _plan(self, found, limit=limit, samples=samples)
        drawn = bool(self.config.num_fewshot) and not isinstance(getattr(self, "sampler", None), FirstNSampler)
        self.report.add(self.config.task, obstacle, many_prompts=drawn)

    def apply_filters(self) -> None:
        super().apply_filters()
        if self.plan is None:
            return
        calibrators = _calibrators()
        filters = {name: [{"function": name}] for name in calibrators}
        fits, _ = fit_scores(self, self.plan, calibrators, filters=filters, scores_dir=self.scores_dir)
        for name, fit in fits.items():
            give_out(name, fit, self._instances, self.plan.documents)
        self._aggregate_too(fits)

    def _aggregate_too(self, names: Iterable[str]) -> None:
        """A group that names the filters of its average averages ours like those of the raw row."""
        raw = {ensemble.name for ensemble in self._filters}
        for group in self.groups:
            for entry in group.aggregate_metric_list or ():
                if entry.filter_list and raw & set(entry.filter_list) and entry.metric not in MEANINGLESS_METRICS:
                    entry.filter_list += [name for name in names if name not in entry.filter_list]

    def process_results(self, doc: Any, results: Any) -> dict[str, Any]:
        metrics = super().process_results(doc, results)
        if not metrics or not isinstance(results[0], CalibratedResponse):
            return metrics
        kept = {name: value for name, value in metrics.items() if name not in MEANINGLESS_METRICS}
        return kept or {"acc": self._accuracy(doc, results)}

    def _accuracy(self, doc: Any, results: Sequence[CalibratedResponse]) -> float:
        """For tasks that report only what means nothing here, such as acc_norm."""
        assert self.plan is not None
        labels = self.plan.record["labels"]
        predicted = int(np.argmax([response.score for response in results[: len(labels)]]))
        return float(predicted == _gold(self.doc_to_target(doc), labels))

    def aggregation(self) -> dict[str, Any]:
        return {"acc": mean, **super().aggregation()}

    def higher_is_better(self) -> dict[str, bool]:
        return {"acc": True, **super().higher_is_better()}


def _calibrators() -> dict[str, Calibrator]:
    """Every calibrator that can be fitted on evaluation rows; content-free inputs would be further requests."""
    classes = {name: get_calibrator(name) for name in CALIBRATORS}
    return {name: cls() for name, cls in classes.items() if cls.fits_on == "estimate"}


@dataclass(frozen=True)
class Requested:
    """The evaluation documents of all processes, as their requests show them."""

    labels: tuple[str, ...]
    gold: dict[int, int]
    """By lm-eval's document id."""
    prompt: dict[int, str]
    """A hash of each document's prompt."""


def _requested(task: ConfigurableTask, instances: Iterable[Instance]) -> Requested | str:
    """What will be scored, or why that cannot be calibrated; the same on every process."""
    of_document: defaultdict[int, list[Instance]] = defaultdict(list)
    for instance in instances:
        of_document[instance.doc_id].append(instance)
    choices: set[tuple[str, ...]] = set()
    documents: dict[int, tuple[int, str]] = {}
    for doc_id, requests in of_document.items():
        requests.sort(key=lambda instance: instance.idx)
        if "acc_mutual_info" in task._metric_fn_list:  # every choice once more, without a prompt
            requests = requests[: len(requests) // 2]
        labels = tuple(instance.args[1].strip() for instance in requests)
        choices.add(labels)
        documents[doc_id] = _gold(task.doc_to_target(requests[0].doc), labels), fingerprint([requests[0].args[0]])
    shards = gather((choices if len(choices) == 1 else None, documents))
    all_choices = [one for one, _ in shards]
    if any(one is None or one != all_choices[0] for one in all_choices):
        return DIFFERENT_CHOICES
    (labels,) = choices
    if (obstacle := obstacle_in(labels)) is not None:
        return obstacle
    known = {doc_id: one for _, shard in shards for doc_id, one in shard.items()}
    if len(known) <= max(known):  # stock `--model hf` on several nodes: local rank with global world size
        return "documents are missing, no process scores them"
    return Requested(
        labels,
        {doc_id: known[doc_id][0] for doc_id in sorted(known)},
        {doc_id: known[doc_id][1] for doc_id in sorted(known)},
    )


def _gold(target: Any, labels: Sequence[str]) -> int:
    """Index of the gold label, by lm-eval's rule; a document that has none is wrong in every row."""
    if isinstance(target, str):
        return labels.index(target.strip()) if target.strip() in labels else NO_GOLD
    is_index = isinstance(target, (int, np.integer)) and 0 <= target < len(labels)
    return int(target) if is_index else NO_GOLD


def _plan(task: CrossFitted, found: Requested, *, limit: int | None, samples: Sequence[int] | None) -> Plan:
    index = sorted(set(samples)) if samples else None  # with --samples, lm-eval numbers the chosen documents anew
    documents = {
        doc_id: Document("eval", index[doc_id] if index else doc_id, gold) for doc_id, gold in found.gold.items()
    }
    record = {
        "version": lm_eval_proca.__version__,
        "labels": list(found.labels),
        "num_fewshot": task.config.num_fewshot or 0,
        "seed": task.seed,
        "eval_rows": len(documents),
        "limit": limit,
        "estimate_size": 0,
        "estimate_source": "evaluation rows, cross-fitted",
        "prompt_hash": found.prompt[0],
        "estimate_hash": fingerprint([]),
        "eval_hash": fingerprint([found.prompt[doc_id], gold] for doc_id, gold in found.gold.items()),
    }
    return Plan(documents, {}, record, identity_of_task(task.config.metadata, {}, record), ())
