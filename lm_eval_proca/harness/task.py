"""`CalibratedTask`: a multiple-choice task of lm-eval that also scores what its calibrators are fitted on."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

import lm_eval_proca
from lm_eval_proca.errors import DistributedError, ProcaError, TaskError
from lm_eval_proca.fitting import fit_all
from lm_eval_proca.harness.config import calibrators_of, check_config, check_labels, default_filters
from lm_eval_proca.harness.data import check_dataset, fixed_part, local_folder, read_folder
from lm_eval_proca.harness.estimate import UnlabeledDoc
from lm_eval_proca.harness.filters import give_out
from lm_eval_proca.harness.gather import compute_once, gather, is_first_process
from lm_eval_proca.harness.plan import Plan, make_plan
from lm_eval_proca.harness.sampler import OnePromptSampler
from lm_eval_proca.harness.settings import read_settings, without_settings
from lm_eval_proca.harness.shards import merge, score_table, scored_documents
from lm_eval_proca.identity import score_table_name
from lm_eval_proca.score_table import ScoreTable

logger = logging.getLogger("lm_eval.proca")  # below lm-eval's own logger, the only one that its command shows

DEFAULT_SEED = 1234
"""lm-eval's own default for few-shot examples, for callers that never set one."""

Doc = dict[str, Any]


class CalibratedTask(ConfigurableTask):
    """Use from YAML as `class: !function lm_eval_proca.CalibratedTask`, with a `calibration:` block.

    Every evaluation document is scored as in the same task without this class. Behind the same prompt come the
    estimate documents and the content-free documents, with document ids after those of the evaluation, so that
    lm-eval scores but never counts them. A document's way: `build_all_requests` makes the plan and the requests,
    lm-eval has them scored, `apply_filters` gathers the scores into one table, keeps it if asked, and fits.
    """

    plan: Plan

    def __init__(
        self,
        data_dir: str | None = None,
        cache_dir: str | None = None,
        download_mode: Any = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        config = dict(config or {})
        config.pop("class", None)
        name = str(config.get("task"))
        metadata = config.get("metadata") or {}
        self.settings = read_settings(name, config.pop("calibration", {}), metadata)
        config["metadata"] = without_settings(metadata)
        config.setdefault("metric_list", [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}])
        config.setdefault("filter_list", default_filters())
        check_config(name, config, self.settings.text_fields)
        self.calibrators = calibrators_of(name, config["filter_list"])

        super().__init__(data_dir, cache_dir, download_mode, config)

        if self.multiple_input or self.multiple_target:
            raise TaskError(
                f"{name}: a calibrated task has one input and one gold label per document; multiple inputs or "
                f"targets cannot be calibrated."
            )
        check_labels(name, self.labels, self.settings)
        self.sampler = OnePromptSampler(
            self._fewshot_pool(),
            task=name,
            allowed=lambda row: self.text_of(row) not in self.evaluated_texts,
            label_of=self.gold,
            counts=self.settings.demonstration_counts,
            order_seed=self.settings.order_seed,
            first=self.fewshot_cfg.sampler == "first_n",
        )
        self.set_fewshot_seed(DEFAULT_SEED)

    # ------------------------------------------------------------------ rows

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """The hub's dataset, or its copy in `proca.data_dir`."""
        local = local_folder(self.config, self.settings)
        try:
            if local is not None:
                self.dataset = read_folder(local)
            elif self.config.custom_dataset is not None:  # as the base class does, less its advice on --metadata
                self.dataset = self.config.custom_dataset(**self.config.metadata, **(dataset_kwargs or {}))
            else:
                super().download(dataset_kwargs, **kwargs)
        except Exception as error:
            source, reason = local or self.config.dataset_path, " ".join(str(error).split())
            raise TaskError(
                f"{self.config.task}: cannot load {source} ({type(error).__name__}: {reason}); check the name, the "
                f"network, or give a folder of local copies as --metadata proca.data_dir=DIR."
            ) from error
        check_dataset(self.dataset, self.config, self.settings)

    @cached_property
    def _eval_docs(self) -> datasets.Dataset:
        docs = super().eval_docs
        size = self.settings.eval_size
        return docs if size is None or size >= len(docs) else docs.select(fixed_part(len(docs), size))

    @property
    def eval_docs(self) -> datasets.Dataset:
        """The evaluation documents; the same for every seed."""
        return self._eval_docs

    @cached_property
    def evaluated_texts(self) -> set[tuple[str, ...]]:
        columns = [self.eval_docs[name] for name in self.settings.text_fields]
        return {tuple(str(text).strip() for text in row) for row in zip(*columns, strict=True)}

    @cached_property
    def estimate_pool(self) -> datasets.Dataset:
        """The rows that the estimate set is drawn from."""
        docs = self.dataset[self.settings.estimate_split]
        return self.config.process_docs(docs) if self.config.process_docs else docs

    def fewshot_docs(self) -> None:
        """Nothing for the base class, which would copy the whole split into a list; see `_fewshot_pool`."""
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
        """As in lm-eval, which also asks for the target of documents that have none, and then drops it."""
        if isinstance(doc, UnlabeledDoc):
            return None
        return super().doc_to_target(doc, doc_to_target)

    def gold(self, doc: Mapping[str, Any]) -> int:
        """Index of a document's label."""
        target = self.doc_to_target(doc)
        if isinstance(target, str) and target in self.labels:
            return self.labels.index(target)
        if isinstance(target, (int, np.integer)) and 0 <= target < len(self.labels):
            return int(target)
        raise TaskError(
            f"{self.config.task}: the label {target!r} of a row is none of the {len(self.labels)} labels "
            f"{self.labels}; correct doc_to_target or doc_to_choice, or drop such rows with process_docs."
        )

    def context(self, doc: Doc, prompt_options: Mapping[str, Any], name: str) -> str:
        """The prompt of a document that lm-eval does not know; `name` is for the sentence, should it have none."""
        options = {key: value for key, value in prompt_options.items() if key != "tokenizer_name"}
        try:
            return self.fewshot_context(
                doc, num_fewshot=self.config.num_fewshot or 0, gen_prefix=self.doc_to_prefix(doc), **options
            )
        except TaskError:
            raise
        except Exception as error:  # of any function or template of the YAML
            reason = " ".join(str(error).split())
            raise TaskError(
                f"{self.config.task}: {name} cannot be put into the prompt ({type(error).__name__}: {reason}); make "
                f"doc_to_text fit every text, or drop such rows with process_docs."
            ) from error

    # ------------------------------------------------------------------ requests

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
        rank: int = 0,
        world_size: int = 1,
        cache_requests: bool = False,
        rewrite_requests_cache: bool = False,
        **prompt_options: Any,
    ) -> None:
        """Requests of this rank's evaluation documents, then of its share of those that calibrators are fitted on."""
        self.plan = plan = make_plan(self, limit=limit, samples=samples, prompt_options=prompt_options)
        evaluated = plan.record["eval_rows"]
        if evaluated < world_size:
            raise DistributedError(
                f"{self.config.task}: {evaluated} evaluation documents are fewer than the {world_size} processes "
                f"that share them; raise --limit or start fewer processes."
            )
        self._check_scores_dir()
        if rank == 0:
            self._announce(cache_requests)
        super().build_all_requests(
            limit=limit, samples=samples, rank=rank, world_size=world_size, cache_requests=False, **prompt_options
        )
        for doc_id in list(plan.calibration_docs)[rank::world_size]:
            self._instances += self._requests_for(doc_id, prompt_options)
        if any(calibrator.uses_representations for calibrator in self.calibrators.values()) and self.settings.layers:
            for request in self._instances:
                if request.idx == 0:  # all labels of a document stand behind the same prompt
                    request.layers = self.settings.layers

    def _announce(self, cache_requests: bool) -> None:
        task = self.config.task
        for warning in self.plan.warnings:
            logger.warning("%s: %s", task, warning)
        if cache_requests:
            logger.warning(
                "%s: --cache_requests is left aside, its key knows neither the seed nor the estimate set; building "
                "the requests anew takes seconds.",
                task,
            )
        logger.info("%s: about to score %s", task, self.plan.cost)

    def _check_scores_dir(self) -> None:
        if self.settings.scores_dir is not None:
            try:
                Path(self.settings.scores_dir).expanduser().mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise TaskError(
                    f"{self.config.task}: proca.scores_dir={self.settings.scores_dir} cannot be a folder for score "
                    f"tables ({error.strerror}); name another one."
                ) from error

    def _requests_for(self, doc_id: int, prompt_options: Mapping[str, Any]) -> list[Instance]:
        doc = self.plan.calibration_docs[doc_id]
        return self.construct_requests(
            doc=doc,
            ctx=self.context(doc, prompt_options, str(self.plan.documents[doc_id])),
            metadata=(self.config["task"], doc_id, self.config.repeats),
            apply_chat_template=prompt_options.get("apply_chat_template", False),
            chat_template=prompt_options.get("chat_template"),
        )

    # ------------------------------------------------------------------ results

    def apply_filters(self) -> None:
        """One table of the scores of all processes, kept if asked; then the fits, and what they make of the scores.

        Scores that cannot be calibrated cost the calibrated rows of this task, never the raw row or another task.
        """
        documents = self.plan.documents
        shards = gather(scored_documents(self._instances, documents))
        scored = merge(shards, documents.values(), task=self.task_name)
        cut = [one.truncated for one in scored if one.truncated is not None]
        record = {**self.plan.record, "truncated_prompts": sum(cut) if cut else None}
        table = score_table(scored, self._table_metadata(record))
        if self.settings.scores_dir is not None:
            self._keep(table, Path(self.settings.scores_dir).expanduser())

        # Made once and handed to all processes: a tie within rounding is decided the same way everywhere.
        fits, failures = compute_once(lambda: fit_all(table, self.calibrators))
        for ensemble in self._filters:
            if ensemble.name in fits:
                give_out(ensemble.name, fits[ensemble.name], self._instances, documents)
            elif ensemble.name not in failures:
                ensemble.apply(self._instances)
        self._log_failures(failures)
        record["fits"] = {name: fit.calibrator.fit_report() for name, fit in fits.items()}
        record["not_calibrated"] = failures
        self.config.metadata["proca"] = record  # lm-eval writes the metadata into its results file

    def _log_failures(self, failures: Mapping[str, str]) -> None:
        if is_first_process():
            for reason in dict.fromkeys(failures.values()):
                names = [name for name, given in failures.items() if given == reason]
                logger.warning("%s: no row for %s: %s", self.config.task, ", ".join(names), reason)

    def _keep(self, table: ScoreTable, folder: Path) -> None:
        """Write the score table; a full disk must not cost the results of all tasks."""
        try:
            path = compute_once(lambda: table.save(folder / score_table_name(table.metadata)))
        except (OSError, ProcaError) as error:  # the latter where another process has failed
            logger.error("%s: the score table cannot be written to %s (%s)", self.config.task, folder, error)
        else:
            if is_first_process():
                logger.info("%s: score table written to %s", self.config.task, path)

    def _table_metadata(self, record: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **record,
            "task": self.config.task,
            "task_version": self.VERSION,
            **self.plan.origin,
            "filters": {entry["name"]: entry["filter"] for entry in self.config.filter_list},
            "versions": {
                "lm-eval-proca": lm_eval_proca.__version__,
                **{
                    name: importlib.metadata.version(name)
                    for name in ("lm-eval", "transformers", "torch", "scikit-learn")
                },
            },
        }
