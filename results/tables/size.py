"""How many unlabeled rows calibrators need (Figure 7): five tasks, one prompt each, five draws of every size."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval_proca.metrics import grouped
from results.analyses import analysis_table, means_by
from results.markdown import TASKS, markdown, mean_and_sd, method_name, methods_of
from results.nine import part_of_nine
from results.results_file import Row

SHOWN = (0, 3, 6, -1)
"""Of the ten sizes in the figure."""


def sizes(rows: Sequence[Row]) -> str:
    """By task and size, mean ± sd over draws."""
    methods = methods_of(rows)
    lines = []
    for task, alike in grouped(rows, lambda row: row["task"]).items():
        known = sorted({row["estimate_size"] for row in alike})
        for size in (known[place] for place in SHOWN):
            found = [mean_and_sd(alike, estimate_size=size, method=method) for method in methods]
            lines.append([TASKS[task], str(size), *found])
    return markdown(["", "rows", *map(method_name, methods)], lines)


TABLE = analysis_table(
    "size",
    part_of_nine("proca_sst2 proca_mr proca_subj proca_agnews proca_trec", shots="4", seeds="0"),
    means_by("task", "estimate_size", "calibrator"),
    {"sizes": sizes},
    figure="Accuracy by size of the estimate set on five datasets, five draws each",
)
