"""Reading `samples_*.jsonl`: which documents each filter of a run got right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lm_eval_proca.errors import ResultsError
from lm_eval_proca.report.results import METRIC, RAW

_FILTER_KEY = b', "filter": '


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
                doc_id, name, doc_hash, value = _parse(line)
                known = {0.0: False, 1.0: True}[value]
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise ResultsError(
                    f"{file}, line {number} is not a sample with an accuracy of 0 or 1; it was cut or changed"
                ) from error
            rows.setdefault(name, {})[doc_id] = (doc_hash, known)
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


def _parse(line: bytes) -> tuple[int, str, str, float]:
    """Document id, filter name, document hash and accuracy of one line.

    A line repeats the prompt once per label, which can be many kilobytes; what is wanted stands before and behind
    that. Within JSON strings quotes are escaped, so the last `"filter"` key found here is the sample's own; some
    older lm-eval wrote none.
    """
    start = line.rfind(_FILTER_KEY)
    sample = json.loads(b"{" + line[start + 2 :]) if start > 0 and line.startswith(b'{"doc_id": ') else json.loads(line)
    doc_id = sample["doc_id"] if "doc_id" in sample else int(line[len(b'{"doc_id": ') : line.index(b",")])
    return int(doc_id), str(sample.get("filter", RAW)), str(sample["doc_hash"]), float(sample[METRIC])
