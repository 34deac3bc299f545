"""`CalibratedTask`: a multiple-choice task of lm-eval that also scores what its calibrators are fitted on."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import datasets
import numpy as np
from lm_eval.api.task import ConfigurableTask

from lm_eval_proca.errors import DistributedError, TaskError
from lm_eval_proca.harness.config import calibrators_of, check_config, check_labels, default_filters
from lm_eval_proca.harness.data import check_dataset, fixed_part, local_folder, read_folder
from lm_eval_proca.harness.estimate import UnlabeledDoc
from lm_eval_proca.harness.filters import give_out
from lm_eval_proca.harness.outcome import check_scores_dir, fit_scores
from lm_eval_proca.harness.plan import Plan, make_plan, missing_demonstrations
from lm_eval_proca.harness.requests import requests_of
from lm_eval_proca.harness.sampler import OnePromptSampler
from lm_eval_proca.harness.settings import read_settings, without_settings
from lm_eval_proca.harness.shards import ask_for_hidden_states

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
    def eval_docs(self) -> datasets.Dataset:
        """The evaluation documents; the same for every seed."""
        docs = super().eval_docs
        size = self.settings.eval_size
        return docs if size is None or size >= len(docs) else docs.select(fixed_part(len(docs), size))

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
        check_scores_dir(self.config.task, self.settings.scores_dir)
        if rank == 0:
            self._announce(cache_requests)
        super().build_all_requests(
            limit=limit, samples=samples, rank=rank, world_size=world_size, cache_requests=False, **prompt_options
        )
        for doc_id in list(plan.calibration_docs)[rank::world_size]:
            doc, name = plan.calibration_docs[doc_id], str(plan.documents[doc_id])
            self._instances += requests_of(self, doc_id, doc, prompt_options, name)
        ask_for_hidden_states(self._instances, self.calibrators.values(), self.settings.layers)

    def _announce(self, cache_requests: bool) -> None:
        task = self.config.task
        if (warning := missing_demonstrations(self)) is not None:
            logger.warning("%s: %s", task, warning)
        if cache_requests:
            logger.warning(
                "%s: --cache_requests is left aside, its key knows neither the seed nor the estimate set; building "
                "the requests anew takes seconds.",
                task,
            )
        logger.info("%s: about to score %s", task, self.plan.cost)

    # ------------------------------------------------------------------ results

    def apply_filters(self) -> None:
        """The fits, and what they make of the scores, as responses of their filters."""
        filters = {entry["name"]: entry["filter"] for entry in self.config.filter_list}
        fits, failures = fit_scores(
            self, self.plan, self.calibrators, filters=filters, scores_dir=self.settings.scores_dir
        )
        for ensemble in self._filters:
            if ensemble.name in fits:
                give_out(ensemble.name, fits[ensemble.name], self._instances, self.plan.documents)
            elif ensemble.name not in failures:
                ensemble.apply(self._instances)
