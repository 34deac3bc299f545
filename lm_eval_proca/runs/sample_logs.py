"""lm-eval's own sample logs, `samples_<task>_<date>.jsonl` of any multiple-choice task.

They are read as score tables, which hold evaluation rows only; and, for paired tests, as right and wrong answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm_eval_proca.errors import ProcaError, ResultsError, ScoreTableError
from lm_eval_proca.runs.output_folder import ACCURACY, BY_PROMPT, SAMPLES_FILE, TOGETHER, mapping, read_document
from lm_eval_proca.scores.fitting import RAW
from lm_eval_proca.scores.gold import NO_GOLD, gold_index
from lm_eval_proca.scores.record import RunRecord, documents_hash, fingerprint
from lm_eval_proca.scores.score_table import ScoreTable

Fields = dict[str, Any]
"""One line of a log."""

RIGHT_OR_WRONG = {0.0: False, 1.0: True}

WITH_GOLD = ("f1", "mcc", "brier_score", "likelihood")
"""Metrics that lm-eval logs as a pair: the gold index, and what was predicted."""


class UnclearTarget(ScoreTableError):
    """A log whose gold labels can be read in two ways."""


class Sample(NamedTuple):
    """What one line says about one document."""

    line: int
    doc_id: int
    doc_hash: str
    target: Any
    readings: tuple[int, int]
    """The gold label if the target is a position, and if it is a label word; the same where its type is known."""
    choices: tuple[str, ...]
    scores: tuple[float, ...]
    right: float | None
    """The logged accuracy of the unchanged scores."""
    gold: int | None
    """The logged index, which only some metrics have."""
    prompt_hash: str

    def contradicts(self, gold: int) -> bool:
        """Whether the log says that this is not the gold label."""
        is_right = float(np.argmax(self.scores) == gold)
        return self.right not in (None, is_right) or (self.gold is not None and max(self.gold, NO_GOLD) != gold)


@dataclass(frozen=True)
class SampleLog:
    """The documents of a log, in the order of its lines."""

    path: Path
    samples: Sequence[Sample]
    known: Mapping[str, Any]
    """Task, model and shots, as far as a results file tells."""

    @property
    def has_fixed_labels(self) -> bool:
        """Whether all documents have the same choices, which can be told apart."""
        words = self.samples[0].choices
        return len(set(words)) == len(words) and all(sample.choices == words for sample in self.samples)

    @property
    def prompt_hash(self) -> str:
        """Of the first document's prompt, as in the record of a run that calibrates lm-eval's own tasks."""
        return min(self.samples, key=lambda sample: sample.doc_id).prompt_hash

    def gold(self) -> list[int]:
        """The gold label of every document, by the one reading of the targets that the whole log allows."""
        fitting: list[list[int]] = []
        contradicting: list[Sample] = []
        for gold in map(list, zip(*(sample.readings for sample in self.samples), strict=True)):
            wrong = (s for s, label in zip(self.samples, gold, strict=True) if s.contradicts(label))
            if (first := next(wrong, None)) is None:
                fitting.append(gold)
            else:
                contradicting.append(first)
        if not fitting:
            last = max(contradicting, key=lambda sample: sample.line)
            raise ScoreTableError(
                f"line {last.line} of {self.path} has the target {last.target!r}, which does not agree with its "
                f"scores and its metrics; it cannot be understood as one of the choices."
            )
        # Under the wrong reading often no target is a label at all.
        fitting = [gold for gold in fitting if set(gold) != {NO_GOLD}] or fitting[:1]
        if any(gold != fitting[0] for gold in fitting):
            raise UnclearTarget(
                f"{self.path}: the log does not show whether targets such as {self.samples[0].target!r} are positions "
                f"or label words; calibrate in the run instead (--metadata proca.calibrate=true)."
            )
        return fitting[0]

    def table(self) -> ScoreTable:
        """Scores and gold labels."""
        fixed, count, gold = self.has_fixed_labels, len(self.samples), self.gold()
        positions = tuple(f"choice {k + 1}" for k in range(len(self.samples[0].choices)))
        in_order = sorted((one.doc_id, one.doc_hash, label) for one, label in zip(self.samples, gold, strict=True))
        return ScoreTable(
            role=np.full(count, "eval"),
            index=np.array([sample.doc_id for sample in self.samples], dtype=np.int64),
            gold=np.array(gold, dtype=np.int64),
            estimate_gold=np.full(count, NO_GOLD, dtype=np.int64),
            scores=np.array([sample.scores for sample in self.samples], dtype=np.float64),
            record=RunRecord(
                **self.known,
                labels=self.samples[0].choices if fixed else positions,
                labels_are_positions=not fixed,
                eval_rows=count,
                estimate_size=0,
                documents_hash=documents_hash(one[1:] for one in in_order),
            ),
        )


def read_samples(path: str | Path) -> ScoreTable:
    """Raw scores and gold labels of a file that `lm_eval --log_samples` wrote."""
    return find_log(path).table()


def find_log(path: str | Path) -> SampleLog:
    """A log, with what the results file beside it tells."""
    path = Path(path)
    name = SAMPLES_FILE.fullmatch(path.name)
    task = name["task"] if name else path.stem
    results = _results_beside(path, name["date"]) if name else {}
    return read_log(path, results, task)


def read_log(path: Path, results: Mapping[str, Any], task: str) -> SampleLog:
    """Read the first line of each document; `results` is the results file of the log, empty if there is none."""
    doc_to_target = results.get("configs", {}).get(task, {}).get("doc_to_target")
    shots = (results.get("n-shot") or {}).get(task)
    samples: list[Sample] = []
    for number, fields in first_lines(path):
        sample = _sample(number, fields, doc_to_target, path)
        if samples and len(sample.choices) != len(samples[0].choices):
            raise ScoreTableError(
                f"line {number} of {path} has {len(sample.choices)} choices, the rows before it "
                f"{len(samples[0].choices)}; only tasks with a fixed number of choices can be calibrated."
            )
        samples.append(sample)
    if not samples or len(samples[0].choices) < 2:
        raise ScoreTableError(f"{path} holds no sample with two choices or more.")
    return SampleLog(path, samples, {"task": task, "model": results.get("model_name"), "num_fewshot": shots})


def first_lines(path: Path) -> Iterator[tuple[int, Fields]]:
    """The first line of each document, with its number.

    The log has one line per document and filter; the scores before any filter are the same in all of them.
    """
    seen: set[str] = set()
    for number, fields in lines(path):
        doc_id = str(fields.get("doc_id"))
        if doc_id not in seen:
            seen.add(doc_id)
            yield number, fields


def lines(path: Path) -> Iterator[tuple[int, Fields]]:
    """All lines of a log, with their numbers."""
    for number, fields in json_lines(path):
        if not isinstance(fields, dict):
            raise ScoreTableError(f"line {number} of {path} is not an object of JSON; the file is damaged.")
        yield number, fields


def json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """What the lines of a file hold, with their numbers; empty lines are left out."""
    number = 0
    try:
        with path.open("rb") as found:
            for number, line in enumerate(found, start=1):
                if line.strip():
                    yield number, json.loads(line)
    except OSError as error:
        raise ScoreTableError(f"Cannot read {path} ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise ScoreTableError(f"line {number} of {path} is not JSON; the file is damaged or was cut.") from error


def _sample(number: int, fields: Fields, doc_to_target: Any, path: Path) -> Sample:
    try:
        arguments = list(fields["arguments"].values())
        choices = tuple(one["arg_1"].strip() for one in arguments)
        # An instance may hold its response twice: lm-eval pads ranks with copies of requests.
        scores = tuple(float(response[0][0]) for response in fields["resps"])
        if len(choices) != len(scores):
            raise ValueError("not one response for each choice")
        # `acc_mutual_info` scores every choice a second time, after an empty prompt.
        if 2 * sum(one["arg_0"] == "" for one in arguments) == len(choices):
            choices, scores = choices[: len(choices) // 2], scores[: len(scores) // 2]
        unchanged = fields.get("filtered_resps") == [response[0] for response in fields["resps"]]
        logged = [fields[metric][0] for metric in WITH_GOLD if isinstance(fields.get(metric), list)]
        as_number, target = _targets(fields, doc_to_target)
        return Sample(
            line=number,
            doc_id=int(fields["doc_id"]),
            doc_hash=str(fields.get("doc_hash")),
            target=target,
            readings=(gold_index(as_number, choices), gold_index(target, choices)),
            choices=choices,
            scores=scores,
            right=float(fields[ACCURACY]) if unchanged and ACCURACY in fields else None,
            gold=next((one for one in logged if isinstance(one, int)), None),
            prompt_hash=fingerprint([arguments[0]["arg_0"]]),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ScoreTableError(
            f"line {number} of {path} is no sample of a multiple-choice task of lm-eval (`--log_samples`); only tasks "
            f"that score each choice can be calibrated."
        ) from error


def _targets(fields: Fields, doc_to_target: Any) -> tuple[Any, Any]:
    """The target of a document as a number, if it can be one, and as a word: the log has only its text.

    lm-eval takes numbers and booleans as positions, and strings as label words.
    """
    text, doc = str(fields["target"]), mapping(fields, "doc")
    if isinstance(doc_to_target, str) and doc_to_target in doc:
        target = doc[doc_to_target]
        target = target.strip() if isinstance(target, str) else target
        return target, target
    # The source of a function may hold braces too.
    if isinstance(doc_to_target, str) and "{{" in doc_to_target and "def " not in doc_to_target:
        target = int(text) if re.fullmatch(r"\d{1,9}", text) else text.strip()
        return target, target
    text = text.strip()
    if text in ("True", "False"):
        return text == "True", text
    return int(text) if re.fullmatch(r"-?\d{1,9}", text) else text, text


def _results_beside(path: Path, date: str) -> Mapping[str, Any]:
    """The results file of a log; without one, scores and label words are still there."""
    for file in path.parent.glob(f"*_{date}.json"):
        with suppress(ResultsError):
            return read_document(file)
    return {}


Number = int | None
"""Of a prompt in its run; None is all prompts of the run together."""


@dataclass(frozen=True)
class Correct:
    """Per filter, whether each document with a gold label was answered correctly, in document order."""

    documents: str
    """A hash of the ids and hashes of the documents."""
    by_filter: Mapping[str, np.ndarray]
    """Under prompt 0."""
    further: Mapping[tuple[str, Number], np.ndarray] = field(default_factory=dict)
    """By filter and number, of a run with several prompts: under the others, and under all together."""

    def answers(self, filter_name: str, number: Number = 0) -> np.ndarray | None:
        return self.by_filter.get(filter_name) if number == 0 else self.further.get((filter_name, number))


def read_correct(file: Path) -> Correct:
    """Read one samples file; a damaged one is refused with a sentence."""
    rows: dict[str, dict[tuple[int, str], dict[Number, bool] | None]] = {}
    table = cache(partial(read_samples, file))  # which most logs do not need
    for number, fields in lines(file):
        try:
            name = str(fields.get("filter", RAW))  # some older lm-eval wrote none
            rows.setdefault(name, {})[int(fields["doc_id"]), str(fields["doc_hash"])] = _answers(fields, table)
        except ProcaError:
            raise
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise ResultsError(
                f"{file}, line {number} does not show whether a choice was right; it was cut or changed"
            ) from error
    documents = [sorted(of_filter) for of_filter in rows.values()]
    if not documents or any(others != documents[0] for others in documents):
        raise ResultsError(f"{file} does not hold the same documents for every filter; it was cut or changed")
    with_gold = [one for one in documents[0] if all(of_filter[one] is not None for of_filter in rows.values())]
    found: dict[tuple[str, Number], np.ndarray] = {}
    for name, of_filter in rows.items():
        answers = [of_filter[one] or {} for one in with_gold]
        numbers = set(answers[0]) if answers else {0}
        if any(set(one) != numbers for one in answers):
            raise ResultsError(f"{file} does not hold the same prompts for every document; it was cut or changed")
        found |= {(name, number): np.array([one[number] for one in answers], bool) for number in numbers}
    by_filter = {name: found.pop((name, 0)) for name in rows}
    return Correct(documents_hash(with_gold), by_filter, found)


def joined(parts: Sequence[Correct]) -> Correct:
    """The documents of several logs as those of one, for the filters and prompts that all of them have."""
    names = [name for name in parts[0].by_filter if all(name in part.by_filter for part in parts)]
    by_filter = {name: np.concatenate([part.by_filter[name] for part in parts]) for name in names}
    common = [key for key in parts[0].further if all(key in part.further for part in parts)]
    further = {key: np.concatenate([part.further[key] for part in parts]) for key in common}
    return Correct(documents_hash([part.documents for part in parts]), by_filter, further)


def _answers(fields: Fields, table: Callable[[], ScoreTable]) -> dict[Number, bool] | None:
    """By prompt, whether a line is right; None for a document without a gold label."""
    right = _is_right(fields, table)
    if right is None:
        return None
    found: dict[Number, bool] = {0: right}
    if BY_PROMPT in fields:
        found |= {k: RIGHT_OR_WRONG[float(one)] for k, one in enumerate(fields[BY_PROMPT]) if k}
        found[None] = RIGHT_OR_WRONG[float(fields[TOGETHER])]
    return found


def _is_right(fields: Fields, table: Callable[[], ScoreTable]) -> bool | None:
    """None for a document without a gold label.

    A task that reports acc_norm alone does not log whether the highest score was right; the gold label tells.
    """
    if ACCURACY in fields:
        return RIGHT_OR_WRONG[float(fields[ACCURACY])]
    gold = int(table().gold[table().index == int(fields["doc_id"])][0])
    scores = [float(response[0]) for response in fields["filtered_resps"]][: len(table().labels)]
    return None if gold == NO_GOLD else bool(np.argmax(scores) == gold)
