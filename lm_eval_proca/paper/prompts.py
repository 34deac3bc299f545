"""How much the prompt matters: nine templates (Figure 4), label proportions and orders of demonstrations (Figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.metrics import Observation
from lm_eval_proca.paper.observations import observe
from lm_eval_proca.scores.fitting import accuracies
from lm_eval_proca.scores.score_table import ScoreTable


def templates(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Accuracy of every method under every prompt; the task's name says the template."""
    return [one for table in tables for one in observe(table, accuracies(table, calibrators))]


def proportions(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Accuracy of every method per number of positive demonstrations and order (two labels)."""
    observed: list[Observation] = []
    for table in tables:
        _, positives = table.record.demonstration_counts or (0, 0)
        order = table.record.order_seed
        observed += observe(table, accuracies(table, calibrators), positives=positives, order=order)
    return observed
