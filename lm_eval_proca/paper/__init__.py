"""The paper's analyses over score tables, and ours: a module each. This one names them and is light to import."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lm_eval_proca.paper.analysis import Analysis

ANALYSES = {
    "boundaries": "decision boundaries of two prompts, with their score clouds (Figure 2)",
    "thresholds": "accuracy over all thresholds for several prompts (Figure 3)",
    "templates": "nine templates of SST-2 (Figure 4)",
    "imbalance": "class-imbalanced estimate sets, nine levels (Figure 5)",
    "proportions": "label proportions and orders of 8-shot demonstrations (Figure 6)",
    "selection": "restart selection by assignment score against likelihood (Table 3)",
    "size": "size of the estimate set (Figure 7)",
    "formats": "log-probability, probability or log-likelihood as output format (Figure 8)",
    "methods": "every method on every task, beside regressions that have labels (docs/method.md)",
    "prompts": "several prompts of each task: alone, together, and judged without labels (docs/prompts.md)",
}


def get_analysis(name: str) -> type[Analysis]:
    """The class `Size` of the module `size`, for instance; imported on first use."""
    return getattr(importlib.import_module(f"{__name__}.{name}"), name.capitalize())
