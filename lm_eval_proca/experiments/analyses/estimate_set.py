"""How much the estimate set matters: its class balance (Figure 5) and its size (Figure 7).

Both draw parts of a scored pool, so one run of the model serves all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import clone

from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.experiments.analyses.measurements import Row, need_estimate_set, need_two_labels, prompt_of
from lm_eval_proca.experiments.calibrate import RAW, accuracy_of, can_fit, fit
from lm_eval_proca.score_table import ScoreTable

if TYPE_CHECKING:
    from lm_eval_proca.calibration.base import Calibrator

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
) -> list[Row]:
    """Accuracy per proportion of positives in the estimate set, `draws` sets of `size` rows for each.

    The labels of the estimate rows decide only which rows are drawn; the calibrators see scores. By default the sets
    are of 500 rows, or as large as the pool allows at the most extreme level. Raw scores and contextual calibration
    do not depend on the estimate set and come once per level and draw, for comparison.
    """
    rows = []
    for table in tables:
        need_two_labels(table, "imbalance")
        need_estimate_set(table, "imbalance", labeled=True)
        pool, gold = table.scores_of("estimate"), table.gold_of("estimate")
        of_label = [np.flatnonzero(gold == label) for label in (0, 1)]
        largest = _largest_imbalanced_set(len(of_label[0]), len(of_label[1]), levels)
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
                part = np.concatenate(
                    [
                        rng.choice(of_label[1], positives, replace=False),
                        rng.choice(of_label[0], chosen - positives, replace=False),
                    ]
                )
                for name, accuracy in (unchanged | _fitted_on(pool[part], table, calibrators)).items():
                    rows.append(
                        {
                            **prompt_of(table),
                            "positives": float(level),
                            "estimate_size": chosen,
                            "draw": draw,
                            "calibrator": name,
                            "accuracy": accuracy,
                        }
                    )
    return rows


def size(
    tables: Sequence[ScoreTable],
    calibrators: Mapping[str, Calibrator],
    *,
    sizes: Sequence[int] | None = None,
    draws: int = DRAWS,
) -> list[Row]:
    """Accuracy per size of the estimate set, `draws` random parts of the pool for each.

    By default ten sizes, evenly spaced on a log scale from four rows per label to the whole pool, where all draws
    are the same rows.
    """
    rows = []
    for table in tables:
        need_estimate_set(table, "size")
        pool = table.scores_of("estimate")
        chosen = default_sizes(len(table.labels), len(pool)) if sizes is None else list(sizes)
        if max(chosen) > len(pool):
            raise ScoreTableError(
                f"{table.metadata.get('task')}: the pool has {len(pool)} estimate rows, {max(chosen)} were asked for; "
                f"score a larger one (proca.estimate_size) or give smaller sizes."
            )
        unchanged = _independent_of_estimate_set(table, calibrators)
        for estimate_size in chosen:
            for draw in range(draws):
                part = np.sort(np.random.default_rng(draw).choice(len(pool), estimate_size, replace=False))
                for name, accuracy in (unchanged | _fitted_on(pool[part], table, calibrators)).items():
                    rows.append(
                        {
                            **prompt_of(table),
                            "estimate_size": int(estimate_size),
                            "draw": draw,
                            "calibrator": name,
                            "accuracy": accuracy,
                        }
                    )
    return rows


def default_sizes(labels: int, pool: int) -> list[int]:
    """Ten sizes from four rows per label to the whole pool, fewer where the pool is tiny."""
    smallest = min(SMALLEST_PER_LABEL * labels, pool)
    return sorted({round(value) for value in np.geomspace(smallest, pool, NUMBER_OF_SIZES).tolist()})


def _largest_imbalanced_set(negatives: int, positives: int, levels: Sequence[float]) -> int:
    largest = 0
    for candidate in range(2, negatives + positives + 1):
        wanted = [round(level * candidate) for level in levels]
        if max(wanted) > positives or candidate - min(wanted) > negatives:
            break
        largest = candidate
    return largest


def _independent_of_estimate_set(table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> dict[str, float]:
    fixed = {
        name: accuracy_of(table, fit(calibrator, table))
        for name, calibrator in calibrators.items()
        if calibrator.fits_on != "estimate" and can_fit(calibrator, table)
    }
    return {RAW: accuracy_of(table)} | fixed


def _fitted_on(scores: np.ndarray, table: ScoreTable, calibrators: Mapping[str, Calibrator]) -> dict[str, float]:
    return {
        name: accuracy_of(table, clone(calibrator).fit(scores))
        for name, calibrator in calibrators.items()
        if calibrator.fits_on == "estimate"
    }
