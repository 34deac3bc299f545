"""`--metadata proca.calibrate=true`: calibrated rows for lm-eval's own tasks, as they are.

Prompts, demonstrations, documents and requests stay lm-eval's. The unlabeled rows are the evaluation rows themselves,
cross-fitted: a document is calibrated by a fit that has not seen it (see scores/fitting.py). Only
`proca.estimate_split` asks for more: unlabeled rows of another split, scored behind lm-eval's own prompts.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

from lm_eval.api.instance import Instance
from lm_eval.api.samplers import FirstNSampler
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks.manager import TaskDict
from lm_eval.utils import handle_non_serializable, hash_string

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.distributed import gather, is_first_process
from lm_eval_proca.errors import TaskError
from lm_eval_proca.harness.documents import Doc, Document, UnlabeledRows, draw_rows
from lm_eval_proca.harness.filters import (
    GroupRows,
    ScoringPlan,
    by_document,
    check_scores_dir,
)
from lm_eval_proca.harness.prompts import Prompt, kind_of_prompts, make_prompts
from lm_eval_proca.harness.settings import CALIBRATE, PREFIX, Settings, settings_of_run, without_settings
from lm_eval_proca.harness.task import Calibrated, gold_if_any
from lm_eval_proca.scores.fitting import RAW, ROWS_PER_LABEL, calibrators_of_documents, suited
from lm_eval_proca.scores.gold import gold_index
from lm_eval_proca.scores.record import documents_hash, fingerprint

logger = logging.getLogger("lm_eval.proca")

READ = {CALIBRATE, "calibrators", "scores_dir", "estimate_split", "representation", "layers", "prompts", "vary"}
"""The settings that lm-eval's own tasks read; most others are about prompts and rows, which stay lm-eval's."""
READ_WITH_SPLIT = {"estimate_size", "estimate_seed"}

PYTHON = "a task written in Python"
SEVERAL_INPUTS = "several inputs per document"
SEVERAL_TARGETS = "several gold labels per document"
ON_EVALUATION_ROWS = "fitted on their own evaluation rows with no further request"


class Obstacle(Exception):
    """Why a task cannot be calibrated. The task then runs unchanged."""


# ------------------------------------------------------------------ which tasks


def calibrate_loaded(loaded: TaskDict, metadata: Mapping[str, Any] | None) -> None:
    """Calibrate the loaded tasks, if the metadata of the run ask for it.

    lm-eval builds the task of a YAML itself and has no hook for another class, so a loaded task gets its class anew.
    """
    given = settings_of_run(metadata or {})
    tasks = loaded["tasks"]
    if given.get(CALIBRATE):
        stock = {name: task for name, task in tasks.items() if not isinstance(task, Calibrated)}
        announcement = Announcement(awaited=set(stock))
        _warn_of_unread(given if stock else {})
        _warn_of_impossible(given.get("calibrators") or () if stock else ())
        for name, task in stock.items():
            if (obstacle := _obstacle(task)) is not None:
                announcement.leaves_unchanged(name, obstacle)
                continue
            cls = type(task)
            task.__class__ = type(f"CrossFitted{cls.__name__}", (StockTask, cls), {})
            task.begin(given, announcement)
    ours = {name: task for name, task in tasks.items() if isinstance(task, Calibrated)}
    group_rows = GroupRows(loaded.get("groups", {}).values(), ours)
    for task in ours.values():
        task.group_rows = group_rows


def _warn_of_unread(given: Mapping[str, Any]) -> None:
    unread = set(given) - READ - (READ_WITH_SPLIT if "estimate_split" in given else set())
    if unread:
        names = ", ".join(f"{PREFIX}.{key}" for key in sorted(unread))
        logger.warning("proca.calibrate: %s has no effect on lm-eval's own tasks", names)


def _warn_of_impossible(names: Iterable[str]) -> None:
    if impossible := sorted(set(names) - {RAW, *calibrators_of_documents(names=CALIBRATORS)}):
        told = "needs content-free inputs or random words, which lm-eval's own tasks do not score: no row for it"
        logger.warning("proca.calibrators: %s %s", ", ".join(impossible), told)


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
class Verdict:
    """The labels of a task, or why it cannot be calibrated."""

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


def check_words(labels: Sequence[str]) -> None:
    """Refuse labels that look the same."""
    if len(labels) < 2:
        raise Obstacle("fewer than two labels")
    if len({word.strip() for word in labels}) < len(labels):
        raise Obstacle("two labels are written alike")


# ------------------------------------------------------------------ the task


@dataclass(frozen=True)
class Requested:
    """What all processes together will have scored; documents are by lm-eval's id, ascending."""

    choices: tuple[str, ...]
    """As the task has them, with their blanks."""
    gold: dict[int, int]
    documents_hash: str
    prompt_hash: str
    """Of the first document's prompt."""


class StockTask(Calibrated):
    """Put before the class of a loaded task: calibrated rows beside the raw one.

    The raw row stays lm-eval's, but that no row counts documents without a gold label.
    """

    seed: int | None = None
    choices: tuple[str, ...]
    rows: UnlabeledRows

    def begin(self, given: Mapping[str, Any], announcement: Announcement) -> None:
        """`given` are the `proca.*` settings of the run."""
        self.given, self.announcement = given, announcement
        self.scores_dir = given.get("scores_dir")
        self.representation = given.get("representation", Settings.representation)
        self.layers = given.get("layers", Settings.layers)

    def set_fewshot_seed(self, seed: int | None = None) -> None:
        super().set_fewshot_seed(seed)
        self.seed = seed

    def gold(self, doc: Mapping[str, Any]) -> int:
        return gold_index(self.doc_to_target(doc), self.choices)

    def build_all_requests(self, *, limit: int | None = None, samples: list[int] | None = None, **options: Any) -> None:
        """lm-eval's own requests, and behind them those of unlabeled rows of another split, if such are wanted."""
        super().build_all_requests(limit=limit, samples=samples, **options)
        self.plan = None
        try:
            found = self._requested(options)
        except Obstacle as obstacle:
            self.announcement.leaves_unchanged(self.config.task, str(obstacle))
            return
        check_scores_dir(self.config.task, self.scores_dir)
        self.config.metadata = without_settings(self.config.metadata or {})
        self.choices = found.choices
        self.calibrators = self._chosen_calibrators(len(found.choices))
        rows, how = self._chosen_rows()
        index = sorted(set(samples)) if samples else None  # with --samples, lm-eval numbers the chosen documents anew
        documents = {i: Document("eval", index[i] if index else i, gold) for i, gold in found.gold.items()}
        self.check_shares(documents, options.get("world_size", 1))
        further = dict(enumerate(rows.docs, start=len(documents)))
        documents |= {i: Document("estimate", k, rows.gold[k]) for k, i in enumerate(further)}
        record = self.record(
            rows,
            {"estimate_size": len(rows.docs), "estimate_seed": rows.seed, "estimate_source": rows.source},
            seed=self.seed,
            limit=limit,
            labels=tuple(word.strip() for word in found.choices),
            eval_rows=len(found.gold),
            documents_hash=found.documents_hash,
            prompt_hash=found.prompt_hash,
            unlabeled_hash=fingerprint(rows.docs),
            filters={name: [{"function": name}] for name in self.calibrators},
        )
        self.rows = rows
        self.plan = plan = self._with_prompts(ScoringPlan(documents, further, [record]), options, limit, samples)
        share = {key: options[key] for key in ("rank", "world_size") if key in options}
        of_rows = self.share_of_further(plan, options)
        own = [*self.doc_iterator(limit=limit, samples=samples, **share), *of_rows]
        self._instances += self.requests_under(self.prompts[0], plan, of_rows, options)
        for prompt in self.prompts[1:]:
            self._instances += self.requests_under(prompt, plan, own, options)
        self.ask_for_representations()
        drawn = bool(self.config.num_fewshot) and not self._has_fixed_demonstrations
        requests = len(further) * len(found.choices)
        self.announcement.calibrates(self.config.task, how, further_requests=requests, many_prompts=drawn)

    def _chosen_calibrators(self, labels: int) -> dict[str, Calibrator]:
        """Those that were asked for, as far as the documents are enough for them; else the default ones that suit."""
        if (names := self.given.get("calibrators")) is None:
            return suited(calibrators_of_documents(), labels)
        return calibrators_of_documents(names=[name for name in names if name != RAW])

    def _requested(self, options: Mapping[str, Any]) -> Requested:
        """What the requests show. Functions of the task may draw at random, so they are not called again."""
        delimiter = self._target_delimiter(options.get("apply_chat_template", False))
        choices: set[tuple[str, ...]] = set()
        found: dict[int, tuple[int, str, str]] = {}  # gold, and hashes of document and prompt
        for doc_id, requests in by_document(self.instances).items():
            if "acc_mutual_info" in self._metric_fn_list:  # every choice once more, without a prompt
                requests = requests[: len(requests) // 2]
            words = tuple(request.args[1].removeprefix(delimiter) for request in requests)
            choices.add(words)
            gold = gold_index(self.doc_to_target(requests[0].doc), words)
            found[doc_id] = gold, _doc_hash(requests[0].doc), fingerprint([requests[0].args[0]])
        shards = gather((choices if len(choices) == 1 else None, found))
        own, everything = shards[0][0], {doc_id: one for _, shard in shards for doc_id, one in shard.items()}
        if own is None or any(others != own for others, _ in shards):
            raise Obstacle("choices differ between documents")
        (labels,) = own
        check_words(labels)
        if len(everything) <= max(everything):  # stock `--model hf` on several nodes: local rank with global world size
            raise Obstacle("some documents are not scored by any process")
        in_order = {doc_id: everything[doc_id] for doc_id in sorted(everything)}
        return Requested(
            choices=labels,
            gold={doc_id: one[0] for doc_id, one in in_order.items()},
            documents_hash=documents_hash((one[1], one[0]) for one in in_order.values()),
            prompt_hash=in_order[0][2],
        )

    def _target_delimiter(self, apply_chat_template: bool) -> str:
        """What lm-eval puts before a choice, as its `construct_requests` decides."""
        prefix = self.config.gen_prefix
        behind_template = bool(prefix) and not str(prefix)[-1:].isspace()
        return "" if apply_chat_template and not behind_template else str(self.config.target_delimiter)

    # ------------------------------------------------------------------ rows of another split

    def _chosen_rows(self) -> tuple[UnlabeledRows, str]:
        """Rows of the split that was asked for, and in words what calibrators are fitted on."""
        if "estimate_split" not in self.given:
            return UnlabeledRows(), ON_EVALUATION_ROWS
        split, seed = self.given["estimate_split"], self.given.get("estimate_seed")
        try:
            rows = self._rows_of_split(split, self.seed if seed is None else seed)
            return rows, f"fitted on unlabeled rows of the split {split}"
        except Obstacle as obstacle:
            return UnlabeledRows(), f"{ON_EVALUATION_ROWS} ({obstacle})"

    def _rows_of_split(self, split: str, seed: int | None) -> UnlabeledRows:
        """Rows that are neither evaluated nor fixed demonstrations and have the labels of the task."""
        if split not in self.dataset:
            raise Obstacle(f"no split {split}")
        if split == (self.config.test_split or self.config.validation_split):
            raise Obstacle(f"the split {split} is the evaluated one")
        docs = self.dataset[split]
        pool = self.config.process_docs(docs) if self.config.process_docs else docs
        evaluated = {self.doc_to_text(doc) for doc in self.task_docs}
        sampler = getattr(self, "sampler", None)
        fixed = sampler.df[: self.config.num_fewshot or 0] if isinstance(sampler, FirstNSampler) else []
        shown = {fingerprint([doc]) for doc in fixed}

        def allowed(row: Doc) -> bool:
            try:
                fits = tuple(self.doc_to_choice(row)) == self.choices
                return fits and self.doc_to_text(row) not in evaluated and fingerprint([row]) not in shown
            except Exception as error:  # of any function or template of the YAML
                raise TaskError(
                    f"{self.config.task}: a row of the split {split} cannot be put into the prompt "
                    f"({type(error).__name__}: {error}); leave proca.estimate_split out."
                ) from error

        drawn = draw_rows(pool, self.given.get("estimate_size", Settings.estimate_size), seed, allowed=allowed)
        if len(drawn) < ROWS_PER_LABEL * len(self.choices):
            raise Obstacle(f"the split {split} has only {len(drawn)} usable rows")
        return UnlabeledRows(f"split:{split}", drawn, [gold_if_any(self.gold, row) for row in drawn], seed)

    # ------------------------------------------------------------------ prompts

    @property
    def _has_fixed_demonstrations(self) -> bool:
        return isinstance(getattr(self, "sampler", None), FirstNSampler)

    def _with_prompts(
        self, plan: ScoringPlan, options: Mapping[str, Any], limit: int | None, samples: list[int] | None
    ) -> ScoringPlan:
        """The plan with the prompts that were asked for; a task that cannot have them keeps its one and says why."""
        count, shots, name = self.given.get("prompts", 1), self.config.num_fewshot or 0, str(self.config.task)
        self.prompts = [Prompt()]
        if count == 1:
            return plan
        if not shots:
            self.announcement.has_one_prompt(name, "without demonstrations its prompts do not differ")
            return plan
        try:
            fixed = self._has_fixed_demonstrations
            kind = kind_of_prompts(name, asked=self.given.get("vary"), shots=shots, fixed=fixed, templates=0)
            self.prompts = make_prompts(name, kind, count, shots=shots, seed=self.seed, templates=0)
        except TaskError as error:
            self.announcement.has_one_prompt(name, str(error).removeprefix(f"{name}: ").rstrip("."))
            return plan
        _, doc = next(iter(self.doc_iterator(limit=limit, samples=samples)))
        first = replace(plan.record, prompts=count, vary=kind)
        records = [first]
        for prompt in self.prompts[1:]:
            (context, *_), *_ = (one.args for one in self.requests_under(prompt, plan, [(0, doc)], options))
            records.append(replace(first, prompt=prompt.number, prompt_hash=fingerprint([context])))
        self.check_prompts(records)
        return replace(plan, records=records)

    def requests_of(self, doc_id: int, doc: Doc, options: Mapping[str, Any], name: str) -> list[Instance]:
        """The same prompts on any number of processes: the id of a document decides which demonstrations it draws."""
        if hasattr(self, "sampler"):
            seed = self.seed if self.rows.seed is None else self.rows.seed
            self.sampler.set_rnd(crc32(f"{seed}-{doc_id}".encode()))
        made = super().requests_of(doc_id, doc, options, name)
        delimiter = self._target_delimiter(options.get("apply_chat_template", False))
        words = tuple(one.args[1].removeprefix(delimiter) for one in made[: len(self.choices)])
        if words != self.choices:
            raise TaskError(
                f"{self.config.task}: {name} has other choices when its prompt is built once more; leave proca.prompts "
                f"and proca.estimate_split out."
            )
        return made

    @contextmanager
    def asking(self, prompt: Prompt) -> Iterator[None]:
        """The sampler has the demonstrations of the prompt, and no row of the estimate set."""
        sampler, shots = getattr(self, "sampler", None), self.config.num_fewshot or 0
        if sampler is None or not shots:
            yield
            return
        pool, state = sampler.df, sampler.rnd
        unlabeled = {fingerprint([row]) for row in self.rows.docs}
        left = [row for row in pool if fingerprint([row]) not in unlabeled] if unlabeled else pool
        if len(left) < shots:
            raise TaskError(
                f"{self.config.task}: the estimate set leaves {len(left)} rows for {shots} demonstrations; lower "
                f"proca.estimate_size."
            )
        if prompt.order is not None:
            left = [*(left[place] for place in prompt.order), *left[shots:]]
        try:
            sampler.df = left
            yield
        finally:
            sampler.df, sampler.rnd = pool, state


def _doc_hash(doc: Any) -> str:
    """As lm-eval logs it, so that a run and its sample log have the same documents."""
    return hash_string(json.dumps(doc, indent=2, default=handle_non_serializable, ensure_ascii=False))


# ------------------------------------------------------------------ log lines


@dataclass
class Announcement:
    """The log lines about all tasks of a run. They are written once, when the last task has built its requests."""

    awaited: set[str] = field(default_factory=set)
    calibrated: dict[str, list[str]] = field(default_factory=dict)
    """By what calibrators are fitted on."""
    unchanged: dict[str, list[str]] = field(default_factory=dict)
    """By the reason."""
    one_prompt: dict[str, list[str]] = field(default_factory=dict)
    """Tasks that cannot have the prompts that were asked for, by the reason."""
    many_prompts: list[str] = field(default_factory=list)
    """Tasks that draw new demonstrations for every document."""
    further_requests: int = 0

    def calibrates(self, task: str, how: str, *, further_requests: int, many_prompts: bool) -> None:
        if task in self.awaited:  # not evaluated again
            self.calibrated.setdefault(how, []).append(task)
            self.many_prompts += [task] * many_prompts
            self.further_requests += further_requests
            self._arrived(task)

    def has_one_prompt(self, task: str, reason: str) -> None:
        if task in self.awaited:
            self.one_prompt.setdefault(reason, []).append(task)

    def leaves_unchanged(self, task: str, obstacle: str) -> None:
        if task in self.awaited:
            self.unchanged.setdefault(obstacle, []).append(task)
            self._arrived(task)

    def _arrived(self, task: str) -> None:
        self.awaited.remove(task)
        if not self.awaited and is_first_process():
            for line in self._lines():
                logger.info("proca.calibrate: %s", line)

    def _lines(self) -> Iterator[str]:
        for how, tasks in self.calibrated.items():
            yield f"calibrated rows for {_counted(tasks)}, {how}"
        if self.further_requests:
            yield f"the rows of proca.estimate_split add {self.further_requests} requests"
        for reason, tasks in self.one_prompt.items():
            yield f"one prompt only for {_counted(tasks)}: {reason}"
        if self.unchanged:
            reasons = "; ".join(f"{reason}: {_counted(tasks)}" for reason, tasks in self.unchanged.items())
            count = sum(map(len, self.unchanged.values()))
            yield f"{count} of the tasks cannot be calibrated and run unchanged ({reasons})"
        if self.many_prompts:
            yield (
                f"every document has its own demonstrations in {_counted(self.many_prompts)}, so calibration corrects "
                f"only their average bias"
            )


def _counted(tasks: Sequence[str], shown: int = 3) -> str:
    more = ", ..." if len(tasks) > shown else ""
    return f"{len(tasks)} task{'s' * (len(tasks) > 1)} ({', '.join(tasks[:shown])}{more})"
