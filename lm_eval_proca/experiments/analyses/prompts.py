"""How much the prompt matters: nine templates (Figure 4), label proportions and orders of demonstrations (Figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.experiments.analyses.observations import prompt_of
from lm_eval_proca.experiments.recalibration import accuracies
from lm_eval_proca.score_table import ScoreTable
from lm_eval_proca.statistics import Observation


def templates(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Accuracy of every method under every prompt; the task's name says the template."""
    return [
        {**prompt_of(table), "calibrator": name, "accuracy": accuracy}
        for table in tables
        for name, accuracy in accuracies(table, calibrators).items()
    ]


def proportions(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Accuracy of every method per number of positive demonstrations and order (two labels)."""
    observed = []
    for table in tables:
        counts = table.metadata["demonstration_counts"]
        positives = int((counts.split("/") if isinstance(counts, str) else counts)[1])
        run = {**prompt_of(table), "positives": positives, "order": table.metadata["order_seed"]}
        observed += [
            {**run, "calibrator": name, "accuracy": accuracy}
            for name, accuracy in accuracies(table, calibrators).items()
        ]
    return observed
