"""How much the class balance of the estimate set matters (Figure 5)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from lm_eval_proca.paper.analysis import Analysis
from lm_eval_proca.paper.display import lines_with_spread
from lm_eval_proca.paper.observations import Observations, Part, labeled_estimate_set, two_labels
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.grid import Grid

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Nine proportions of positive examples; the paper gives their number, not their values."""

LARGEST_SET = 500
DRAWS = 5


def largest_imbalanced_set(negatives: int, positives: int) -> int:
    largest = 0
    for candidate in range(2, negatives + positives + 1):
        wanted = [round(level * candidate) for level in LEVELS]
        if max(wanted) > positives or candidate - min(wanted) > negatives:
            break
        largest = candidate
    return largest


def enough_of_both_labels(table: ScoreTable) -> str | None:
    negatives, positives = np.bincount(table.gold_of("estimate"), minlength=2)
    possible = largest_imbalanced_set(negatives, positives) > 1
    return None if possible else f"{negatives} negative and {positives} positive estimate rows"


class Imbalance(Analysis):
    """Figure 5: accuracy over the proportion of positives in the estimate set, one panel per task."""

    # 450 rows of one label at the most extreme level of 500: the pool must hold that many of each label.
    plan = Grid(("proca_sst2", "proca_subj"), settings=(("estimate_size", 1200),))
    requirements = (two_labels, labeled_estimate_set, enough_of_both_labels)
    printed = ("estimate_size", "positives", "calibrator")
    panel_size = (4.4, 3.4)

    @classmethod
    def parts_of(cls, table: ScoreTable) -> Iterator[Part]:
        """Parts of 500 rows, or as many as the pool allows at the most extreme level, several draws for each level.

        The labels of the estimate rows decide only which rows are drawn; the calibrators see scores.
        """
        negative, positive = (np.flatnonzero(table.gold_of("estimate") == label) for label in (0, 1))
        total = min(largest_imbalanced_set(len(negative), len(positive)), LARGEST_SET)
        for level, draw in product(LEVELS, range(DRAWS)):
            rng = np.random.default_rng(draw)
            positives = round(level * total)
            drawn = [(positive, positives), (negative, total - positives)]
            rows = np.concatenate([rng.choice(pool, count, replace=False) for pool, count in drawn])
            yield {"positives": level, "estimate_size": total, "draw": draw}, rows

    def draw(self, ax: Any, observed: Observations, panel: Any) -> None:
        ax.set_xticks(lines_with_spread(ax, observed, "positives"))
        ax.set_xlabel("proportion of positives in the estimate set")
