"""What ProCa is fitted on (Figure 8): SST-2, AGNews and AP, 0 and 4 shots, three seeds."""

from __future__ import annotations

from collections.abc import Sequence

from results.analyses import analysis_table, means_by
from results.nine import part_of_nine
from results.results_file import Row
from results.tables.selection import by_setting

NAMES = {"log_likelihood": "log-likelihoods", "prob": "probabilities", "log_prob": "log-probabilities"}


def accuracies(rows: Sequence[Row]) -> str:
    """Mean ± sd over seeds."""
    return by_setting(rows, "features", NAMES, ())


TABLE = analysis_table(
    "formats",
    part_of_nine("proca_sst2 proca_agnews proca_ap"),
    means_by("task", "num_fewshot", "features"),
    {"accuracies": accuracies},
    figure="Accuracy of ProCa on log-likelihoods, probabilities and log-probabilities",
)
