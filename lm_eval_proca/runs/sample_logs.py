"""lm-eval's own sample logs, `samples_<task>_<date>.jsonl` of any multiple-choice task: their scores as a table, and
which documents each filter got right.

Such a log holds evaluation rows only, so whoever calibrates it fits on the unlabeled evaluation rows themselves, and
contextual calibration, which needs content-free inputs, is not possible.

A line repeats the prompt once per label, which can be many kilobytes. What is wanted stands before and behind that and
is found without parsing the rest: within JSON strings quotes are escaped, so a key with plain quotes is a key.
"""

from __future__ import annotations

import hashlib
import json
import re
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

_DOC_ID = b'{"doc_id": '
_TARGET, _ARGUMENTS, _RESPONSES = b', "target": ', b', "arguments": ', b', "resps": '
_FILTERED = b', "filtered_resps": '
_CONTINUATION = re.compile(rb', "arg_1": ("(?:[^"\\]|\\.)*")\}')
_EMPTY_PROMPT = b'{"arg_0": "", "arg_1": '


class Sample(NamedTuple):
    """What one line says about one document; `end` are its fields from `resps` on."""

    doc_id: int
    target: Any
    choices: list[str]
    scores: list[float]
    end: Mapping[str, Any]


def read_samples(path: str | Path, known: Mapping[str, Any] | None = None) -> ScoreTable:
    """Raw scores and gold labels of a file that `lm_eval --log_samples` wrote; `known` is where they come from."""
    path = Path(path)
    words: list[str] = []
    fixed = True
    scores: list[list[float]] = []
    gold: list[int] = []
    index: list[int] = []
    for number, line in first_lines(path):
        where = f"line {number} of {path}"
        sample = _parsed(line, where)
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


def first_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The first line of each document, with its number.

    The log has one line per document and filter; the scores before any filter are the same in all of them.
    """
    seen: set[bytes] = set()
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                doc_id = line[: line.find(b",")]
                if not line.strip() or (doc_id.startswith(_DOC_ID) and doc_id in seen):
                    continue
                seen.add(doc_id)
                yield number, line
    except OSError as error:
        raise ScoreTableError(f"Cannot read {path} ({error.strerror}).") from error


def with_filter(line: bytes, name: str, log_proba: np.ndarray, right: bool) -> bytes:
    """The same document as lm-eval would log it under a calibrator's filter, whose only metric is accuracy."""
    end = _end(line)
    greedy = [response[0][1] for response in end["resps"]][: len(log_proba)]
    changed: dict[str, Any] = {
        "filtered_resps": [[str(score), flag] for score, flag in zip(log_proba.tolist(), greedy, strict=True)],
        "filter": name,
        "metrics": [ACCURACY],
        **{key: end[key] for key in ("doc_hash", "prompt_hash", "target_hash") if key in end},
        ACCURACY: float(right),
    }
    return line[: line.rfind(_FILTERED) + 2] + json.dumps(changed, ensure_ascii=False).encode()[1:] + b"\n"


def document_hash(line: bytes) -> str:
    """What stands for the document itself."""
    return str(_end(line).get("doc_hash"))


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
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                end = _end(line)
                known = {0.0: False, 1.0: True}[float(end[ACCURACY])]
                name = str(end.get("filter", RAW))  # some older lm-eval wrote none
                rows.setdefault(name, {})[_doc_id(line, end)] = (str(end["doc_hash"]), known)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
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


def _parsed(line: bytes, where: str) -> Sample:
    try:
        return _parse(line)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        try:
            json.loads(line)
        except (ValueError, RecursionError):
            raise ScoreTableError(f"{where} is not JSON; the file is damaged or was cut.") from error
        raise ScoreTableError(
            f"{where} is no sample of a multiple-choice task of lm-eval (`--log_samples`); only tasks that score each "
            f"choice can be calibrated."
        ) from error


def _parse(line: bytes) -> Sample:
    responses = line.rfind(_RESPONSES)
    arguments = line.rfind(_ARGUMENTS, 0, responses)
    target = line.rfind(_TARGET, 0, arguments)
    if target < 0 or not line.startswith(_DOC_ID):
        raise ValueError("not a line of lm-eval")
    end = _end(line)
    choices = [json.loads(found).strip() for found in _CONTINUATION.findall(line, arguments, responses)]
    # An instance may hold its response twice: lm-eval pads ranks with copies of requests.
    scores = [float(response[0][0]) for response in end["resps"]]
    if len(choices) != len(scores):
        raise ValueError("not one response for each choice")
    # `acc_mutual_info` scores every choice a second time, after an empty prompt.
    if 2 * line.count(_EMPTY_PROMPT, arguments, responses) == len(choices):
        choices, scores = choices[: len(choices) // 2], scores[: len(scores) // 2]
    return Sample(_doc_id(line, end), json.loads(line[target + len(_TARGET) : arguments]), choices, scores, end)


def _end(line: bytes) -> dict[str, Any]:
    """The fields from `resps` on; of a line that lm-eval would order otherwise, all."""
    start = line.rfind(_RESPONSES) if line.startswith(_DOC_ID) else -1
    return json.loads(line if start < 0 else b"{" + line[start + 2 :])


def _doc_id(line: bytes, end: Mapping[str, Any]) -> int:
    return int(end["doc_id"] if "doc_id" in end else line[len(_DOC_ID) : line.index(b",")])


def _gold(target: Any, choices: list[str]) -> int:
    """The log has targets as strings: an index, or the word of a choice."""
    text = str(target).strip()
    if text.isdigit() and int(text) < len(choices):
        return int(text)
    return choices.index(text) if choices.count(text) == 1 else NO_GOLD


def _check_accuracy(sample: Sample, label: int, where: str) -> None:
    """The log says whether the highest score was right, which shows whether we understood its target."""
    end = sample.end
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
