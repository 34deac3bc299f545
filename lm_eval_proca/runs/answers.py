"""Which documents of a sample log each filter answered correctly: what paired tests compare."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lm_eval_proca.errors import ProcaError, ResultsError
from lm_eval_proca.runs.output_folder import ACCURACY
from lm_eval_proca.runs.sample_logs import Fields, lines, read_samples
from lm_eval_proca.scores.fitting import RAW
from lm_eval_proca.scores.score_table import NO_GOLD


@dataclass(frozen=True)
class Correct:
    """Per filter, whether each document with a gold label was answered correctly, in document order.

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
    rows: dict[str, dict[tuple[int, str], bool | None]] = {}
    gold = _Gold(file)
    for number, fields in lines(file):
        try:
            name = str(fields.get("filter", RAW))  # some older lm-eval wrote none
            rows.setdefault(name, {})[int(fields["doc_id"]), str(fields["doc_hash"])] = _is_right(fields, gold)
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
    return Correct.of(
        with_gold, {name: np.array([of_filter[one] for one in with_gold], bool) for name, of_filter in rows.items()}
    )


def joined(parts: Sequence[Correct]) -> Correct:
    """The documents of several logs as those of one, for the filters that all of them have."""
    if len(parts) == 1:
        return parts[0]
    names = [name for name in parts[0].by_filter if all(name in part.by_filter for part in parts)]
    return Correct(
        documents=hashlib.sha256("".join(part.documents for part in parts).encode()).hexdigest(),
        by_filter={name: np.concatenate([part.by_filter[name] for part in parts]) for name in names},
    )


class _Gold:
    """The gold labels of a log, read once, and only if a line needs them."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._labels = 0
        self._known: dict[int, int] | None = None

    def __call__(self, doc_id: int) -> tuple[int, int]:
        """The gold label of a document, and how many labels there are."""
        if self._known is None:
            table = read_samples(self._file)
            self._known = dict(zip(table.index.tolist(), table.gold.tolist(), strict=True))
            self._labels = len(table.labels)
        return self._known[doc_id], self._labels


def _is_right(fields: Fields, gold: _Gold) -> bool | None:
    """None for a document without a gold label.

    Tasks that report other metrics than accuracy, such as acc_norm alone, do not log it; scores and gold label give it.
    """
    if ACCURACY in fields:
        return {0.0: False, 1.0: True}[float(fields[ACCURACY])]
    label, labels = gold(int(fields["doc_id"]))
    scores = [float(response[0]) for response in fields["filtered_resps"]][:labels]
    return None if label == NO_GOLD else bool(np.argmax(scores) == label)
