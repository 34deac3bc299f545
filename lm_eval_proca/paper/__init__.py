"""The paper's analyses over score tables, and ours. This module names them and is light to import."""

from __future__ import annotations

ANALYSES = {
    "boundaries": "decision boundaries of two prompts, with their score clouds (Figure 2)",
    "thresholds": "accuracy over all thresholds for several prompts (Figure 3)",
    "templates": "nine templates of SST-2 (Figure 4)",
    "imbalance": "class-imbalanced estimate sets, nine levels (Figure 5)",
    "proportions": "label proportions and orders of 8-shot demonstrations (Figure 6)",
    "selection": "restart selection by assignment score against likelihood (Table 3)",
    "size": "size of the estimate set (Figure 7)",
    "formats": "log-probability, probability or log-likelihood as output format (Figure 8)",
    "prototypes": "label scores against hidden states, with and without labels (docs/method.md)",
}

NOTES = {
    "prototypes": "labels_on_* are logistic regressions with the labels of all estimate rows.",
    "size": "at the size of the whole pool all draws are the same rows, so the spread there is zero.",
    "formats": "log_likelihood is the logit less the log of the sum over the vocabulary, not quite the paper's logit.",
}
"""What must be known to read a result."""
