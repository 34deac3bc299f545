"""Which documents of a sample log each filter answered correctly: what paired tests compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np

from lm_eval_proca.errors import ProcaError, ResultsError
from lm_eval_proca.runs.output_folder import ACCURACY
from lm_eval_proca.runs.sample_logs import Fields, lines, read_samples
from lm_eval_proca.scores.fitting import RAW
from lm_eval_proca.scores.record import documents_hash
from lm_eval_proca.scores.score_table import NO_GOLD, ScoreTable


@dataclass(frozen=True)
class Correct:
    """Per filter, whether each document with a gold label was answered correctly, in document order."""

    documents: str
    """A hash of the ids and hashes of the documents."""
    by_filter: Mapping[str, np.ndarray]


def read_correct(file: Path) -> Correct:
    """Read one samples file; a damaged one is refused with a sentence."""
    rows: dict[str, dict[tuple[int, str], bool | None]] = {}
    table = cache(partial(read_samples, file))  # which most logs do not need
    for number, fields in lines(file):
        try:
            name = str(fields.get("filter", RAW))  # some older lm-eval wrote none
            rows.setdefault(name, {})[int(fields["doc_id"]), str(fields["doc_hash"])] = _is_right(fields, table)
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
    by_filter = {name: np.array([of_filter[one] for one in with_gold], bool) for name, of_filter in rows.items()}
    return Correct(documents_hash(with_gold), by_filter)


def joined(parts: Sequence[Correct]) -> Correct:
    """The documents of several logs as those of one, for the filters that all of them have."""
    names = [name for name in parts[0].by_filter if all(name in part.by_filter for part in parts)]
    by_filter = {name: np.concatenate([part.by_filter[name] for part in parts]) for name in names}
    return Correct(documents_hash([part.documents for part in parts]), by_filter)


def _is_right(fields: Fields, table: Callable[[], ScoreTable]) -> bool | None:
    """None for a document without a gold label.

    A task that reports acc_norm alone does not log whether the highest score was right; the gold label tells.
    """
    if ACCURACY in fields:
        return {0.0: False, 1.0: True}[float(fields[ACCURACY])]
    gold = int(table().gold[table().index == int(fields["doc_id"])][0])
    scores = [float(response[0]) for response in fields["filtered_resps"]][: len(table().labels)]
    return None if gold == NO_GOLD else bool(np.argmax(scores) == gold)
