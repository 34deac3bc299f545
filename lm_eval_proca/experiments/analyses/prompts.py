"""How much the prompt matters: nine templates (Figure 4), label proportions and orders of demonstrations (Figure 6)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.experiments.analyses.measurements import Row, need_two_labels, prompt_of
from lm_eval_proca.experiments.calibrate import accuracies
from lm_eval_proca.score_table import ScoreTable

if TYPE_CHECKING:
    from lm_eval_proca.calibration.base import Calibrator


def templates(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Row]:
    """Accuracy of every method under every prompt; the task's name says the template."""
    return [
        {**prompt_of(table), "calibrator": name, "accuracy": accuracy}
        for table in tables
        for name, accuracy in accuracies(table, calibrators).items()
    ]


def proportions(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Row]:
    """Accuracy of every method per number of positive demonstrations and order (two labels)."""
    rows = []
    for table in tables:
        need_two_labels(table, "proportions")
        counts, order = (table.metadata.get(key) for key in ("demonstration_counts", "order_seed"))
        if counts is None or order is None:
            raise ScoreTableError(
                f"The analysis `proportions` needs runs with the settings demonstration_counts and order_seed, a table "
                f"of {table.metadata.get('task')} has none; let the command make its runs (--model_args)."
            )
        positives = int((counts.split("/") if isinstance(counts, str) else counts)[1])
        for name, accuracy in accuracies(table, calibrators).items():
            rows.append(
                {**prompt_of(table), "positives": positives, "order": order, "calibrator": name, "accuracy": accuracy}
            )
    return rows
