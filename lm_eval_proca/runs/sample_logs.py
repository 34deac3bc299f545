"""lm-eval's own sample logs, `samples_<task>_<date>.jsonl` of any multiple-choice task: their scores as a table, and
which documents each filter got right.

Such a log holds evaluation rows only, so whoever calibrates it fits on the unlabeled evaluation rows themselves, and
contextual calibration, which needs content-free inputs, is not possible.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm_eval_proca.errors import ResultsError, ScoreTableError
from lm_eval_proca.runs.output_folder import ACCURACY, SAMPLES_FILE
from lm_eval_proca.scores.fitting import RAW
from lm_eval_proca.scores.record import RunRecord
from lm_eval_proca.scores.score_table import NO_GOLD, ScoreTable


class Sample(NamedTuple):
    """What one line says about one document; `fields` are all of the line."""

    doc_id: int
    target: Any
    choices: list[str]
    scores: list[float]
    fields: Mapping[str, Any]


def read_samples(path: str | Path, known: Mapping[str, Any] | None = None) -> ScoreTable:
    """Raw scores and gold labels of a file that `lm_eval --log_samples` wrote; `known` is where they come from."""
    path = Path(path)
    words: list[str] = []
    fixed = True
    scores: list[list[float]] = []
    gold: list[int] = []
    index: list[int] = []
    for number, fields in first_lines(path):
        where = f"line {number} of {path}"
        sample = _sample(fields, where)
        if scores and len(sample.scores) != len(scores[0]):
            raise ScoreTableError(
                f"{where} has {len(sample.scores)} choices, the rows before it {len(scores[0])}; only tasks with a "
                f"fixed number of choices can be calibrated."
            )
        label = _gold(sample.target, sample.choices)
        if label == NO_GOLD:
            raise ScoreTableError(f"{where}: the target {sample.target!r} is none of the choices {sample.choices}.")
        _check_accuracy(sample, label, where)
        index.append(sample.doc_id)
        gold.append(label)
        scores.append(sample.scores)
        words = words or sample.choices
        fixed = fixed and words == sample.choices
    if len(words) < 2:
        raise ScoreTableError(f"{path} holds no sample with two choices or more.")

    fixed = fixed and len(set(words)) == len(words)
    labels = words if fixed else [f"choice {k + 1}" for k in range(len(words))]
    return ScoreTable(
        role=np.full(len(scores), "eval"),
        index=np.array(index, dtype=np.int64),
        gold=np.array(gold, dtype=np.int64),
        estimate_gold=np.full(len(scores), NO_GOLD, dtype=np.int64),
        scores=np.array(scores, dtype=np.float64),
        record=RunRecord(
            **(known or _provenance(path)),
            labels=tuple(labels),
            labels_are_positions=not fixed,
            eval_rows=len(scores),
            estimate_size=0,
        ),
    )


def first_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The first line of each document, with its number.

    The log has one line per document and filter; the scores before any filter are the same in all of them.
    """
    seen: set[Any] = set()
    for number, fields in _lines(path):
        doc_id = repr(fields.get("doc_id"))
        if doc_id not in seen:
            seen.add(doc_id)
            yield number, fields


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                fields = json.loads(line)
                if not isinstance(fields, dict):
                    raise ValueError("not an object")
                yield number, fields
    except OSError as error:
        raise ScoreTableError(f"Cannot read {path} ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:
        raise ScoreTableError(f"line {number} of {path} is not JSON; the file is damaged or was cut.") from error


def with_filter(fields: Mapping[str, Any], name: str, log_proba: np.ndarray, right: bool) -> str:
    """The same document as lm-eval would log it under a calibrator's filter, whose only metric is accuracy."""
    greedy = [response[0][1] for response in fields["resps"]][: len(log_proba)]
    kept = ("doc_id", "doc", "target", "arguments", "resps")
    hashes = ("doc_hash", "prompt_hash", "target_hash")
    changed: dict[str, Any] = {
        **{key: fields[key] for key in kept},
        "filtered_resps": [[str(score), flag] for score, flag in zip(log_proba.tolist(), greedy, strict=True)],
        "filter": name,
        "metrics": [ACCURACY],
        **{key: fields[key] for key in hashes if key in fields},
        ACCURACY: float(right),
    }
    return json.dumps(changed, ensure_ascii=False) + "\n"


@dataclass(frozen=True)
class Correct:
    """Per filter, whether each document was answered correctly, in document order.

    `documents` stands for the documents themselves: equal strings, same documents.
    """

    documents: str
    by_filter: Mapping[str, np.ndarray]

    @classmethod
    def of(cls, documents: Sequence[tuple[int, str]], by_filter: Mapping[str, np.ndarray]) -> Correct:
        """From the ids and hashes of the documents."""
        return cls(hashlib.sha256(repr(documents).encode()).hexdigest(), by_filter)


def read_correct(file: Path) -> Correct:
    """Read one samples file; a damaged one is refused with a sentence."""
    rows: dict[str, dict[int, tuple[str, bool]]] = {}
    for number, fields in _lines(file):
        try:
            known = {0.0: False, 1.0: True}[float(fields[ACCURACY])]
            name = str(fields.get("filter", RAW))  # some older lm-eval wrote none
            rows.setdefault(name, {})[int(fields["doc_id"])] = (str(fields["doc_hash"]), known)
        except (ValueError, KeyError, TypeError) as error:
            raise ResultsError(
                f"{file}, line {number} is not a sample with an accuracy of 0 or 1; it was cut or changed"
            ) from error
    identities = {
        name: [(doc_id, doc_hash) for doc_id, (doc_hash, _) in sorted(of_filter.items())]
        for name, of_filter in rows.items()
    }
    first = next(iter(identities.values()), None)
    if first is None or any(other != first for other in identities.values()):
        raise ResultsError(f"{file} does not hold the same documents for every filter; it was cut or changed")
    by_filter = {name: np.array([known for _, (_, known) in sorted(found.items())]) for name, found in rows.items()}
    return Correct.of(first, by_filter)


def joined(parts: Sequence[Correct]) -> Correct:
    """The documents of several logs as those of one, for the filters that all of them have."""
    if len(parts) == 1:
        return parts[0]
    names = [name for name in parts[0].by_filter if all(name in part.by_filter for part in parts)]
    return Correct(
        documents=hashlib.sha256("".join(part.documents for part in parts).encode()).hexdigest(),
        by_filter={name: np.concatenate([part.by_filter[name] for part in parts]) for name in names},
    )


def _sample(fields: Mapping[str, Any], where: str) -> Sample:
    try:
        arguments = list(fields["arguments"].values())
        choices = [one["arg_1"].strip() for one in arguments]
        # An instance may hold its response twice: lm-eval pads ranks with copies of requests.
        scores = [float(response[0][0]) for response in fields["resps"]]
        if len(choices) != len(scores):
            raise ValueError("not one response for each choice")
        # `acc_mutual_info` scores every choice a second time, after an empty prompt.
        if 2 * sum(one["arg_0"] == "" for one in arguments) == len(choices):
            choices, scores = choices[: len(choices) // 2], scores[: len(scores) // 2]
        return Sample(int(fields["doc_id"]), fields["target"], choices, scores, fields)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise ScoreTableError(
            f"{where} is no sample of a multiple-choice task of lm-eval (`--log_samples`); only tasks that score each "
            f"choice can be calibrated."
        ) from error


def _gold(target: Any, choices: list[str]) -> int:
    """The log has targets as strings: an index, or the word of a choice."""
    text = str(target).strip()
    if text.isdigit() and int(text) < len(choices):
        return int(text)
    return choices.index(text) if choices.count(text) == 1 else NO_GOLD


def _check_accuracy(sample: Sample, label: int, where: str) -> None:
    """The log says whether the highest score was right, which shows whether we understood its target."""
    end = sample.fields
    unfiltered = end.get("filtered_resps") == [response[0] for response in end["resps"]]
    if unfiltered and ACCURACY in end and float(end[ACCURACY]) != float(np.argmax(sample.scores) == label):
        raise ScoreTableError(
            f"{where} says acc {end[ACCURACY]}, but its scores and its target {sample.target!r} say otherwise; the "
            f"target cannot be understood as one of the choices."
        )


def _provenance(path: Path) -> dict[str, Any]:
    """Task, model and shots, as far as the file name and the results file beside it tell."""
    name = SAMPLES_FILE.fullmatch(path.name)
    if name is None:
        return {"task": path.stem}
    known: dict[str, Any] = {"task": name["task"]}
    try:
        results = json.loads((path.parent / f"results_{name['date']}.json").read_text(encoding="utf-8"))
        known["model"] = results.get("model_name")
        known["num_fewshot"] = results["n-shot"][name["task"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # the results file only adds to what is printed above the table
    return known
