"""Label proportions and orders of eight demonstrations (Figure 6): 108 prompts of SST-2."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval_proca.metrics import Observation
from results.analyses import analysis_table, means_by
from results.markdown import markdown, mean_and_sd, method_name, methods_of
from results.results_file import Row
from results.sweeps import SMOLLM2_ARGS, AnalysisRuns

RUNS = AnalysisRuns(
    f"lm-eval-proca analyze proportions --model_args {SMOLLM2_ARGS} --limit 60 --metadata proca.estimate_size=64 "
    "--output .results/proportions",
    model="SmolLM2-135M",
)
DEMONSTRATIONS = 8
SHOWN = (0, 2, 4, 6, 8)
"""The figure shows all nine."""
ALL = "all"


def rows_of(observed: Sequence[Observation]) -> list[Row]:
    """Mean over the orders of every proportion; then over all prompts."""
    over_all = means_by("calibrator")(observed)
    return [*means_by("positives", "calibrator")(observed), *({"positives": ALL, **row} for row in over_all)]


def proportions(rows: Sequence[Row]) -> str:
    """By method, mean ± sd over orders at some proportions, and over all prompts."""
    lines = [
        [method_name(method), *(mean_and_sd(rows, method=method, positives=count) for count in (*SHOWN, ALL))]
        for method in methods_of(rows)
    ]
    prompts = next(row["n"] for row in rows if row["positives"] == ALL)
    ratios = (f"{DEMONSTRATIONS - count}:{count}" for count in SHOWN)
    return markdown(["negative:positive", *ratios, f"all {prompts} prompts"], lines)


TABLE = analysis_table(
    "proportions",
    RUNS,
    rows_of,
    {"proportions": proportions},
    figure="Boxes of accuracy over twelve orders for nine proportions of labels in 8-shot prompts",
)
