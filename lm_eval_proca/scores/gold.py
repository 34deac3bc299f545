"""The gold label of a document, by lm-eval's rule for what a task's `doc_to_target` gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lm_eval_proca.scores.score_table import NO_GOLD


def gold_index(target: Any, labels: Sequence[str]) -> int:
    """Index of the gold label; NO_GOLD for a target that is no label: -1, None, an unknown word.

    A number is an index, and so is a boolean: True is the second label. A string is a label word, also one of digits.

    Examples
    --------
    >>> labels = ["1", "2", "3"]
    >>> gold_index(2, labels), gold_index("2", labels), gold_index(True, labels)
    (2, 1, 1)
    >>> gold_index(-1, labels), gold_index(3, labels), gold_index(None, labels), gold_index("4", labels)
    (-1, -1, -1, -1)
    """
    if isinstance(target, str):
        return labels.index(target) if target in labels else NO_GOLD
    is_index = isinstance(target, (int, np.integer)) and 0 <= target < len(labels)
    return int(target) if is_index else NO_GOLD
