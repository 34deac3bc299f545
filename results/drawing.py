"""Figures of our own, in the look of the analyses' figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_eval_proca.paper.analysis import DPI
from lm_eval_proca.paper.display import STYLE


@contextmanager
def picture(path: Path, rows: int = 1, columns: int = 1, **shape: Any) -> Iterator[tuple[Any, Any]]:
    """A figure and its axes (rows, columns) to draw on; the file is written when all is drawn."""
    import matplotlib.pyplot as plt

    with plt.style.context(STYLE):
        figure, axes = plt.subplots(rows, columns, squeeze=False, layout="constrained", **shape)
        yield figure, axes
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DPI, facecolor="white")
        plt.close(figure)
