"""How close ProCa comes to the best threshold that labels could choose, for five prompts of SST-2 (Figure 3)."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval_proca.metrics import Observation, mean
from lm_eval_proca.paper.observations import only
from results.analyses import analysis_table
from results.markdown import markdown, percent, signed
from results.results_file import DIGITS, Row
from results.tables.boundaries import SWEEP, in_words

ACCURACIES = {"conventional_accuracy": "at 0.5", "proca_accuracy": "ProCa", "best_accuracy": "best threshold"}


def rows_of(observed: Sequence[Observation]) -> list[Row]:
    found = only(observed, "seed", *ACCURACIES, "best_threshold", "proca_boundaries")
    return [{**one, "proca_boundaries": [round(place, DIGITS) for place in one["proca_boundaries"]]} for one in found]


def prompts(rows: Sequence[Row]) -> str:
    """By prompt: accuracy at 0.5, of ProCa and of the best of all thresholds; and where the last two are."""
    lines = [
        [str(row["seed"]), *_accuracies(row), in_words(row["proca_boundaries"]), f"{row['best_threshold']:.2f}"]
        for row in rows
    ]
    means = {column: mean(row[column] for row in rows) for column in ACCURACIES}
    header = [*ACCURACIES.values(), "ProCa less the best", "boundary of ProCa", "where the best is"]
    return markdown(["seed", *header], [*lines, ["**mean**", *_accuracies(means), "", ""]])


def _accuracies(row: Row) -> list[str]:
    left = 100 * (row["proca_accuracy"] - row["best_accuracy"])
    return [*(percent(row[column]) for column in ACCURACIES), signed(left)]


TABLE = analysis_table(
    "thresholds",
    SWEEP,
    rows_of,
    {"prompts": prompts},
    figure="Heat map: accuracy by threshold for five prompts, with the conventional threshold and ProCa's boundary",
)
