"""Decision boundaries of two-label tasks (section 2 of the paper, Figures 2 and 3).

With two labels everything happens on one line: P(positive), where "positive" is the label of index 1. The
conventional boundary is 0.5; a calibrator's boundary lies wherever its prediction changes along the line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import expit, log_expit

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.metrics import Observation, accuracy
from lm_eval_proca.paper.observations import prompt_of
from lm_eval_proca.scores.fitting import RAW, accuracy_of, fit, fit_all
from lm_eval_proca.scores.score_table import ScoreTable

CONVENTIONAL = 0.5
NUMBER_OF_THRESHOLDS = 41
STEPS = 4000


def positive_log_odds(table: ScoreTable) -> np.ndarray:
    """log P(positive) / P(negative) of each evaluation row."""
    scores = table.scores_of("eval")
    return scores[:, 1] - scores[:, 0]


def decision_boundaries(calibrator: Calibrator, log_odds: np.ndarray) -> list[float]:
    """Every P(positive) within the range of some log-odds at which the prediction of a fitted calibrator changes.

    Two Gaussians of unequal width meet twice, so ProCa may have two.
    """

    def predict(odds: np.ndarray) -> np.ndarray:
        return calibrator.predict(np.column_stack([log_expit(-odds), log_expit(odds)]))

    line = np.linspace(log_odds.min(), log_odds.max(), STEPS)
    predicted = predict(line)
    changes = np.flatnonzero(predicted[1:] != predicted[:-1])
    left, right, before = line[changes], line[changes + 1], predicted[changes]
    for _ in range(30):
        middle = (left + right) / 2
        same = predict(middle) == before if len(middle) else np.zeros(0, dtype=bool)
        left, right = np.where(same, middle, left), np.where(same, right, middle)
    return expit((left + right) / 2).tolist()


def compare_boundaries(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Figure 2: per prompt and method, the boundary and the accuracy it gives."""
    observed: list[Observation] = []
    for table in tables:
        odds = positive_log_odds(table)
        common = prompt_of(table)
        observed.append({**common, "calibrator": RAW, "boundaries": [CONVENTIONAL], "accuracy": accuracy_of(table)})
        for name, one in fit_all(table, calibrators)[0].items():
            found = decision_boundaries(one.calibrator, odds)
            observed.append({**common, "calibrator": name, "boundaries": found, "accuracy": accuracy_of(table, one)})
    return observed


def score_clouds(tables: Sequence[ScoreTable]) -> list[Observation]:
    """Figure 2: P(positive) of every evaluation row, with the word of its true label."""
    observed: list[Observation] = []
    for table in tables:
        common = prompt_of(table)
        for probability, label in zip(expit(positive_log_odds(table)), table.gold_of("eval"), strict=True):
            observed.append(
                {**common, "label": int(label), "word": table.labels[label], "p_positive": float(probability)}
            )
    return observed


def accuracy_over_thresholds(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Figure 3: accuracy when a row is positive if P(positive) exceeds the threshold, for a grid of thresholds.

    There are 41, evenly spaced in log-odds over the scores of all tables (but for the most extreme of a hundred), with
    0.5 in the middle. Every row also says which threshold of *all* would have been best (the supervised ceiling, which
    needs labels), and what ProCa reaches without labels.
    """
    observed: list[Observation] = []
    reach = max(np.quantile(np.abs(positive_log_odds(table)), 0.99) for table in tables)
    thresholds = expit(np.linspace(-reach, reach, NUMBER_OF_THRESHOLDS)).tolist()
    for table in tables:
        odds, positive = positive_log_odds(table), table.gold_of("eval") == 1
        probability = expit(odds)
        best_threshold, best_accuracy = best_possible_threshold(probability, positive)
        fitted = fit(calibrators["proca"], table)
        common = {
            **prompt_of(table),
            "conventional_accuracy": accuracy_of(table),
            "best_threshold": best_threshold,
            "best_accuracy": best_accuracy,
            "proca_boundaries": decision_boundaries(fitted.calibrator, odds),
            "proca_accuracy": accuracy_of(table, fitted),
        }
        for threshold in thresholds:
            right = accuracy(positive, probability > threshold)
            observed.append({**common, "threshold": threshold, "accuracy": right})
    return observed


def best_possible_threshold(probability: np.ndarray, positive: np.ndarray) -> tuple[float, float]:
    """The threshold with the highest accuracy of all, and that accuracy."""
    order = np.argsort(probability, kind="stable")
    values, hits = probability[order], positive[order]
    # right[k]: accuracy when the k lowest rows are called negative and the others positive.
    right = (np.concatenate([[0], np.cumsum(~hits)]) + np.concatenate([np.cumsum(hits[::-1])[::-1], [0]])) / len(hits)
    edges = np.concatenate([[0.0], (values[1:] + values[:-1]) / 2, [1.0]])
    usable = np.concatenate([[True], values[1:] > values[:-1], [True]])
    best = int(np.argmax(np.where(usable, right, -1.0)))
    return float(edges[best]), float(right[best])
