"""Results of lm-eval as a pandas data frame."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval_proca.runs.output_folder import mapping, read_document

if TYPE_CHECKING:
    import pandas as pd


def results_frame(results: Mapping[str, Any] | str | os.PathLike[str]) -> pd.DataFrame:
    """lm-eval's table as a data frame: one row for each task or group, filter and metric.

    Parameters
    ----------
    results : mapping or path
        What `lm_eval.simple_evaluate` returned, or a results file that `lm_eval --output_path` wrote.

    Examples
    --------
    >>> metrics = {"alias": "sst2", "acc,none": 0.5, "acc_stderr,none": 0.02}
    >>> results_frame({"results": {"sst2": metrics}, "n-shot": {"sst2": 4}}).to_dict("records")
    [{'task': 'sst2', 'shots': 4, 'filter': 'none', 'metric': 'acc', 'value': 0.5, 'stderr': 0.02}]
    """
    import pandas as pd  # here, since nothing else needs it

    document = results if isinstance(results, Mapping) else read_document(Path(results))
    rows = []
    for task, metrics in document["results"].items():
        for key, value in metrics.items():
            metric, comma, name = key.partition(",")
            if comma and not metric.endswith("_stderr"):
                stderr = metrics.get(f"{metric}_stderr,{name}")
                stderr = stderr if isinstance(stderr, (int, float)) else None  # lm-eval writes N/A
                shots = mapping(document, "n-shot").get(task)
                rows.append((task, shots, name, metric, value, stderr))
    return pd.DataFrame(rows, columns=["task", "shots", "filter", "metric", "value", "stderr"])
