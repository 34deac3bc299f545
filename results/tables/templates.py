"""Nine templates of SST-2 (Figure 4): one prompt each, 100 evaluated and 200 unlabeled rows."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval_proca.metrics import mean, standard_deviation
from lm_eval_proca.paper.display import distinct
from results.analyses import analysis_table, means_by
from results.markdown import markdown, method_name, methods_of, percent, spread
from results.results_file import Row
from results.sweeps import SMOLLM2_ARGS, AnalysisRuns

RUNS = AnalysisRuns(
    f"lm-eval-proca analyze templates --model_args {SMOLLM2_ARGS} --seeds 0 --limit 100 "
    "--metadata proca.estimate_size=200 --output .results/templates",
    model="SmolLM2-135M",
)


def accuracies(rows: Sequence[Row]) -> str:
    """By method, every template; then mean ± sd over templates."""
    lines = []
    for method in methods_of(rows):
        found = [row["accuracy"] for row in rows if row["method"] == method]
        over_all = percent(mean(found)) + spread(standard_deviation(found))
        lines.append([method_name(method), *map(percent, found), over_all])
    tasks = distinct(row["task"] for row in rows)
    return markdown(["", *(task.removeprefix("template ") for task in tasks), "mean ± sd"], lines)


TABLE = analysis_table(
    "templates",
    RUNS,
    means_by("task", "calibrator"),
    {"accuracies": accuracies},
    figure="Accuracy of every method under nine templates of SST-2",
)
