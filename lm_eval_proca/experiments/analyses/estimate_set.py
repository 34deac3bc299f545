"""How much the estimate set matters: its class balance (Figure 5) and its size (Figure 7).

Both draw parts of a scored pool, so one run of the model serves all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.experiments.analyses.observations import prompt_of
from lm_eval_proca.experiments.recalibration import accuracies, accuracy_of
from lm_eval_proca.fitting import fit_all
from lm_eval_proca.score_table import ScoreTable
from lm_eval_proca.statistics import Observation

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Nine proportions of positive examples; the paper gives their number, not their values."""

IMBALANCED_SIZE = 500
SMALLEST_PER_LABEL = 4
NUMBER_OF_SIZES = 10
DRAWS = 5


def imbalance(
    tables: Sequence[ScoreTable],
    calibrators: Mapping[str, Calibrator],
    *,
    levels: Sequence[float] = LEVELS,
    size: int | None = None,
    draws: int = DRAWS,
) -> list[Observation]:
    """Accuracy per proportion of positives in the estimate set, `draws` sets of `size` rows for each.

    The labels of the estimate rows decide only which rows are drawn; the calibrators see scores. By default the sets
    are of 500 rows, or as large as the pool allows at the most extreme level. Raw scores and contextual calibration
    do not depend on the estimate set and come once per level and draw, for comparison.
    """
    observed: list[Observation] = []
    for table in tables:
        of_label = [np.flatnonzero(table.gold_of("estimate") == label) for label in (0, 1)]
        largest = largest_imbalanced_set(len(of_label[0]), len(of_label[1]), levels)
        chosen = min(largest, IMBALANCED_SIZE) if size is None else size
        if chosen > largest or chosen < 2:
            raise ScoreTableError(
                f"{table.metadata.get('task')}: {len(of_label[0])} negative and {len(of_label[1])} positive estimate "
                f"rows allow at most {largest} at every level; score a larger pool (proca.estimate_size)."
            )
        unchanged = _independent_of_estimate_set(table, calibrators)
        for level in levels:
            positives = round(level * chosen)
            for draw in range(draws):
                rng = np.random.default_rng(draw)
                drawn = [(of_label[1], positives), (of_label[0], chosen - positives)]
                part = np.concatenate([rng.choice(pool, count, replace=False) for pool, count in drawn])
                conditions = {"positives": float(level), "estimate_size": chosen, "draw": draw}
                observed += _observe(table, conditions, unchanged | _fitted_on(part, table, calibrators))
    return observed


def size(
    tables: Sequence[ScoreTable],
    calibrators: Mapping[str, Calibrator],
    *,
    sizes: Sequence[int] | None = None,
    draws: int = DRAWS,
) -> list[Observation]:
    """Accuracy per size of the estimate set, `draws` random parts of the pool for each.

    By default ten sizes, evenly spaced on a log scale from four rows per label to the whole pool, where all draws
    are the same rows.
    """
    observed: list[Observation] = []
    for table in tables:
        pool = len(table.index_of("estimate"))
        chosen = default_sizes(len(table.labels), pool) if sizes is None else list(sizes)
        if max(chosen) > pool:
            raise ScoreTableError(
                f"{table.metadata.get('task')}: the pool has {pool} estimate rows, {max(chosen)} were asked for; "
                f"score a larger one (proca.estimate_size) or give smaller sizes."
            )
        unchanged = _independent_of_estimate_set(table, calibrators)
        for estimate_size in chosen:
            for draw in range(draws):
                part = np.sort(np.random.default_rng(draw).choice(pool, estimate_size, replace=False))
                conditions = {"estimate_size": int(estimate_size), "draw": draw}
                observed += _observe(table, conditions, unchanged | _fitted_on(part, table, calibrators))
    return observed


def default_sizes(labels: int, pool: int) -> list[int]:
    """Ten sizes from four rows per label to the whole pool, fewer where the pool is tiny."""
    smallest = min(SMALLEST_PER_LABEL * labels, pool)
    return sorted({round(value) for value in np.geomspace(smallest, pool, NUMBER_OF_SIZES).tolist()})


def enough_of_both_labels(table: ScoreTable) -> str | None:
    """A requirement: rows of both labels at every level of imbalance."""
    negatives, positives = np.bincount(table.gold_of("estimate"), minlength=2)
    possible = largest_imbalanced_set(negatives, positives, LEVELS) > 1
    return None if possible else f"{negatives} negative and {positives} positive estimate rows"


def largest_imbalanced_set(negatives: int, positives: int, levels: Sequence[float]) -> int:
    largest = 0
    for candidate in range(2, negatives + positives + 1):
        wanted = [round(level * candidate) for level in levels]
        if max(wanted) > positives or candidate - min(wanted) > negatives:
            break
        largest = candidate
    return largest


def _observe(table: ScoreTable, conditions: Observation, found: Mapping[str, float]) -> list[Observation]:
    run = {**prompt_of(table), **conditions}
    return [{**run, "calibrator": name, "accuracy": accuracy} for name, accuracy in found.items()]


def _independent_of_estimate_set(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> dict[str, float]:
    return accuracies(table, {name: one for name, one in calibrators.items() if one.fits_on != "estimate"})


def _fitted_on(part: np.ndarray, table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> dict[str, float]:
    fits, _ = fit_all(table, {name: one for name, one in calibrators.items() if one.fits_on == "estimate"}, rows=part)
    return {name: accuracy_of(table, one) for name, one in fits.items()}
