"""Estimate sets with more rows of one label (Figure 5): SST-2 and Subj, one prompt each, five draws per level."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval_proca.metrics import grouped
from results.analyses import analysis_table, means_by
from results.markdown import TASKS, markdown, mean_and_sd, method_name, methods_of
from results.results_file import Row
from results.sweeps import SMOLLM2_ARGS, AnalysisRuns

RUNS = AnalysisRuns(
    f"lm-eval-proca analyze imbalance --model_args {SMOLLM2_ARGS} --seeds 0 --limit 200 --output .results/imbalance",
    model="SmolLM2-135M",
)
SHOWN = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The figure shows all nine."""


def levels(rows: Sequence[Row]) -> str:
    """By task and method, mean ± sd over draws at some proportions of positives."""
    lines = [
        [TASKS[task], method_name(method), *(mean_and_sd(alike, method=method, positives=level) for level in SHOWN)]
        for task, alike in grouped(rows, lambda row: row["task"]).items()
        for method in methods_of(alike)
    ]
    return markdown(["", "positives:", *(f"{level:.0%}" for level in SHOWN)], lines)


TABLE = analysis_table(
    "imbalance",
    RUNS,
    means_by("task", "positives", "calibrator"),
    {"levels": levels},
    figure="Accuracy over the proportion of positives in the estimate set, SST-2 and Subj",
)
