"""`CalibratedTask`: a multiple-choice task of lm-eval that also scores what its calibrators are fitted on."""

from __future__ import annotations

import importlib.metadata
import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

import lm_eval_proca
from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator
from lm_eval_proca.errors import DistributedError, ScoreTableError, TaskError
from lm_eval_proca.harness.config import check_config, default_filters, takes_first_shots
from lm_eval_proca.harness.estimate import (
    UnlabeledDoc,
    content_free_docs,
    draw_estimate_rows,
    fingerprint,
    read_estimate_file,
    without_label,
)
from lm_eval_proca.harness.filters import calibrating
from lm_eval_proca.harness.gather import compute_once, gather
from lm_eval_proca.harness.sampler import OnePromptSampler
from lm_eval_proca.harness.settings import DATA_DIR_VARIABLE, read_settings, without_settings
from lm_eval_proca.harness.shards import Row, Shard, merge, score_table
from lm_eval_proca.score_table import NO_GOLD, ScoreTable, without_secrets

logger = logging.getLogger("lm_eval.proca")  # below lm-eval's own logger, the only one that its command shows

DEFAULT_SEED = 1234
"""lm-eval's own default for few-shot examples, for callers that never set one."""

EVAL_SEED = 0
"""Decides, once and for all, which evaluation documents `eval_size` and `--limit` keep."""

Doc = dict[str, Any]


class CalibratedTask(ConfigurableTask):
    """Use from YAML as `class: !function lm_eval_proca.CalibratedTask`, with a `calibration:` block.

    Every evaluation document is scored as in the same task without this class. Behind the same prompt come the
    estimate documents and the content-free documents, with document ids after those of the evaluation, so that
    lm-eval scores but never counts them. `apply_filters` gathers all scores and lets the filters fit on them.
    """

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
        # `proca` in the metadata is from here on what the run did, not what it was asked.
        self._record: dict[str, Any] = {}
        config["metadata"] = {**without_settings(metadata), "proca": self._record}
        config.setdefault("metric_list", [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}])
        config.setdefault("filter_list", default_filters())
        check_config(name, config, self.settings.text_fields)
        self._first_shots = takes_first_shots(name, config)

        super().__init__(data_dir, cache_dir, download_mode, config)

        self._check_labels()
        self.sampler = OnePromptSampler(
            self._fewshot_pool(),
            task=name,
            allowed=lambda row: self._text_of(row) not in self.evaluated_texts,
            label_of=self._gold,
            counts=self.settings.demonstration_counts,
            order_seed=self.settings.order_seed,
            first=self._first_shots,
        )
        self.set_fewshot_seed(DEFAULT_SEED)

    # ------------------------------------------------------------------ data

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """The hub's dataset, or its copy in `proca.data_dir`."""
        local = self._local_folder()
        try:
            if local is not None:
                self.dataset = _read_folder(local)
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
        self._check_columns()

    def _local_folder(self) -> Path | None:
        names_its_files = "data_files" in (self.config.dataset_kwargs or {}) and self.settings.data_folder is None
        if self.settings.data_dir is None or self.config.custom_dataset is not None or names_its_files:
            return None
        hub_name = self.config.dataset_name or Path(str(self.config.dataset_path)).name
        folder = Path(self.settings.data_dir).expanduser() / (self.settings.data_folder or hub_name)
        if not folder.is_dir():
            raise TaskError(
                f"{self.config.task}: there is no folder {folder}; proca.data_dir (or {DATA_DIR_VARIABLE}) must hold "
                f"this dataset as {folder.name}/<split>.jsonl, or be left out to read the hub."
            )
        return folder

    def _check_columns(self) -> None:
        task, text_fields = self.config.task, self.settings.text_fields
        eval_split = self.config.test_split or self.config.validation_split
        needed = {eval_split, self.config.training_split, self.fewshot_cfg.split}
        if self.settings.estimate_file is None:
            needed.add(self.settings.estimate_split)
        for split in sorted(filter(None, needed)):
            if split not in self.dataset:
                raise TaskError(
                    f"{task}: the dataset has no split '{split}', only {', '.join(sorted(self.dataset))}; name one of "
                    f"these in the YAML (test_split, validation_split, fewshot_split, calibration.estimate_split)."
                )
        if self.config.process_docs is None:
            for split in sorted({eval_split, self.settings.estimate_split} & set(self.dataset)):
                missing = [name for name in text_fields if name not in self.dataset[split].column_names]
                if missing:
                    raise TaskError(
                        f"{task}: the split '{split}' has no column {', '.join(missing)}, only "
                        f"{', '.join(self.dataset[split].column_names)}; correct calibration.text_fields."
                    )

    @cached_property
    def _eval_docs(self) -> datasets.Dataset:
        docs = super().eval_docs
        size = self.settings.eval_size
        return docs if size is None or size >= len(docs) else docs.select(_fixed_part(len(docs), size))

    @property
    def eval_docs(self) -> datasets.Dataset:
        """The evaluation documents; the same for every seed."""
        return self._eval_docs

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

    @cached_property
    def _estimate_pool(self) -> datasets.Dataset:
        docs = self.dataset[self.settings.estimate_split]
        return self.config.process_docs(docs) if self.config.process_docs else docs

    def _text_of(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]).strip() for name in self.settings.text_fields)

    @cached_property
    def evaluated_texts(self) -> set[tuple[str, ...]]:
        columns = [self.eval_docs[name] for name in self.settings.text_fields]
        return {tuple(str(text).strip() for text in row) for row in zip(*columns, strict=True)}

    # ------------------------------------------------------------------ labels

    @cached_property
    def labels(self) -> list[str]:
        """The label words, in the order of the score columns."""
        return list(self.doc_to_choice(self.eval_docs[0]))

    @property
    def _label_column(self) -> str | None:
        target = self.config.doc_to_target
        return target if isinstance(target, str) and target in self.features else None

    def doc_to_target(self, doc: Mapping[str, Any], doc_to_target: Any = None) -> Any:
        """As in lm-eval, which also asks for the target of documents that have none, and then drops it."""
        if isinstance(doc, UnlabeledDoc):
            return None
        return super().doc_to_target(doc, doc_to_target)

    def _gold(self, doc: Mapping[str, Any]) -> int:
        target = self.doc_to_target(doc)
        if isinstance(target, str) and target in self.labels:
            return self.labels.index(target)
        if isinstance(target, (int, np.integer)) and 0 <= target < len(self.labels):
            return int(target)
        raise TaskError(
            f"{self.config.task}: the label {target!r} of a row is none of the {len(self.labels)} labels "
            f"{self.labels}; correct doc_to_target or doc_to_choice, or drop such rows with process_docs."
        )

    def _gold_if_any(self, doc: Mapping[str, Any]) -> int:
        try:
            return self._gold(doc)
        except Exception:  # an unlabeled row may fail in any template or function of the YAML
            return NO_GOLD

    def _check_labels(self) -> None:
        task = self.config.task
        if self.multiple_input or self.multiple_target:
            raise TaskError(
                f"{task}: a calibrated task has one input and one gold label per document; multiple inputs or "
                f"targets cannot be calibrated."
            )
        words = [label.strip() for label in self.labels]
        if len(words) < 2:
            raise TaskError(f"{task}: calibration needs at least two labels, doc_to_choice gives {self.labels}.")
        twice = sorted({word for word in words if words.count(word) > 1})
        if twice:
            raise TaskError(
                f"{task}: the label word {twice[0]!r} stands for two labels in {self.labels}; make them differ."
            )
        size = self.settings.estimate_size
        if self.settings.estimate_file is None and size < len(words):
            raise TaskError(
                f"{task}: an estimate set of {size} documents is too small for {len(words)} labels; set "
                f"proca.estimate_size to at least {len(words)}, better a hundred per label."
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
        self._seed = seed

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
        rows = _fixed_part(len(self.eval_docs), int(limit))
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
        """Requests of this rank's evaluation documents, then of its share of the estimate and content-free ones."""
        if cache_requests:
            logger.warning(
                "%s: --cache_requests is left aside, its key knows neither the seed nor the estimate set; building "
                "the requests anew takes seconds.",
                self.config.task,
            )
        evaluated = self._evaluated_rows(limit, samples)
        if len(evaluated) < world_size:
            raise DistributedError(
                f"{self.config.task}: {len(evaluated)} evaluation documents are fewer than the {world_size} processes "
                f"that share them; raise --limit or start fewer processes."
            )
        self._check_evaluated(evaluated)
        calibration_docs = self._calibration_docs()
        self._keep_record(evaluated, calibration_docs, limit, prompt_options)
        if rank == 0:
            self._announce(len(evaluated), calibration_docs)

        super().build_all_requests(
            limit=limit, samples=samples, rank=rank, world_size=world_size, cache_requests=False, **prompt_options
        )
        # With --samples, lm-eval numbers the chosen documents anew.
        true_index = dict(enumerate(evaluated)) if samples else {i: i for i in evaluated}
        self._rows_of: dict[int, tuple[str, int, int]] = {}
        for instance in self._instances:
            if instance.doc_id not in self._rows_of:
                self._rows_of[instance.doc_id] = ("eval", true_index[instance.doc_id], self._gold(instance.doc))
        self._expected = {"eval": evaluated}
        next_id = len(self.eval_docs)
        for role, docs in calibration_docs.items():
            self._expected[role] = list(range(len(docs)))
            for index in range(rank, len(docs), world_size):
                doc, gold = docs[index]
                self._rows_of[next_id + index] = (role, index, gold)
                self._instances += self._requests_for(doc, next_id + index, prompt_options)
            next_id += len(docs)

    def _evaluated_rows(self, limit: int | None, samples: list[int] | None) -> list[int]:
        """Indices of all evaluation documents of this run, over all ranks, in the order lm-eval walks them."""
        total = len(self.eval_docs)
        if samples:
            return sorted(set(samples))
        return _fixed_part(total, int(limit)) if limit else list(range(total))

    def _check_evaluated(self, evaluated: Sequence[int]) -> None:
        labels_vary = not isinstance(self.config.doc_to_choice, (list, dict))
        for i in evaluated:
            doc = self.eval_docs[i]
            self._gold(doc)
            if labels_vary and list(self.doc_to_choice(doc)) != self.labels:
                raise TaskError(
                    f"{self.config.task}: document {i} has the labels {self.doc_to_choice(doc)}, the first one "
                    f"{self.labels}; only tasks with one fixed list of labels can be calibrated."
                )

    def _calibration_docs(self) -> dict[str, list[tuple[UnlabeledDoc, int]]]:
        """Documents and their gold label, by role, for the roles that the filters fit on.

        The gold label goes to the score table for later analyses; a calibrator is handed scores and nothing else.
        """
        functions = {step["function"] for entry in self.config.filter_list for step in entry["filter"]}
        roles = {get_calibrator(name).fits_on for name in functions & set(CALIBRATORS)}
        docs: dict[str, list[tuple[UnlabeledDoc, int]]] = {}
        if "estimate" in roles:
            docs["estimate"] = self._estimate_docs()
        if "content_free" in roles:
            blank = content_free_docs(self.eval_docs[0], self.settings.text_fields, self._label_column)
            docs["content_free"] = [(doc, NO_GOLD) for doc in blank]
        return docs

    def _estimate_docs(self) -> list[tuple[UnlabeledDoc, int]]:
        task, settings = str(self.config.task), self.settings
        demonstrated = {self._text_of(row) for row in self.sampler.sample(self.config.num_fewshot or 0)}
        if settings.estimate_file is not None:
            self._generated_by, docs = read_estimate_file(
                settings.estimate_file, task=task, text_fields=settings.text_fields
            )
            forbidden = demonstrated | self.evaluated_texts
            docs = [doc for doc in docs if self._text_of(doc) not in forbidden][: settings.estimate_size]
            if len(docs) < len(self.labels):
                raise TaskError(
                    f"{task}: {settings.estimate_file} has {len(docs)} usable documents, too few for "
                    f"{len(self.labels)} labels; generate more."
                )
            blank = without_label(self.eval_docs[0], self._label_column)
            return [(UnlabeledDoc({**blank, **doc}), NO_GOLD) for doc in docs]
        rows = draw_estimate_rows(
            self._estimate_pool,
            settings.estimate_size,
            self._estimate_seed,
            task=task,
            allowed=lambda row: (
                self._text_of(row) not in demonstrated and self._text_of(row) not in self.evaluated_texts
            ),
        )
        drawn = (self._estimate_pool[i] for i in rows)
        return [(without_label(row, self._label_column), self._gold_if_any(row)) for row in drawn]

    @property
    def _estimate_seed(self) -> int:
        return self._seed if self.settings.estimate_seed is None else self.settings.estimate_seed

    def _context(self, doc: Doc, prompt_options: Mapping[str, Any]) -> str:
        options = {key: value for key, value in prompt_options.items() if key != "tokenizer_name"}
        return self.fewshot_context(
            doc, num_fewshot=self.config.num_fewshot or 0, gen_prefix=self.doc_to_prefix(doc), **options
        )

    def _requests_for(self, doc: Doc, doc_id: int, prompt_options: Mapping[str, Any]) -> list[Instance]:
        return self.construct_requests(
            doc=doc,
            ctx=self._context(doc, prompt_options),
            metadata=(self.config["task"], doc_id, self.config.repeats),
            apply_chat_template=prompt_options.get("apply_chat_template", False),
            chat_template=prompt_options.get("chat_template"),
        )

    def _announce(self, evaluated: int, calibration_docs: Mapping[str, Sequence[Any]]) -> None:
        counts = {"eval": evaluated, **{role: len(docs) for role, docs in calibration_docs.items()}}
        logger.info(
            "%s: about to score %s documents x %d labels = %d requests behind one prompt of %d shots (seed %d)",
            self.config.task,
            " + ".join(f"{count} {role.replace('_', '-')}" for role, count in counts.items()),
            len(self.labels),
            sum(counts.values()) * len(self.labels),
            self.config.num_fewshot or 0,
            self._seed,
        )

    # ------------------------------------------------------------------ results

    def apply_filters(self) -> None:
        """Gather the scores of all ranks, fit, calibrate; keep what happened and, if asked, the score table."""
        table = self._score_table(gather(self._local_scores()))
        fits = {}
        for ensemble in self._filters:
            with calibrating(table) as run:
                ensemble.apply(self._instances)
            for calibrator in run.fitted:
                fits[ensemble.name] = calibrator.fit_report()
        self._record["fits"] = fits
        if self.settings.scores_dir is not None:
            folder = Path(self.settings.scores_dir).expanduser()
            path = compute_once(lambda: self._save(table, folder))
            logger.info("%s: score table written to %s", self.config.task, path)

    def _save(self, table: ScoreTable, folder: Path) -> Path:
        """One file per model, prompt and rows: the same run again replaces it, another never does."""
        origin = [table.metadata[key] for key in ("model", "model_args", "prompt_hash", "estimate_hash", "eval_hash")]
        name = (
            f"{self.config.task}-{self.config.num_fewshot or 0}shot-seed{self._seed}-{fingerprint(origin)[:8]}.parquet"
        )
        try:
            return table.save(folder / name)
        except OSError as error:
            raise ScoreTableError(
                f"{self.config.task}: the score table cannot be written to {folder} ({error.strerror}); correct "
                f"proca.scores_dir."
            ) from error

    def _local_scores(self) -> Shard:
        """This rank's rows, and its bad news if a score is not a number."""
        rows: list[Row] = []
        problem = None
        labels = len(self.labels)
        for start in range(0, len(self._instances), labels):
            instances = self._instances[start : start + labels]
            role, index, gold = self._rows_of[instances[0].doc_id]
            # The evaluator pads ranks with copies of requests, so an instance may hold its response twice.
            scores = [float(instance.resps[0][0]) for instance in instances]
            bad = next((k for k, score in enumerate(scores) if not np.isfinite(score)), None)
            if bad is not None and problem is None:
                problem = (
                    f"{self.config.task}: the model gave {scores[bad]} as the score of label {self.labels[bad]!r} for "
                    f"{role.replace('_', '-')} document {index}; calibration needs finite scores (try another dtype)."
                )
            cut = [instance.truncated for instance in instances if hasattr(instance, "truncated")]
            rows.append(Row(role, index, gold, scores, any(cut) if cut else None))
        return Shard(rows, problem)

    def _score_table(self, shards: Sequence[Shard]) -> ScoreTable:
        rows = merge(shards, self._expected, task=str(self.config.task))
        known = [row.truncated for row in rows if row.truncated is not None]
        self._record["truncated_prompts"] = sum(known) if known else None
        return score_table(rows, self._table_metadata())

    def _keep_record(
        self,
        evaluated: Sequence[int],
        calibration_docs: Mapping[str, Sequence[tuple[UnlabeledDoc, int]]],
        limit: int | None,
        prompt_options: Mapping[str, Any],
    ) -> None:
        shots = self.config.num_fewshot or 0
        estimate = [doc for doc, _ in calibration_docs.get("estimate", ())]
        empty = content_free_docs(self.eval_docs[0], self.settings.text_fields, self._label_column)[1]
        eval_docs = (self.eval_docs[i] for i in evaluated)
        generated = self.settings.estimate_file
        self._record.clear()
        self._record.update(
            version=lm_eval_proca.__version__,
            labels=self.labels,
            num_fewshot=shots,
            seed=self._seed,
            demonstrations=self.sampler.indices(shots),
            demonstration_counts=self.settings.demonstration_counts,
            order_seed=self.settings.order_seed,
            eval_rows=len(evaluated),
            limit=limit,
            estimate_size=len(estimate),
            estimate_seed=self._estimate_seed,
            estimate_source=f"file:{generated}" if generated else f"split:{self.settings.estimate_split}",
            prompt_hash=fingerprint([self._context(empty, prompt_options)]),
            estimate_hash=fingerprint(self._text_of(doc) for doc in estimate),
            eval_hash=fingerprint([self._text_of(doc), self._gold(doc)] for doc in eval_docs),
        )
        if generated:
            self._record["generated_by"] = self._generated_by

    def _table_metadata(self) -> dict[str, Any]:
        ours = {"proca", "version", "config_source"}
        model_args = without_secrets({key: value for key, value in self.config.metadata.items() if key not in ours})
        return {
            **{key: value for key, value in self._record.items() if key != "fits"},
            "task": self.config.task,
            "task_version": self.VERSION,
            "model": str(model_args.get("pretrained") or model_args.get("model") or "unknown"),
            "model_args": {key: str(value) for key, value in model_args.items()},
            "filters": {entry["name"]: entry["filter"] for entry in self.config.filter_list},
            "versions": {
                "lm-eval-proca": lm_eval_proca.__version__,
                **{
                    name: importlib.metadata.version(name)
                    for name in ("lm-eval", "transformers", "torch", "scikit-learn")
                },
            },
        }


def _read_folder(folder: Path) -> datasets.DatasetDict:
    """`<split>.jsonl` files, whose columns may differ (an estimate split needs no label); or what `datasets` reads."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        return datasets.load_dataset(str(folder))
    return datasets.DatasetDict({file.stem: datasets.Dataset.from_json(str(file)) for file in files})


def _fixed_part(total: int, size: int) -> list[int]:
    """Indices of `size` of `total` documents, mixed over the whole set, ascending; a larger part contains a smaller.

    Document 0 is always one of them, because `--write_out` shows that document or none.
    """
    order = list(range(1, total))
    random.Random(EVAL_SEED).shuffle(order)
    return sorted([0, *order][:size])
