"""The gold label of a document, by lm-eval's rule for what `doc_to_target` gives.

A sample log has the text of a target only; runs/sample_logs.py decides first what was meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np

NO_GOLD = -1
"""The index that stands for no gold label."""


def gold_index(target: Any, labels: Sequence[str]) -> int:
    """Index of the label that a task's `doc_to_target` names: a word that is one of `labels`, or a number.

    Examples
    --------
    >>> [gold_index(target, ["no", "yes"]) for target in ("yes", 1, True, 1.0)]
    [1, 1, 1, 1]
    >>> [gold_index(target, ["no", "yes"]) for target in (-1, 2, None, "maybe", " yes")]
    [-1, -1, -1, -1, -1]
    """
    if isinstance(target, str):
        return list(labels).index(target) if target in labels else NO_GOLD
    if not isinstance(target, (Real, np.bool_)) or float(target) not in range(len(labels)):
        return NO_GOLD
    return round(float(target))


def is_missing(target: Any) -> bool:
    """Whether a target says that a document has no label: -1, nothing, an empty word, or an empty cell of a table.

    Examples
    --------
    >>> [is_missing(target) for target in (-1, None, "", float("nan"), 0, "no")]
    [True, True, True, True, False, False]
    """
    return target in (-1, None, "") or target != target
