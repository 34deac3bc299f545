"""lm-eval's own sample logs as score tables: `samples_<task>_<date>.jsonl` of any multiple-choice task.

Such a log holds evaluation rows only, so whoever calibrates it fits on the unlabeled evaluation rows themselves, and
contextual calibration, which needs content-free inputs, is not possible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.score_table import NO_GOLD, ScoreTable

_FILE_NAME = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl")


def read_samples(path: str | Path) -> ScoreTable:
    """Raw scores and gold labels of a file that `lm_eval --log_samples` wrote.

    The log has one row per document and filter; the scores before any filter are the same in all of them.
    """
    path = Path(path)
    words: list[tuple[str, ...]] = []
    scores: list[list[float]] = []
    gold: list[int] = []
    index: list[int] = []
    seen: set[int] = set()
    for number, row in _rows(path):
        where = f"line {number} of {path}"
        try:
            doc_id, target, responses = int(row["doc_id"]), row["target"], row["resps"]
            arguments = row["arguments"].values() if isinstance(row["arguments"], dict) else row["arguments"]
            pairs = [tuple(pair.values()) if isinstance(pair, dict) else tuple(pair) for pair in arguments]
            choices = [str(continuation).strip() for _, continuation in pairs]
            # An instance may hold its response twice: lm-eval pads ranks with copies of requests.
            values = [float(response[0][0]) for response in responses]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise ScoreTableError(
                f"{where} is no sample of a multiple-choice task of lm-eval (`--log_samples`); only tasks that score "
                f"each choice can be calibrated."
            ) from error
        if doc_id in seen:
            continue
        seen.add(doc_id)
        if _has_unconditional_half(pairs):
            choices, values = choices[: len(choices) // 2], values[: len(values) // 2]
        if scores and len(values) != len(scores[0]):
            raise ScoreTableError(
                f"{where} has {len(values)} choices, the rows before it {len(scores[0])}; only tasks with a fixed "
                f"number of choices can be calibrated."
            )
        label = _gold(target, choices)
        if label == NO_GOLD:
            raise ScoreTableError(f"{where}: the target {target!r} is none of the choices {choices}.")
        _check_accuracy(row, values, label, where)
        index.append(doc_id)
        gold.append(label)
        scores.append(values)
        words.append(tuple(choices))
    if not scores or len(scores[0]) < 2:
        raise ScoreTableError(f"{path} holds no sample with two choices or more.")

    fixed = len(set(words)) == 1 and len(set(words[0])) == len(words[0])
    labels = list(words[0]) if fixed else [f"choice {k + 1}" for k in range(len(scores[0]))]
    return ScoreTable(
        role=np.full(len(scores), "eval"),
        index=np.array(index, dtype=np.int64),
        gold=np.array(gold, dtype=np.int64),
        estimate_gold=np.full(len(scores), NO_GOLD, dtype=np.int64),
        scores=np.array(scores, dtype=np.float64),
        metadata={**_provenance(path), "labels": labels, "labels_are_positions": not fixed},
    )


def _rows(path: Path) -> Iterable[tuple[int, Mapping[str, Any]]]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise ScoreTableError(f"line {number} of {path} is not a JSON object, so not a sample of lm-eval.")
                yield number, row
    except OSError as error:
        raise ScoreTableError(f"Cannot read {path} ({error.strerror}).") from error
    except ValueError as error:
        if isinstance(error, ScoreTableError):
            raise
        raise ScoreTableError(f"{path} is not JSON Lines; it is damaged or was not written by lm-eval.") from error


def _has_unconditional_half(pairs: list[tuple[Any, ...]]) -> bool:
    """`acc_mutual_info` scores every choice a second time, after an empty prompt."""
    half, odd = divmod(len(pairs), 2)
    second = pairs[half:]
    return half > 0 and not odd and all(pair[0] == "" for pair in second) and pairs[0][0] != ""


def _gold(target: Any, choices: list[str]) -> int:
    """The log has targets as strings: an index, or the word of a choice."""
    text = str(target).strip()
    if text.isdigit() and int(text) < len(choices):
        return int(text)
    return choices.index(text) if choices.count(text) == 1 else NO_GOLD


def _check_accuracy(row: Mapping[str, Any], values: list[float], label: int, where: str) -> None:
    """The log says whether the highest score was right, which shows whether we understood its target."""
    unfiltered = row.get("filtered_resps") == [response[0] for response in row["resps"]]
    if unfiltered and "acc" in row and float(row["acc"]) != float(np.argmax(values) == label):
        raise ScoreTableError(
            f"{where} says acc {row['acc']}, but its scores and its target {row['target']!r} say otherwise; the "
            f"target cannot be understood as one of the choices."
        )


def _provenance(path: Path) -> dict[str, Any]:
    """Task, model and shots, as far as the file name and the results file beside it tell."""
    name = _FILE_NAME.fullmatch(path.name)
    if name is None:
        return {"task": path.stem}
    known: dict[str, Any] = {"task": name["task"]}
    try:
        results = json.loads((path.parent / f"results_{name['date']}.json").read_text(encoding="utf-8"))
        known["model"] = results.get("model_name") or "unknown"
        known["num_fewshot"] = results["n-shot"][name["task"]]
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a log without its results file is as good, with less to print above the table
    return known
