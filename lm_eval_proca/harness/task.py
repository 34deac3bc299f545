"""`CalibratedTask`: a multiple-choice task of lm-eval that also scores what its calibrators are fitted on."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import datasets
import numpy as np
from jinja2 import UndefinedError
from lm_eval.api.instance import Instance
from lm_eval.api.metrics import mean
from lm_eval.api.task import ConfigurableTask

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.crossed import crossed_mean
from lm_eval_proca.distributed import is_first_process
from lm_eval_proca.errors import DistributedError, TaskError
from lm_eval_proca.harness.documents import (
    DemonstrationFile,
    Doc,
    Document,
    FileSampler,
    OnePromptSampler,
    SelfLabelledDoc,
    UnlabeledDoc,
    UnlabeledRows,
    check_dataset,
    check_templates,
    content_free_docs,
    domain_docs,
    draw_rows,
    fixed_part,
    in_one_line,
    in_words,
    local_folder,
    read_demonstration_file,
    read_estimate_file,
    read_files,
    read_folder,
    without_label,
)
from lm_eval_proca.harness.filters import (
    GroupRows,
    ScoringPlan,
    ask_for_representations,
    calibrate,
    check_scores_dir,
    give_out,
    let_go,
)
from lm_eval_proca.harness.prompts import DEMONSTRATIONS, Prompt, kind_of_prompts, make_prompts, template_of
from lm_eval_proca.harness.settings import MEANINGLESS_METRICS, Settings, check_labels, set_up
from lm_eval_proca.representations import Layer
from lm_eval_proca.scores.fitting import suited
from lm_eval_proca.scores.gold import NO_GOLD, gold_index, is_missing
from lm_eval_proca.scores.identity import identity_of_task
from lm_eval_proca.scores.record import RunRecord, documents_hash, fingerprint

logger = logging.getLogger("lm_eval.proca")  # below lm-eval's own logger, the only one that its command shows

DEFAULT_SEED = 1234
"""lm-eval's own default for few-shot examples, for callers that never set one."""

SPREAD, TOGETHER = "acc_sd", "acc_together"


def _over_prompts(name: str) -> Callable[[Sequence[Sequence[float]]], Any]:
    """An aggregation of right or wrong, (documents, prompts); what it cannot tell is lm-eval's N/A."""

    def aggregate(right: Sequence[Sequence[float]]) -> Any:
        found = getattr(crossed_mean(np.transpose(right)), name)
        return "N/A" if found is None else found

    return aggregate


OVER_PROMPTS: Mapping[str, Callable[[Sequence[Sequence[float]]], Any]] = {
    "acc_prompts": _over_prompts("mean"),
    # lm-eval has no way to give an aggregation its own standard error. It writes "N/A" under this name, and then, since
    # it comes next, what this metric says.
    "acc_prompts_stderr": _over_prompts("standard_error"),
    SPREAD: _over_prompts("sd"),
    "acc_worst": _over_prompts("worst"),
}
"""The further metrics of a run with several prompts."""

NOT_ABOUT_PROMPTS = {"tokenizer_name", "rank", "world_size", "cache_requests", "rewrite_requests_cache"}


class Calibrated(ConfigurableTask):
    """What `CalibratedTask` and lm-eval's own tasks share.

    `build_all_requests` makes lm-eval's requests and those of further documents, which lm-eval scores but never counts.
    `apply_filters` makes one table of all scores, fits calibrators on it, and gives calibrated scores to the filters.
    `process_results` measures them as lm-eval does.
    """

    plan: ScoringPlan | None = None
    """What the run scores; None for a task that cannot be calibrated and runs as it is."""
    calibrators: Mapping[str, Calibrator] = MappingProxyType({})
    """By the names of their filters."""
    scores_dir: str | None = None
    representation: str = Settings.representation
    layers: Sequence[Layer] = Settings.layers
    group_rows: GroupRows | None = None
    prompts: Sequence[Prompt] = (Prompt(),)
    """The prompts of the run; the first is lm-eval's own."""
    vary: str | None = None
    """What differs between them, if there are several."""

    @abstractmethod
    def asking(self, prompt: Prompt) -> AbstractContextManager[None]:
        """Inside, requests are built under this prompt."""

    @abstractmethod
    def gold(self, doc: Mapping[str, Any]) -> int:
        """Index of a document's label, or NO_GOLD."""

    def prompt_of(self, doc: Doc, options: Mapping[str, Any], name: str) -> str:
        """The prompt of a document; `name` stands for the document in an error.

        `options` are those of `build_all_requests`.
        """
        options = {key: value for key, value in options.items() if key not in NOT_ABOUT_PROMPTS}
        shots = self.config.num_fewshot or 0
        try:
            return self.fewshot_context(doc, num_fewshot=shots, gen_prefix=self.doc_to_prefix(doc), **options)
        except TaskError:
            raise
        except UndefinedError as error:
            raise TaskError(
                f"{self.config.task}: {name} cannot be put into the prompt: {in_words(error, doc)}"
            ) from error
        except Exception as error:  # of any function or template of the YAML
            reason = " ".join(str(error).split())
            raise TaskError(
                f"{self.config.task}: {name} cannot be put into the prompt ({type(error).__name__}: {reason}); make "
                f"doc_to_text fit every text, or drop such rows with process_docs."
            ) from error

    def requests_of(self, doc_id: int, doc: Doc, options: Mapping[str, Any], name: str) -> list[Instance]:
        """One request per label."""
        return self.construct_requests(
            doc=doc,
            ctx=self.prompt_of(doc, options, name),
            metadata=(self.config["task"], doc_id, self.config.repeats),
            apply_chat_template=options.get("apply_chat_template", False),
            chat_template=options.get("chat_template"),
        )

    def record(
        self, rows: UnlabeledRows, settings: Mapping[str, Any], *, seed: int | None, limit: int | None, **known: Any
    ) -> RunRecord:
        """What this run is; `known` are the fields that the two kinds of tasks fill in their own ways."""
        run: dict[str, Any] = {"num_fewshot": self.config.num_fewshot or 0, "seed": seed, "limit": limit}
        return RunRecord(
            task=str(self.config.task),
            task_version=str(self.VERSION),
            estimate_source=rows.source,
            estimate_size=len(rows.docs),
            estimate_seed=rows.seed,
            generated_by=rows.generated_by,
            **known,
            **run,
            **identity_of_task(self.config.metadata, settings, run),
        )

    def check_prompts(self, records: Sequence[RunRecord]) -> None:
        """Two equal prompts would count one twice."""
        numbers: dict[str | None, int] = {}
        for one in records:
            if (twin := numbers.setdefault(one.prompt_hash, one.prompt)) != one.prompt:
                raise TaskError(
                    f"{self.config.task}: prompts {twin} and {one.prompt} of {one.prompts} are the same; there are too "
                    f"few rows to demonstrate for so many prompts, lower proca.prompts."
                )

    def requests_under(
        self, prompt: Prompt, plan: ScoringPlan, docs: Iterable[tuple[int, Doc]], options: Mapping[str, Any]
    ) -> list[Instance]:
        """The requests of documents, given with their ids under prompt 0, under another prompt."""
        made: list[Instance] = []
        shift = prompt.number * plan.stride
        with self.asking(prompt):
            for doc_id, doc in docs:
                made += self.requests_of(shift + doc_id, doc, options, str(plan.documents[doc_id]))
        return made

    def ask_for_representations(self) -> None:
        ask_for_representations(self._instances, self.calibrators.values(), self.representation, self.layers)

    def share_of_further(self, plan: ScoringPlan, options: Mapping[str, Any]) -> list[tuple[int, Doc]]:
        """The further documents that this process scores."""
        return list(plan.further.items())[options.get("rank", 0) :: options.get("world_size", 1)]

    def apply_filters(self) -> None:
        """Apply lm-eval's own filters; the responses of the calibrated ones come from the fits."""
        if self.plan is None:
            super().apply_filters()
            self._tell_groups(())
            return
        calibration = calibrate(self.plan, self.instances, self.calibrators, scores_dir=self.scores_dir)
        let_go(self.instances)
        # lm-eval writes the metadata into its results file.
        self.config.metadata["proca"] = calibration.record.as_json()
        self._instances = list(filter(self.plan.is_lm_evals, self.instances))
        for ensemble in self._filters:
            if ensemble.name not in self.calibrators:
                ensemble.apply(self._instances)
        give_out(calibration, self._instances, self.plan.documents)
        self._tell_groups(calibration.fits)

    def _tell_groups(self, rows: Iterable[str]) -> None:
        if self.group_rows is not None:
            self.group_rows.arrived(self.task_name, rows)

    def process_results(self, doc: Any, results: Any) -> dict[str, Any]:
        """As in lm-eval, but no row counts documents without a gold label. Calibrated rows always have an accuracy."""
        if self.plan is None or "bypass" in self._metric_fn_list:
            return super().process_results(doc, results)
        if self.plan.lacks_gold and self.gold(doc) == NO_GOLD:
            return {}
        metrics, first = super().process_results(doc, results), results[0]
        if getattr(first, "calibrated", False):
            metrics = {name: value for name, value in metrics.items() if name not in MEANINGLESS_METRICS}
            if "acc" not in metrics:
                scores = [response[0] for response in results[: len(self.plan.record.labels)]]
                metrics["acc"] = float(np.argmax(scores) == self.gold(doc))
        if getattr(first, "by_prompt", ()):
            right = [float(label == self.gold(doc)) for label in first.by_prompt]
            metrics |= {**dict.fromkeys(OVER_PROMPTS, right), TOGETHER: float(first.together == self.gold(doc))}
        return metrics

    def aggregation(self) -> dict[str, Any]:
        return {"acc": mean, TOGETHER: mean, **OVER_PROMPTS, **super().aggregation()}

    def higher_is_better(self) -> dict[str, bool]:
        several = {**dict.fromkeys(OVER_PROMPTS, True), SPREAD: False, TOGETHER: True} if len(self.prompts) > 1 else {}
        return {"acc": True, **several, **super().higher_is_better()}

    def check_shares(self, documents: Mapping[int, Document], world_size: int) -> None:
        """Fail early where lm-eval would fail late: each process must have a document that can be measured."""
        golds = [document.gold for document in documents.values() if document.role == "eval"]
        if len(golds) < world_size:
            raise DistributedError(
                f"{self.config.task}: {len(golds)} evaluation documents are fewer than the {world_size} processes "
                f"that share them; raise --limit or start fewer processes."
            )
        shares = [any(gold != NO_GOLD for gold in golds[rank::world_size]) for rank in range(world_size)]
        if any(shares) and not all(shares):
            raise DistributedError(
                f"{self.config.task}: one of {world_size} processes would evaluate only documents without a gold "
                f"label; start fewer processes."
            )


def gold_if_any(gold_of: Callable[[Any], int], doc: Mapping[str, Any]) -> int:
    try:
        return gold_of(doc)
    except Exception:  # an unlabeled row may fail in any template or function of the YAML
        return NO_GOLD


class CalibratedTask(Calibrated):
    """Use from YAML as `class: !function lm_eval_proca.CalibratedTask`, with a `calibration:` block.

    Every evaluation document is scored as in the same task without this class. Behind the same prompt come the
    documents that calibrators are fitted on (the estimate set, content-free inputs, random words), with document ids
    after those of the evaluation.
    """

    def __init__(
        self,
        data_dir: str | None = None,
        cache_dir: str | None = None,
        download_mode: Any = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        setup = set_up(config or {})
        name, self.settings, self.calibrators = str(setup.config.get("task")), setup.settings, setup.calibrators
        self.scores_dir = self.settings.scores_dir
        self.representation, self.layers = self.settings.representation, self.settings.layers

        super().__init__(data_dir, cache_dir, download_mode, setup.config)

        if self.multiple_input or self.multiple_target:
            raise TaskError(
                f"{name}: a calibrated task has one input and one gold label per document; multiple inputs or "
                f"targets cannot be calibrated."
            )
        check_labels(name, self.labels, self.settings)
        if not setup.chosen:
            self._leave_out(self.calibrators.keys() - suited(self.calibrators, len(self.labels)).keys())
        self.sampler = self._make_sampler()
        self.set_fewshot_seed(DEFAULT_SEED)

    def _make_sampler(self) -> OnePromptSampler:
        def allowed(row: Doc) -> bool:
            return self.text_of(row) not in self.evaluated_texts and self._can_be_shown(row)

        if self.settings.demonstration_file is not None:
            return FileSampler(self._self_labelled(), task=self.task_name, allowed=allowed)
        return OnePromptSampler(
            self._fewshot_pool(),
            task=self.task_name,
            allowed=allowed,
            label_of=self.gold,
            counts=self.settings.demonstration_counts,
            order_seed=self.settings.order_seed,
            first=self.fewshot_cfg.sampler == "first_n",
        )

    def _self_labelled(self) -> DemonstrationFile:
        """The demonstrations of a file; columns that it does not have are those of the first document."""
        settings, path = self.settings, str(self.settings.demonstration_file)
        deciding = ("prompts", "vary", "template", "demonstration_counts", "order_seed")
        if other := [key for key in deciding if getattr(settings, key) != getattr(Settings, key)]:
            raise TaskError(
                f"{self.task_name}: proca.demonstration_file decides the prompts; leave proca.{other[0]} out."
            )
        file = read_demonstration_file(path, task=self.task_name, text_fields=settings.text_fields, labels=self.labels)
        blank = without_label(self.eval_docs[0], self.label_column)
        for doc in file.docs:
            if self.text_of(doc) in self.evaluated_texts:
                raise TaskError(
                    f"{self.task_name}: {path} demonstrates a document that is evaluated; take it out of the file."
                )
            for column, value in blank.items():
                doc.setdefault(column, value)
        return file

    def _leave_out(self, names: Collection[str]) -> None:
        """Default filters that are not for so few labels."""
        self.calibrators = {name: one for name, one in self.calibrators.items() if name not in names}
        self._filters: Any = [ensemble for ensemble in self._filters if ensemble.name not in names]
        self.config.filter_list = [entry for entry in self.config.filter_list if entry["name"] not in names]

    # ------------------------------------------------------------------ rows

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """The hub's dataset, or its copy in `proca.data_dir`."""
        local = local_folder(self.config, self.settings)
        try:
            if local is not None:
                self.dataset = read_folder(local)
            elif self.config.custom_dataset is not None:  # as the base class does, less its advice on --metadata
                self.dataset = self.config.custom_dataset(**self.config.metadata, **(dataset_kwargs or {}))
            elif (files := read_files(self.config)) is not None:
                self.dataset = files
            else:
                super().download(dataset_kwargs, **kwargs)
        except Exception as error:
            raise TaskError(
                f"{self.config.task}: cannot load {local or self.config.dataset_path} ({in_one_line(error)}); check "
                f"the name, the network, or give a folder of local copies as --metadata proca.data_dir=DIR."
            ) from error
        check_dataset(self.dataset, self.config, self.settings)

    @cached_property
    def eval_docs(self) -> datasets.Dataset:
        """The evaluation documents; the same for every seed."""
        docs = super().eval_docs
        if self.config.use_prompt is None and len(docs):
            check_templates(self.config, docs[0])
        size = self.settings.eval_size
        return docs if size is None or size >= len(docs) else docs.select(fixed_part(len(docs), size))

    @cached_property
    def evaluated_texts(self) -> set[tuple[str, ...]]:
        columns = [self.eval_docs[name] for name in self.settings.text_fields]
        return {tuple(str(text).strip() for text in row) for row in zip(*columns, strict=True)}

    def fewshot_docs(self) -> None:
        """None: the base class would copy the whole split into a list. See `_fewshot_pool`."""
        return None

    def _fewshot_pool(self) -> Sequence[Doc]:
        samples = self.fewshot_cfg.samples
        if self.fewshot_cfg.split is None and samples is not None:
            return list(samples() if callable(samples) else samples)
        split = self.fewshot_cfg.split or self.config.training_split or self.settings.estimate_split
        if split not in self.dataset:
            return []
        process_docs = self.fewshot_cfg.process_docs
        return process_docs(self.dataset[split]) if process_docs else self.dataset[split]

    # ------------------------------------------------------------------ one document

    def text_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]).strip() for name in self.settings.text_fields)

    @cached_property
    def labels(self) -> list[str]:
        """The label words, in the order of the score columns."""
        return list(self.doc_to_choice(self.eval_docs[0]))

    @property
    def label_column(self) -> str | None:
        target = self.config.doc_to_target
        return target if isinstance(target, str) and target in self.features else None

    def doc_to_target(self, doc: Mapping[str, Any], doc_to_target: Any = None) -> Any:
        """As in lm-eval, which asks for the target of every document, also of those that have none."""
        if isinstance(doc, UnlabeledDoc):
            return None
        if isinstance(doc, SelfLabelledDoc):
            return doc.target if self._has_label_ids else self.labels[doc.target]
        found = super().doc_to_target(doc, doc_to_target)
        # A column of whole numbers with empty cells is read as one of decimal numbers.
        return int(found) if isinstance(found, float) and found.is_integer() else found

    def gold(self, doc: Mapping[str, Any]) -> int:
        """Index of a document's label, or NO_GOLD for -1, nothing or an empty word: the row is unlabeled."""
        target = self.doc_to_target(doc)
        found = gold_index(target, self.labels)
        if found != NO_GOLD or is_missing(target):
            return found
        raise TaskError(
            f"{self.config.task}: the label {target!r} of a row is none of the {len(self.labels)} labels "
            f"{self.labels}; correct doc_to_target or doc_to_choice, or drop such rows with process_docs."
        )

    def _can_be_shown(self, row: Mapping[str, Any]) -> bool:
        """Whether a demonstration has a label to show. lm-eval would show the last one for -1, and nothing for none."""
        try:
            return not is_missing(self.doc_to_target(row, self.fewshot_cfg.doc_to_target))
        except Exception:  # an unlabeled row may fail in any template or function of the YAML
            return False

    # ------------------------------------------------------------------ what is scored

    def set_fewshot_seed(self, seed: int | None = None) -> None:
        """One seed for the demonstrations and, unless `proca.estimate_seed` is given, for the estimate set."""
        if seed is None:
            raise TaskError(
                f"{self.config.task}: without a seed every process would draw another prompt; run with a number, "
                f"e.g. --seed 1234."
            )
        super().set_fewshot_seed(seed)

    def doc_iterator(
        self,
        *,
        rank: int = 0,
        limit: int | None = None,
        world_size: int = 1,
        samples: list[int] | None = None,
    ) -> Iterator[tuple[int, Doc]]:
        """As in lm-eval, but `--limit` takes a fixed random part: several datasets are sorted by class."""
        if samples or not limit:
            return super().doc_iterator(rank=rank, limit=limit, world_size=world_size, samples=samples)
        rows = fixed_part(len(self.eval_docs), int(limit))
        return ((i, self.eval_docs[i]) for i in rows[int(rank) :: int(world_size)])

    def build_all_requests(
        self,
        *,
        limit: int | None = None,
        samples: list[int] | None = None,
        cache_requests: bool = False,
        rewrite_requests_cache: bool = False,
        **options: Any,
    ) -> None:
        """Requests of this rank's evaluation documents, then of its share of those that calibrators are fitted on."""
        self.prompts = self._make_prompts()
        self.plan = plan = self._make_plan(limit, samples, options)
        self.check_shares(plan.documents, options.get("world_size", 1))
        check_scores_dir(self.config.task, self.scores_dir)
        if options.get("rank", 0) == 0:
            self._announce(plan, cache_requests)
        super().build_all_requests(limit=limit, samples=samples, cache_requests=False, **options)
        further = self.share_of_further(plan, options)
        self._instances += self.requests_under(self.prompts[0], plan, further, options)
        share = {key: options[key] for key in ("rank", "world_size") if key in options}
        own = [*self.doc_iterator(limit=limit, samples=samples, **share), *further]
        for prompt in self.prompts[1:]:
            self._instances += self.requests_under(prompt, plan, own, options)
        self.ask_for_representations()

    def _make_prompts(self) -> list[Prompt]:
        settings, shots, name = self.settings, self.config.num_fewshot or 0, self.task_name
        self.vary = None
        if isinstance(self.sampler, FileSampler):
            count = self.sampler.file.n_prompts
            self.vary = DEMONSTRATIONS if count > 1 else None
            return [Prompt(k) for k in range(count)]
        if settings.prompts == 1:
            return [Prompt()]
        if settings.template is not None:
            raise TaskError(f"{name}: proca.template names one template; leave it or proca.prompts out.")
        templates = len(settings.templates)
        kind = kind_of_prompts(name, asked=settings.vary, shots=shots, fixed=self.sampler.first, templates=templates)
        self.vary = kind
        return make_prompts(name, kind, settings.prompts, shots=shots, seed=self.sampler.seed, templates=templates)

    @contextmanager
    def asking(self, prompt: Prompt) -> Iterator[None]:
        changed = template_of(self.task_name, self.settings.templates, prompt.template)
        own = {key: getattr(self.config, key) for key in changed}
        try:
            self._use(prompt, changed)
            yield
        finally:
            self._use(Prompt(), own)

    def _use(self, prompt: Prompt, template: Mapping[str, Any]) -> None:
        self.sampler.prompt = prompt
        for key, value in template.items():
            for config in (self.config, self.fewshot_cfg):
                setattr(config, key, value)

    def _make_plan(self, limit: int | None, samples: Sequence[int] | None, options: Mapping[str, Any]) -> ScoringPlan:
        """Every document that will be scored, checked before any of them is."""
        total = len(self.eval_docs)
        evaluated = sorted(set(samples)) if samples else fixed_part(total, int(limit)) if limit else list(range(total))
        # With --samples, lm-eval numbers the chosen documents anew.
        documents = {
            (number if samples else i): Document("eval", i, self.gold(self.eval_docs[i]))
            for number, i in enumerate(evaluated)
        }
        blank = content_free_docs(self.eval_docs[0], self.settings.text_fields, self.label_column)
        roles = {calibrator.fits_on for calibrator in self.calibrators.values()}
        wants_rows = roles & {"estimate", "domain"} or self.settings.estimate_file
        unlabeled = self.unlabeled_rows() if wants_rows else UnlabeledRows()
        words = self._random_words(unlabeled) if "domain" in roles else []
        if roles & {"content_free", "domain"} or self.settings.estimate_file:
            self._check_shown_columns(blank[0], options)
        further: dict[int, Doc] = {}
        rows = {
            "estimate": (unlabeled.docs, unlabeled.gold),
            "content_free": (blank, [NO_GOLD] * len(blank)),
            "domain": (words, [NO_GOLD] * len(words)),
        }
        for role in (role for role in rows if role in roles):
            for index, (doc, gold) in enumerate(zip(*rows[role], strict=True)):
                documents[total + len(further)] = Document(role, index, gold)
                further[total + len(further)] = doc
        self._check_choices(documents, further)
        golds = [document.gold for document in documents.values() if document.role == "eval"]
        texts = [self.text_of(self.eval_docs[i]) for i in evaluated]
        record = self.record(
            unlabeled,
            asdict(self.settings),
            seed=self.sampler.seed,
            limit=limit,
            eval_rows=len(evaluated),
            demonstrated_by=self.sampler.file.provenance if isinstance(self.sampler, FileSampler) else {},
            demonstration_counts=self.settings.demonstration_counts,
            order_seed=self.settings.order_seed,
            prompts=len(self.prompts),
            vary=self.vary,
            documents_hash=documents_hash(zip(texts, golds, strict=True)),
            unlabeled_hash=fingerprint(self.text_of(doc) for doc in unlabeled.docs),
            filters={entry["name"]: entry["filter"] for entry in self.config.filter_list},
        )
        records = [self._under(prompt, record, blank[1], options) for prompt in self.prompts]
        self.check_prompts(records)
        return ScoringPlan(
            documents, further, records, {"domain": fingerprint(map(self.text_of, words))} if words else {}
        )

    def _random_words(self, unlabeled: UnlabeledRows) -> list[UnlabeledDoc]:
        """Texts of random words of the unlabeled rows, the same for all prompts and processes."""
        fields, column = self.settings.text_fields, self.label_column
        return domain_docs(self.eval_docs[0], unlabeled.docs, fields, column, unlabeled.seed)

    def _under(self, prompt: Prompt, record: RunRecord, blank: Doc, options: Mapping[str, Any]) -> RunRecord:
        """The record of the run under a prompt; `blank` is the empty document."""
        with self.asking(prompt):
            words = tuple(self.doc_to_choice(self.eval_docs[0]))
            check_labels(self.task_name, words, self.settings)
            if len(words) != len(self.labels) or (words != tuple(self.labels) and not self._has_label_ids):
                raise TaskError(
                    f"{self.task_name}: template {prompt.template} has the label words {', '.join(words)}; it needs "
                    f"one for each of {len(self.labels)} labels, and other words need a doc_to_target that is a number."
                )
            return replace(
                record,
                prompt=prompt.number,
                labels=words,
                demonstrations=tuple(self.sampler.indices(self.config.num_fewshot or 0)),
                template=prompt.template or self.settings.template,
                prompt_hash=fingerprint([self.prompt_of(blank, options, "The empty document")]),
            )

    @property
    def _has_label_ids(self) -> bool:
        return isinstance(self.doc_to_target(self.eval_docs[0]), int)

    def _demonstrated(self) -> Iterator[tuple[str, ...]]:
        """The texts of the demonstrations of all prompts."""
        for prompt in self.prompts:
            with self.asking(prompt):
                yield from map(self.text_of, self.sampler.sample(self.config.num_fewshot or 0))

    def unlabeled_rows(self) -> UnlabeledRows:
        """The estimate set: rows of a file or of a split that are neither demonstrations nor evaluated."""
        forbidden, settings = {*self._demonstrated(), *self.evaluated_texts}, self.settings
        seed = self.sampler.seed if settings.estimate_seed is None else settings.estimate_seed

        def allowed(row: Mapping[str, Any]) -> bool:
            return self.text_of(row) not in forbidden

        if settings.estimate_file is not None:
            return self._rows_of_file(settings.estimate_file, allowed, seed)
        docs = self.dataset[settings.estimate_split]
        pool = self.config.process_docs(docs) if self.config.process_docs else docs
        rows = draw_rows(pool, settings.estimate_size, seed, allowed=allowed)
        self._check_enough(f"the split {settings.estimate_split}", pool, rows)
        return UnlabeledRows(
            source=f"split:{settings.estimate_split}",
            docs=[without_label(row, self.label_column) for row in rows],
            gold=[gold_if_any(self.gold, row) for row in rows],
            seed=seed,
        )

    def _check_enough(self, source: str, pool: Collection[Doc], taken: Sequence[Doc]) -> None:
        """There are enough rows for the labels; where there are fewer than asked for, say why."""
        size, labels = self.settings.estimate_size, len(self.labels)
        if len(taken) == size:
            return
        evaluated = sum(self.text_of(row) in self.evaluated_texts for row in pool)
        left_out = (
            f"{evaluated} of them have the text of an evaluated row, {len(pool) - evaluated - len(taken)} that of a "
            f"demonstration"
        )
        if len(taken) < labels:
            raise TaskError(
                f"{self.task_name}: {source} has {len(taken)} usable rows of {len(pool)}, too few for {labels} labels "
                f"({left_out}); give more unlabeled rows."
            )
        everything_of_a_file = self.settings.estimate_file is not None and len(taken) == len(pool)
        if is_first_process() and not everything_of_a_file:
            logger.warning(
                "%s: estimate_size is %d, but %s has %d rows, and %s; the other %d are all taken",
                self.task_name, size, source, len(pool), left_out, len(taken),
            )  # fmt: skip

    def _rows_of_file(self, file: str, allowed: Callable[[Mapping[str, Any]], bool], seed: int) -> UnlabeledRows:
        """Columns that the file does not have are those of the first document."""
        provenance, docs = read_estimate_file(file, task=self.task_name, text_fields=self.settings.text_fields)
        usable = [doc for doc in docs if allowed(doc)][: self.settings.estimate_size]
        self._check_enough(file, docs, usable)
        blank = without_label(self.eval_docs[0], self.label_column)
        filled = [UnlabeledDoc({**blank, **doc}) for doc in usable]
        return UnlabeledRows(f"file:{file}", filled, [NO_GOLD] * len(usable), seed, provenance)

    # ------------------------------------------------------------------ checks before scoring

    def _check_choices(self, documents: Mapping[int, Document], further: Mapping[int, Doc]) -> None:
        """Every document has the labels of the first one, in their order."""
        if isinstance(self.config.doc_to_choice, (list, dict)):
            return
        for doc_id, document in documents.items():
            doc = further[doc_id] if doc_id in further else self.eval_docs[document.index]
            try:
                choices = list(self.doc_to_choice(doc))
            except Exception as error:  # of any function or template of the YAML
                raise TaskError(
                    f"{self.task_name}: doc_to_choice fails on {document} ({type(error).__name__}: {error}); a "
                    f"calibrated task has one fixed list of labels, give it as a list."
                ) from error
            if choices != self.labels:
                raise TaskError(
                    f"{self.task_name}: {document} has the labels {choices}, the first evaluated one {self.labels}; "
                    f"only tasks with one fixed list of labels in one order can be calibrated (process_docs may drop "
                    f"rows)."
                )

    def _check_shown_columns(self, blank: UnlabeledDoc, options: Mapping[str, Any]) -> None:
        """Refuse a column in the prompt that is not in text_fields: content-free prompts would show one document's."""
        shown = self.prompt_of(blank, options, "The content-free document")
        for column in self.eval_docs.column_names:
            if column in self.settings.text_fields or column not in blank:
                continue
            other = next((value for value in self.eval_docs[column] if value != blank[column]), blank[column])
            changed = UnlabeledDoc({**blank, column: other})
            if self.prompt_of(changed, options, f"A document with another {column}") != shown:
                raise TaskError(
                    f"{self.task_name}: the prompt shows the column {column}, which differs between documents, but "
                    f"calibration.text_fields is {', '.join(self.settings.text_fields)}, so that every content-free or "
                    f"generated input would show the first document's; add {column} to text_fields."
                )

    def _announce(self, plan: ScoringPlan, cache_requests: bool) -> None:
        task, record = self.config.task, plan.record
        if (warning := self._missing_demonstrations()) is not None:
            logger.warning("%s: %s", task, warning)
        if cache_requests:
            logger.warning(
                "%s: --cache_requests is ignored: its key lacks the seed and the estimate set. Building the requests "
                "takes seconds.",
                task,
            )
        counts = Counter(document.role for document in plan.documents.values())
        documents = " + ".join(f"{count} {role.replace('_', '-')}" for role, count in counts.items())
        logger.info(
            "%s: about to score %s documents x %d labels = %d requests behind %s of %d shots (seed %s)",
            task, documents, len(record.labels), counts.total() * len(record.labels), self._prompts_in_words(),
            record.num_fewshot, record.seed,
        )  # fmt: skip

    def _prompts_in_words(self) -> str:
        count = len(self.prompts)
        if count == 1:
            return "one prompt"
        own = "one without demonstrations, others with self-labelled ones"
        told = own if isinstance(self.sampler, FileSampler) else f"other {self.vary}"
        return f"each of {count} prompts ({told})"

    def _missing_demonstrations(self) -> str | None:
        """Which labels no demonstration shows, unless that was asked for."""
        shots = self.config.num_fewshot or 0
        shown = {gold_if_any(self.gold, row) for row in self.sampler.sample(shots)}
        missing = [label for k, label in enumerate(self.labels) if k not in shown]
        if not shown or not missing or self.settings.demonstration_counts is not None:
            return None
        return (
            f"none of the {shots} demonstrations of seed {self.sampler.seed} shows {', '.join(missing)}; choose their "
            f"labels with proca.demonstration_counts, or another --seed"
        )
