"""The documents of a run: rows to evaluate, rows to demonstrate, and rows to fit calibrators on."""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import datasets
from jinja2 import TemplateError, UndefinedError
from lm_eval.api.samplers import ContextSampler
from lm_eval.config.task import TaskConfig
from lm_eval.utils import apply_template

from lm_eval_proca.errors import TaskError, did_you_mean
from lm_eval_proca.harness.prompts import Prompt
from lm_eval_proca.harness.settings import DATA_DIR_VARIABLE, FILE_FORMATS, Settings
from lm_eval_proca.scores.identity import data_folder
from lm_eval_proca.scores.record import EVALUATION_ROWS

Doc = dict[str, Any]

EVAL_SEED = 0
"""Decides, once and for all, which evaluation documents `eval_size` and `--limit` keep."""

CONTENT_FREE_TEXTS = ("N/A", "", "[MASK]")
"""The three content-free inputs of contextual calibration (Zhao et al. 2021), which the paper compares with."""

DOMAIN_TEXTS = 20
"""How many texts of random words domain-context calibration (Fei et al. 2023) is fitted on."""

ESTIMATE_FILE_KEY = "lm_eval_proca"
"""The first line of a generated estimate set is {ESTIMATE_FILE_KEY: provenance}; every other line is a document."""


@dataclass(frozen=True)
class Document:
    """What a document is scored for, its index among those, and its gold label or NO_GOLD."""

    role: str
    index: int
    gold: int

    def __str__(self) -> str:
        return f"{self.role.replace('_', '-')} document {self.index}"


class UnlabeledDoc(Doc):
    """A document without a target. Its label column, if it had one, was removed."""


class SelfLabelledDoc(Doc):
    """A demonstration whose label a model has given; `target` is the index of that label."""

    target: int


@dataclass(frozen=True)
class UnlabeledRows:
    """The rows that calibrators are fitted on, and where they come from: a split, a file, or the evaluation rows.

    `gold` holds their labels, if the data has any; only score tables keep them. `docs` is empty if the evaluation rows
    serve: each of them is then calibrated by a fit that has not seen it (see scores/fitting.py).
    """

    source: str = EVALUATION_ROWS
    docs: Sequence[Doc] = ()
    gold: Sequence[int] = ()
    seed: int | None = None
    generated_by: Mapping[str, Any] = field(default_factory=dict)


# ------------------------------------------------------------------ the dataset


def local_folder(config: TaskConfig, settings: Settings) -> Path | None:
    """The folder of `proca.data_dir` that stands in for the hub's dataset, if one does."""
    folder = data_folder(vars(config), vars(settings))
    if folder is not None and not folder.is_dir():
        raise TaskError(
            f"{config.task}: there is no folder {folder}; proca.data_dir (or {DATA_DIR_VARIABLE}) must hold this "
            f"dataset as {folder.name}/<split>.jsonl, or be left out to read the hub."
        )
    return folder


def read_folder(folder: Path) -> datasets.DatasetDict:
    """`<split>.jsonl` files, whose columns may differ (an estimate split needs no label); or what `datasets` reads."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        return datasets.load_dataset(str(folder))
    return datasets.DatasetDict({file.stem: datasets.Dataset.from_json(str(file)) for file in files})


def read_files(config: TaskConfig) -> datasets.DatasetDict | None:
    """The files that a YAML names for its splits, each by itself: an estimate split needs no label. None without."""
    options = dict(config.dataset_kwargs or {})
    files = options.pop("data_files", None)
    if config.dataset_path not in FILE_FORMATS or not isinstance(files, Mapping):
        return None
    load = partial(datasets.load_dataset, config.dataset_path, config.dataset_name, **options)
    return datasets.DatasetDict({split: load(data_files=of_split, split="train") for split, of_split in files.items()})


def in_one_line(error: BaseException) -> str:
    """What went wrong, and below it the first cause: `datasets` says only that a dataset was not generated."""
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    told = [f"{type(one).__name__}: {' '.join(str(one).split())}" for one in (error, cause)]
    return ", because of ".join(dict.fromkeys(told))


def check_dataset(dataset: datasets.DatasetDict, config: TaskConfig, settings: Settings) -> None:
    """The splits and text columns that the YAML names are there."""
    eval_split = config.test_split or config.validation_split
    needed = {eval_split, config.training_split, config.fewshot_config.split}
    if settings.estimate_file is None:
        needed.add(settings.estimate_split)
    for split in sorted(filter(None, needed)):
        if split not in dataset:
            raise TaskError(
                f"{config.task}: the dataset has no split '{split}', only {', '.join(sorted(dataset))}; name one of "
                f"these in the YAML (test_split, validation_split, fewshot_split, calibration.estimate_split)."
            )
    if config.process_docs is not None:  # which may make columns
        return
    for split in sorted({eval_split, settings.estimate_split} & set(dataset)):
        missing = [name for name in settings.text_fields if name not in dataset[split].column_names]
        if missing:
            raise TaskError(
                f"{config.task}: the split '{split}' has no column {', '.join(missing)}, only "
                f"{', '.join(dataset[split].column_names)}; correct calibration.text_fields."
            )


def check_templates(config: TaskConfig, doc: Doc) -> None:
    """The columns that templates of the YAML name are there; `doc` is the first document."""
    words = config.doc_to_choice if isinstance(config.doc_to_choice, (list, tuple)) else ()
    for key in ("doc_to_text", "doc_to_target", "doc_to_choice"):
        template = getattr(config, key)
        if not isinstance(template, str) or template in doc or (key == "doc_to_target" and template in words):
            continue
        if re.fullmatch(r"[^\W\d]\w*", template):  # lm-eval would take the word itself for the text of every document
            raise TaskError(f"{config.task}: {key}: {no_column(template, doc)}")
        try:
            apply_template(template, doc)
        except UndefinedError as error:
            raise TaskError(f"{config.task}: {key}: {in_words(error, doc)}") from error
        except TemplateError as error:
            raise TaskError(f"{config.task}: {key} is not a template that Jinja can read: {error}.") from error


def no_column(name: str, known: Collection[str]) -> str:
    return f"no column {name}; there are {', '.join(known)}.{did_you_mean(name, known)}"


def in_words(error: UndefinedError, doc: Mapping[str, Any]) -> str:
    """What Jinja says of a variable that is not there."""
    name = re.fullmatch(r"'(.+)' is undefined", str(error))
    return no_column(name[1], doc) if name else f"{error}."


def fixed_part(total: int, size: int) -> list[int]:
    """Indices of `size` of `total` documents, mixed over the whole set, ascending; a larger part contains a smaller.

    Document 0 is always one of them, because `--write_out` shows that document or none.
    """
    order = list(range(1, total))
    random.Random(EVAL_SEED).shuffle(order)
    return sorted([0, *order][:size])


# ------------------------------------------------------------------ what calibrators are fitted on


def without_label(row: Mapping[str, Any], label_column: str | None) -> UnlabeledDoc:
    return UnlabeledDoc({key: value for key, value in row.items() if key != label_column})


def content_free_docs(
    example: Mapping[str, Any], text_fields: Sequence[str], label_column: str | None
) -> list[UnlabeledDoc]:
    """One document per content-free text, which stands in for all text fields together."""
    blank = without_label(example, label_column)
    return [UnlabeledDoc({**blank, **dict.fromkeys(text_fields, text)}) for text in CONTENT_FREE_TEXTS]


def domain_docs(
    example: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    text_fields: Sequence[str],
    label_column: str | None,
    seed: int | None,
) -> list[UnlabeledDoc]:
    """Documents whose text fields are random words of the same field of unlabeled rows, each of its mean length.

    A word is what blanks separate, as it stands in the rows, and frequent ones are drawn more often. The released code
    of Fei et al. differs in details: it takes the words of the evaluated texts in lower case, rounds lengths up, and
    ends each text with " .". The seed is mixed with a word, so that this draw is independent of that of the rows.
    """
    blank, rnd = without_label(example, label_column), Random(f"domain-{seed}")
    words = {name: [str(row[name]).split() for row in rows] for name in text_fields}
    pools = {name: [word for text in texts for word in text] for name, texts in words.items()}
    lengths = {name: max(1, round(len(pool) / len(rows))) for name, pool in pools.items() if pool}

    def drawn(name: str) -> str:  # a field without any word, such as an empty title, stays so
        return " ".join(rnd.choices(pools[name], k=lengths[name])) if name in lengths else ""

    return [UnlabeledDoc({**blank, **{name: drawn(name) for name in text_fields}}) for _ in range(DOMAIN_TEXTS)]


def draw_rows(pool: Sequence[Doc], size: int, seed: int | None, *, allowed: Callable[[Any], bool]) -> list[Doc]:
    """A seeded random sample of the allowed rows of `pool`: `size` of them, or as many as there are.

    The seed is mixed with a word, so that demonstrations and estimate rows drawn with the same seed from the same
    split are independent draws. A larger set contains a smaller one of the same seed.
    """
    order = list(range(len(pool)))
    Random(f"estimate-{seed}").shuffle(order)
    return list(islice(filter(allowed, (pool[i] for i in order)), size))


def read_estimate_file(
    path: str, *, task: str, text_fields: Sequence[str]
) -> tuple[dict[str, Any], list[UnlabeledDoc]]:
    """Provenance and documents of a file: JSON Lines or, if its name ends in .csv, CSV under a line of column names.

    The first line of a file that `lm-eval-proca generate` has written is its provenance; other files hold somebody's
    own rows.
    """
    read = _csv_rows if Path(path).suffix.lower() == ".csv" else _json_rows
    try:
        rows = list(read(path, task))
    except OSError as error:
        raise TaskError(f"{task}: cannot read proca.estimate_file={path} ({error.strerror}).") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TaskError(f"{task}: proca.estimate_file={path} is not a text file in UTF-8 ({error}).") from error
    provenance = dict(rows.pop(0)[1][ESTIMATE_FILE_KEY]) if rows and ESTIMATE_FILE_KEY in rows[0][1] else {}
    docs: list[UnlabeledDoc] = []
    for number, row in rows:
        if missing := [name for name in text_fields if not isinstance(row.get(name), str)]:
            raise TaskError(
                f"{task}: line {number} of {path} has no text in field {', '.join(missing)}, its fields are "
                f"{', '.join(map(str, row))}; this task needs {', '.join(text_fields)} in every row."
            )
        docs.append(UnlabeledDoc({name: row[name] for name in text_fields}))
    made_for = provenance.get("task")
    if made_for is not None and made_for != task:
        raise TaskError(f"{task}: {path} was generated for the task {made_for}; generate one for {task}.")
    return provenance, docs


@dataclass(frozen=True)
class DemonstrationFile:
    """Demonstrations that a model has labeled itself, and where they come from; see sweep/self_labelled.py.

    `prompts` says of each document which prompt shows it. Prompt 0 shows none: it is the one that gave the labels.
    """

    provenance: Mapping[str, Any]
    docs: Sequence[SelfLabelledDoc]
    prompts: Sequence[int]

    @property
    def n_prompts(self) -> int:
        return 1 + max(self.prompts, default=0)


def read_demonstration_file(
    path: str, *, task: str, text_fields: Sequence[str], labels: Sequence[str]
) -> DemonstrationFile:
    """JSON Lines: the provenance, then a line per demonstration with its texts, `label` and `prompt`."""
    try:
        rows = list(_json_rows(path, task))
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{task}: cannot read proca.demonstration_file={path} ({error}).") from error
    if not rows or not isinstance(provenance := rows.pop(0)[1].get(ESTIMATE_FILE_KEY), dict):
        raise TaskError(
            f"{task}: {path} is no file of self-labelled demonstrations; `lm-eval-proca sweep --demonstrations self` "
            f"writes one."
        )
    if provenance.get("task") != task:
        raise TaskError(f"{task}: the demonstrations of {path} are for the task {provenance.get('task')}.")
    docs, prompts = [], []
    for number, row in rows:
        missing = [name for name in text_fields if not isinstance(row.get(name), str)]
        if missing or row.get("label") not in labels or not isinstance(row.get("prompt"), int) or row["prompt"] < 1:
            raise TaskError(
                f"{task}: line {number} of {path} is no demonstration; it needs the texts {', '.join(text_fields)}, a "
                f"label of {', '.join(labels)}, and the number of its prompt from 1 on."
            )
        docs.append(SelfLabelledDoc({name: row[name] for name in text_fields}))
        docs[-1].target = list(labels).index(row["label"])
        prompts.append(row["prompt"])
    return DemonstrationFile(provenance, docs, prompts)


def _json_rows(path: str, task: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows with the numbers of their lines."""
    # Not splitlines(): a text may hold U+2028 and other characters that end a line there, but not in JSON Lines.
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise TaskError(f"{task}: line {number} of {path} is not JSON; the file is damaged.") from error
        if not isinstance(row, dict):
            raise TaskError(f"{task}: line {number} of {path} is not a JSON object.")
        yield number, row


def _csv_rows(path: str, task: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(path, encoding="utf-8-sig", newline="") as file:  # spreadsheets begin a file with a mark
        rows = csv.DictReader(file)
        for row in rows:
            yield rows.line_num, row


# ------------------------------------------------------------------ demonstrations


class OnePromptSampler(ContextSampler):
    """Draws demonstrations once per prompt and number of shots, and gives them to every document.

    The draw is the one that lm-eval's default sampler makes for its first document with the same seed. Rows that are
    evaluated or have no label are never demonstrations: `allowed` says which rows may be used.

    Parameters
    ----------
    pool : sequence of documents
        The labeled rows; a `datasets.Dataset` is read row by row, never copied.
    allowed : callable
        False for rows that must not become demonstrations.
    label_of : callable
        Label id of a row; only needed with `counts`.
    counts : sequence of int, optional
        Number of demonstrations per label id (their sum is then the number of shots).
    order_seed : int, optional
        Shuffles the drawn demonstrations with a seed of its own.
    first : bool
        Take the first rows instead of drawing (lm-eval's `sampler: first_n`).

    Attributes
    ----------
    prompt : Prompt
        The prompt that demonstrations are wanted for.
    """

    prompt = Prompt()

    def __init__(
        self,
        pool: Sequence[Doc],
        *,
        task: str,
        allowed: Callable[[Doc], bool],
        label_of: Callable[[Doc], int],
        counts: Sequence[int] | None = None,
        order_seed: int | None = None,
        first: bool = False,
    ) -> None:
        self.df = pool
        self.task = task
        self.allowed = allowed
        self.label_of = label_of
        self.counts = counts
        self.order_seed = order_seed
        self.first = first

    def set_rnd(self, rnd: int) -> OnePromptSampler:
        self.seed = rnd
        self._drawn: dict[tuple[int, int], list[int]] = {}
        return self

    def sample(self, n: int, eval_doc: Doc | None = None, df: Sequence[Doc] | None = None, **kwargs: Any) -> list[Doc]:
        """The `n` demonstrations of this prompt, whatever document they are for."""
        return [self.df[i] for i in self.indices(n)]

    def indices(self, n: int) -> list[int]:
        """Rows of the pool that are the demonstrations, in prompt order."""
        seed, order = self.seed + self.prompt.seed_shift, self.prompt.order
        if (seed, n) not in self._drawn:
            self._drawn[seed, n] = self._draw(n, seed)
        drawn = self._drawn[seed, n]
        return drawn if order is None else [drawn[place] for place in order]

    def _draw(self, n: int, seed: int) -> list[int]:
        if n == 0:
            return []
        if self.counts is not None:
            drawn = self._draw_by_label(n, seed)
        elif self.first:
            drawn = list(islice((i for i in range(len(self.df)) if self.allowed(self.df[i])), n))
        else:
            drawn = self._draw_any(n, seed)
        if len(drawn) < n:
            raise TaskError(
                f"{self.task}: {n} demonstrations were asked for, but only {len(drawn)} rows of the few-shot split "
                f"have a label and are not evaluated themselves; use fewer shots or another fewshot_split."
            )
        if self.order_seed is not None:
            Random(self.order_seed).shuffle(drawn)
        return drawn

    def _draw_any(self, n: int, seed: int) -> list[int]:
        rnd, size = Random(seed), len(self.df)
        candidates = rnd.sample(range(size), min(n, size))
        drawn = [i for i in candidates if self.allowed(self.df[i])]
        tried = set(candidates)
        while len(drawn) < n and len(tried) < size:
            i = rnd.randrange(size)
            if i not in tried:
                tried.add(i)
                if self.allowed(self.df[i]):
                    drawn.append(i)
        return drawn

    def _draw_by_label(self, n: int, seed: int) -> list[int]:
        wanted = list(self.counts or ())
        if sum(wanted) != n:
            raise TaskError(
                f"{self.task}: proca.demonstration_counts={'/'.join(map(str, wanted))} makes {sum(wanted)} "
                f"demonstrations, but --num_fewshot is {n}; make the two agree."
            )
        rnd = Random(seed)
        drawn: list[int] = []
        for i in rnd.sample(range(len(self.df)), len(self.df)):
            row = self.df[i]
            label = self.label_of(row)
            if label >= len(wanted):
                raise TaskError(
                    f"{self.task}: proca.demonstration_counts has {len(wanted)} counts, one per label is needed."
                )
            if label >= 0 and wanted[label] and self.allowed(row):
                wanted[label] -= 1
                drawn.append(i)
                if not any(wanted):
                    break
        return drawn


class FileSampler(OnePromptSampler):
    """Gives every prompt the demonstrations that a file has for it, and prompt 0 none."""

    def __init__(self, file: DemonstrationFile, *, task: str, allowed: Callable[[Doc], bool]) -> None:
        super().__init__(file.docs, task=task, allowed=allowed, label_of=lambda row: row.target)  # type: ignore[attr-defined]
        self.file = file

    def indices(self, n: int) -> list[int]:
        number = self.prompt.number
        found = [i for i, prompt in enumerate(self.file.prompts) if prompt == number]
        if number and len(found) != n:
            raise TaskError(
                f"{self.task}: proca.demonstration_file has {len(found)} demonstrations for prompt {number}, but "
                f"--num_fewshot is {n}; make the two agree."
            )
        return found
