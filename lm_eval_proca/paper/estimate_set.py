"""How much the estimate set matters: its class balance (Figure 5) and its size (Figure 7).

Both draw parts of a scored pool, so one run of the model serves all of them. Raw scores and contextual calibration do
not depend on the estimate set and come once per part, for comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

import numpy as np

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.metrics import Observation
from lm_eval_proca.paper.observations import observe
from lm_eval_proca.scores.fitting import accuracies, accuracy_of, fit_all
from lm_eval_proca.scores.score_table import ScoreTable

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Nine proportions of positive examples; the paper gives their number, not their values."""

IMBALANCED_SIZE = 500
SMALLEST_PER_LABEL = 4
NUMBER_OF_SIZES = 10
DRAWS = 5

Part = tuple[Observation, np.ndarray]
"""What is special about a part of the estimate set, and its rows."""


def imbalance(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Accuracy per proportion of positives in the estimate set, over several draws."""
    return _observe_parts(tables, calibrators, _imbalanced_parts)


def size(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Accuracy per size of the estimate set, over several draws."""
    return _observe_parts(tables, calibrators, _smaller_parts)


def _observe_parts(
    tables: Sequence[ScoreTable],
    calibrators: Mapping[str, Calibrator],
    parts_of: Callable[[ScoreTable], Iterator[Part]],
) -> list[Observation]:
    on_estimate_set = {name: one for name, one in calibrators.items() if one.fits_on == "estimate"}
    others = {name: one for name, one in calibrators.items() if name not in on_estimate_set}
    observed: list[Observation] = []
    for table in tables:
        unchanged = accuracies(table, others)
        for conditions, rows in parts_of(table):
            fits, _ = fit_all(table, on_estimate_set, rows=rows)
            found = unchanged | {name: accuracy_of(table, one) for name, one in fits.items()}
            observed += observe(table, found, **conditions)
    return observed


def _imbalanced_parts(table: ScoreTable) -> Iterator[Part]:
    """Of 500 rows, or as many as the pool allows at the most extreme level.

    The labels of the estimate rows decide only which rows are drawn; the calibrators see scores.
    """
    negative, positive = (np.flatnonzero(table.gold_of("estimate") == label) for label in (0, 1))
    total = min(largest_imbalanced_set(len(negative), len(positive)), IMBALANCED_SIZE)
    for level, draw in product(LEVELS, range(DRAWS)):
        rng = np.random.default_rng(draw)
        positives = round(level * total)
        drawn = [(positive, positives), (negative, total - positives)]
        rows = np.concatenate([rng.choice(pool, count, replace=False) for pool, count in drawn])
        yield {"positives": level, "estimate_size": total, "draw": draw}, rows


def _smaller_parts(table: ScoreTable) -> Iterator[Part]:
    """Of each of the default sizes; at the last, the whole pool, all draws are the same rows."""
    pool = len(table.index_of("estimate"))
    for chosen, draw in product(default_sizes(len(table.labels), pool), range(DRAWS)):
        rows = np.sort(np.random.default_rng(draw).choice(pool, chosen, replace=False))
        yield {"estimate_size": chosen, "draw": draw}, rows


def default_sizes(labels: int, pool: int) -> list[int]:
    """Ten sizes, evenly spaced on a log scale from four rows per label to the whole pool; fewer if that is tiny."""
    smallest = min(SMALLEST_PER_LABEL * labels, pool)
    return sorted({round(value) for value in np.geomspace(smallest, pool, NUMBER_OF_SIZES).tolist()})


def enough_of_both_labels(table: ScoreTable) -> str | None:
    """A requirement: rows of both labels at every level of imbalance."""
    negatives, positives = np.bincount(table.gold_of("estimate"), minlength=2)
    possible = largest_imbalanced_set(negatives, positives) > 1
    return None if possible else f"{negatives} negative and {positives} positive estimate rows"


def largest_imbalanced_set(negatives: int, positives: int) -> int:
    largest = 0
    for candidate in range(2, negatives + positives + 1):
        wanted = [round(level * candidate) for level in LEVELS]
        if max(wanted) > positives or candidate - min(wanted) > negatives:
            break
        largest = candidate
    return largest
