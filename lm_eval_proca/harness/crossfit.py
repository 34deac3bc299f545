"""`--metadata proca.calibrate=true`: calibrated rows for lm-eval's own tasks, as they are.

Prompts, demonstrations, documents and requests stay lm-eval's. The unlabeled rows are the evaluation rows themselves,
cross-fitted: a document is calibrated by a fit that has not seen it (see lm_eval_proca/scores/fitting.py). Only
`proca.estimate_split` asks for more: unlabeled rows of another split, scored behind lm-eval's own prompts.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from lm_eval.api.group import Group
from lm_eval.api.metrics import mean
from lm_eval.api.samplers import FirstNSampler
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks.manager import TaskDict

import lm_eval_proca
from lm_eval_proca.harness.announcement import Announcement
from lm_eval_proca.harness.config import MEANINGLESS_METRICS
from lm_eval_proca.harness.estimate import fingerprint
from lm_eval_proca.harness.filters import CalibratedResponse, give_out
from lm_eval_proca.harness.fixed_labels import (
    PYTHON,
    SEVERAL_INPUTS,
    SEVERAL_TARGETS,
    Obstacle,
    Requested,
    gold_of,
    judge,
    requested,
)
from lm_eval_proca.harness.outcome import check_scores_dir, fit_scores
from lm_eval_proca.harness.plan import Plan, gold_if_any
from lm_eval_proca.harness.settings import CALIBRATE, PREFIX, Settings, settings_of_run, without_settings
from lm_eval_proca.harness.shards import Document, ask_for_hidden_states
from lm_eval_proca.harness.split_rows import SplitRows, draw_split_rows
from lm_eval_proca.harness.task import CalibratedTask
from lm_eval_proca.scores.fitting import calibrators_of_documents
from lm_eval_proca.scores.identity import identity_of_task

logger = logging.getLogger("lm_eval.proca")

READ = {CALIBRATE, "scores_dir", "estimate_split", "layers"}
"""The settings that lm-eval's own tasks read; most others are about prompts and rows, which stay lm-eval's."""
READ_WITH_SPLIT = {"estimate_size", "estimate_seed"}

ON_EVALUATION_ROWS = "fitted on their own evaluation rows with no further request"


def calibrate_loaded(loaded: TaskDict, metadata: Mapping[str, Any] | None) -> None:
    """Let the loaded tasks that can be calibrated be so, if the metadata of the run ask for it."""
    given = settings_of_run(metadata or {})
    if not given.get(CALIBRATE):
        return
    groups: defaultdict[str, list[Group]] = defaultdict(list)
    for group in loaded.get("groups", {}).values():
        for task in group.get_all_tasks():
            groups[task.task_name].append(group)
    stock = {
        name: task for name, task in loaded["tasks"].items() if not isinstance(task, (CalibratedTask, CrossFitted))
    }
    announcement = Announcement(awaited=set(stock))
    unread = set(given) - READ - (READ_WITH_SPLIT if "estimate_split" in given else set())
    if stock and unread:
        names = ", ".join(f"{PREFIX}.{key}" for key in sorted(unread))
        logger.warning("proca.calibrate: lm-eval's own tasks do not read %s; they run as they are", names)
    for name, task in stock.items():
        if (obstacle := _obstacle(task)) is not None:
            announcement.leaves_unchanged(name, obstacle)
            continue
        task.calibration = Calibration(given, groups[name], announcement)
        cls = type(task)
        task.__class__ = type(f"CrossFitted{cls.__name__}", (CrossFitted, cls), {})


def _obstacle(task: Any) -> str | None:
    if not isinstance(task, ConfigurableTask):
        return PYTHON
    verdict = judge(vars(task.config))
    if verdict.obstacle is not None and verdict.final:
        return verdict.obstacle
    if task.multiple_input:
        return SEVERAL_INPUTS
    return SEVERAL_TARGETS if task.multiple_target else None


@dataclass(frozen=True)
class Calibration:
    """What a task is told of the run: its `proca.*` settings, the groups of the task, and what will be said."""

    given: Mapping[str, Any]
    groups: Sequence[Group]
    announcement: Announcement


class CrossFitted(ConfigurableTask):
    """Put before the class of a loaded task: calibrated rows beside the raw one, which stays as it is."""

    calibration: Calibration
    seed: int | None = None
    plan: Plan | None = None
    """None where the requests show that the task cannot be calibrated."""

    def set_fewshot_seed(self, seed: int | None = None) -> None:
        super().set_fewshot_seed(seed)
        self.seed = seed

    # ------------------------------------------------------------------ requests

    def build_all_requests(self, *, limit: int | None = None, samples: list[int] | None = None, **options: Any) -> None:
        """lm-eval's own requests, and behind them those of unlabeled rows of another split, if such are wanted."""
        super().build_all_requests(limit=limit, samples=samples, **options)
        said, self.plan = self.calibration.announcement, None
        try:
            found = requested(self)
        except Obstacle as obstacle:
            said.leaves_unchanged(self.config.task, str(obstacle))
            return
        check_scores_dir(self.config.task, self.calibration.given.get("scores_dir"))
        self.config.metadata = without_settings(self.config.metadata or {})
        rows, how = self._unlabeled_rows(found.labels)
        self.plan = self._plan(found, rows, limit=limit, samples=samples)
        if rows is not None:
            self._instances += rows.requests(self, self.plan.calibration_docs, options)
        layers = self.calibration.given.get("layers", Settings.layers)
        ask_for_hidden_states(self._instances, calibrators_of_documents().values(), layers)
        drawn = bool(self.config.num_fewshot) and not isinstance(getattr(self, "sampler", None), FirstNSampler)
        further = len(self.plan.calibration_docs) * len(found.labels)
        said.calibrates(self.config.task, how, further_requests=further, many_prompts=drawn)

    def _unlabeled_rows(self, labels: Sequence[str]) -> tuple[SplitRows | None, str]:
        """Rows of the split that was asked for, and in words what calibrators are fitted on."""
        given = self.calibration.given
        if "estimate_split" not in given:
            return None, ON_EVALUATION_ROWS
        split, size = given["estimate_split"], given.get("estimate_size", Settings.estimate_size)
        seed = self.seed if given.get("estimate_seed") is None else given["estimate_seed"]
        try:
            return draw_split_rows(self, split, size, seed, labels), f"fitted on unlabeled rows of the split {split}"
        except Obstacle as obstacle:
            return None, f"{ON_EVALUATION_ROWS} ({obstacle})"

    def _plan(
        self, found: Requested, rows: SplitRows | None, *, limit: int | None, samples: Sequence[int] | None
    ) -> Plan:
        index = sorted(set(samples)) if samples else None  # with --samples, lm-eval numbers the chosen documents anew
        documents = {
            doc_id: Document("eval", index[doc_id] if index else doc_id, one.gold)
            for doc_id, one in found.documents.items()
        }
        unlabeled = dict(enumerate(rows.docs, start=len(documents))) if rows else {}
        record = {
            "version": lm_eval_proca.__version__,
            "labels": list(found.labels),
            "num_fewshot": self.config.num_fewshot or 0,
            "seed": self.seed,
            "eval_rows": len(documents),
            "limit": limit,
            "estimate_size": len(unlabeled),
            "estimate_seed": rows.seed if rows else None,
            "estimate_source": f"split:{rows.split}" if rows else "evaluation rows, cross-fitted",
            "prompt_hash": found.documents[0].prompt_hash,
            "estimate_hash": fingerprint(unlabeled.values()),
            "eval_hash": fingerprint([one.prompt_hash, one.gold] for one in found.documents.values()),
        }
        for number, (doc_id, row) in enumerate(unlabeled.items()):
            gold = gold_if_any(lambda row: gold_of(self.doc_to_target(row), found.labels), row)
            documents[doc_id] = Document("estimate", number, gold)
        chosen = {key: record[key] for key in ("estimate_size", "estimate_seed", "estimate_source")}
        origin = identity_of_task(self.config.metadata, chosen, record)
        return Plan(documents, unlabeled, record, origin)

    # ------------------------------------------------------------------ results

    def apply_filters(self) -> None:
        """lm-eval's own filters on its own requests; then what calibrators make of the scores."""
        if self.plan is None:
            super().apply_filters()
            return
        calibrators = calibrators_of_documents()
        filters = {name: [{"function": name}] for name in calibrators}
        scores_dir = self.calibration.given.get("scores_dir")
        fits, _ = fit_scores(self, self.plan, calibrators, filters=filters, scores_dir=scores_dir)
        self._instances = [one for one in self.instances if one.doc_id not in self.plan.calibration_docs]
        super().apply_filters()
        for name, fit in fits.items():
            give_out(name, fit, self._instances, self.plan.documents)
        self._aggregate_too(fits)

    def _aggregate_too(self, names: Iterable[str]) -> None:
        """A group that names the filters of its average averages ours like those of the raw row."""
        raw = {ensemble.name for ensemble in self._filters}
        for group in self.calibration.groups:
            for entry in group.aggregate_metric_list or ():
                if entry.filter_list and raw & set(entry.filter_list) and entry.metric not in MEANINGLESS_METRICS:
                    entry.filter_list += [name for name in names if name not in entry.filter_list]

    def process_results(self, doc: Any, results: Any) -> dict[str, Any]:
        metrics = super().process_results(doc, results)
        if not metrics or not isinstance(results[0], CalibratedResponse):
            return metrics
        kept = {name: value for name, value in metrics.items() if name not in MEANINGLESS_METRICS}
        if kept or self.plan is None:
            return kept
        # A task that reports only what means nothing here, such as acc_norm.
        labels = self.plan.record["labels"]
        predicted = int(np.argmax([response.score for response in results[: len(labels)]]))
        return {"acc": float(predicted == gold_of(self.doc_to_target(doc), labels))}

    def aggregation(self) -> dict[str, Any]:
        return {"acc": mean, **super().aggregation()}

    def higher_is_better(self) -> dict[str, bool]:
        return {"acc": True, **super().higher_is_better()}
