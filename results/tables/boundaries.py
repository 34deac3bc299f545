"""Where five prompts of SST-2 need the boundary between two labels (Figure 2), and what every method reaches there."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval_proca.metrics import grouped, mean_by
from lm_eval_proca.paper.boundaries import Boundaries
from results.analyses import analysed
from results.markdown import markdown, mean_and_sd, method_name, methods_of, percent
from results.results_file import DIGITS, Row
from results.sweeps import SMOLLM2_ARGS, Sweep
from results.table import Measured, Table

SWEEP = Sweep(
    f"lm-eval-proca sweep --model_args {SMOLLM2_ARGS} --tasks proca_sst2 --num_fewshot 4 --seeds 0 1 2 3 4 "
    "--output_path .results/sst2",
    model="SmolLM2-135M",
)
DRAWN = ("none", "conca", "bc", "proca")
"""`proca_h` reads hidden states: it has no boundary on the line of the figure."""


def measure(sweeps: Sequence[Sweep]) -> Measured:
    [sweep] = sweeps
    found = analysed("boundaries", sweep)
    rows = [
        {
            **{"seed": one["seed"], "method": one["calibrator"], "accuracy": one["accuracy"]},
            "boundaries": [round(boundary, DIGITS) for boundary in one["boundaries"]],
        }
        for one in found.observed
    ]
    drawn = [one for one in found.observed if one["calibrator"] in DRAWN]
    return Measured(rows, Boundaries(drawn, found.clouds).plot())


def prompts(rows: Sequence[Row]) -> str:
    """By prompt, the boundaries of the methods that have one, and the accuracy of all."""
    methods = methods_of(rows)
    moved = [method for method in DRAWN if method in methods and method != "none"]
    lines = []
    for seed, alike in grouped(rows, lambda row: row["seed"]).items():
        row_of = {row["method"]: row for row in alike}
        boundaries = [in_words(row_of[method]["boundaries"]) for method in moved]
        lines.append([str(seed), *boundaries, *(percent(row_of[method]["accuracy"]) for method in methods)])
    header = [*(f"boundary: {method_name(method)}" for method in moved)]
    return markdown(["seed", *header, *(f"accuracy: {method_name(method)}" for method in methods)], lines)


def sst2(rows: Sequence[Row]) -> str:
    """Mean ± sd over prompts."""
    means, methods = mean_by(rows, "method"), methods_of(rows)
    return markdown([*map(method_name, methods)], [[mean_and_sd(means, method=method) for method in methods]])


def in_words(boundaries: Sequence[float]) -> str:
    """None lies among the scores where every document gets the same label."""
    return " and ".join(f"{one:.2f}" for one in boundaries) or "none"


TABLE = Table(
    "boundaries",
    [SWEEP],
    measure,
    {"prompts": prompts, "sst2": sst2},
    figure="Score clouds of five prompts with the conventional and ProCa's boundary, and the accuracies of both",
)
