"""What an analysis is: the runs that it needs, what it measures on their tables, how that is printed and drawn."""

from __future__ import annotations

import os
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lm_eval_proca.errors import ProcaError
from lm_eval_proca.metrics import Observation, grouped, mean_by
from lm_eval_proca.paper.display import STYLE, distinct, short_name
from lm_eval_proca.paper.observations import PROMPT, Calibrators, Observations, Part, Requirement, Tables, observe
from lm_eval_proca.scores.fitting import accuracies
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.grid import Grid

COLUMNS_OF_PANELS = 3
DPI = 200


class MissingMatplotlib(ProcaError, ImportError):
    """Figures were asked for and the optional package that draws them is not there."""


class Analysis(ABC):
    """What one analysis observed, and how it is printed and drawn, in the manner of scikit-learn's displays.

    Its class says which runs it needs. matplotlib is imported when something is drawn.

    Attributes
    ----------
    observed, clouds : list of dict
        Every accuracy with what it belongs to; and single documents, for figures that show them.
    ax_ : Axes or ndarray of Axes
        The axes drawn on: one, or as many as there are panels.
    figure_ : Figure
        The figure that holds them.
    """

    plan: ClassVar[Grid]
    """The runs of the paper."""
    requirements: ClassVar[Sequence[Requirement]] = ()
    """What a table must have."""
    needs: ClassVar[tuple[str, ...]] = ()
    """Calibrators that it uses, whichever are asked for."""
    printed: ClassVar[tuple[str, ...]] = ("calibrator",)
    """The columns by which the command prints means, after those of the prompt."""
    note: ClassVar[str] = ""
    """What must be known to read the result."""

    panel_size: tuple[float, float] = (3.6, 3.0)
    panel_by: ClassVar[tuple[str, ...]] = PROMPT
    """The columns that have one value in a panel; observations of different models must not be averaged."""
    shared_legend: ClassVar[bool] = True
    ylabel: ClassVar[str] = "accuracy (%)"

    def __init__(self, observed: Observations, clouds: Observations = ()) -> None:
        if not observed:
            raise ProcaError("There is nothing to draw: the analysis observed nothing.")
        self.observed = list(observed)
        self.clouds = list(clouds)

    @classmethod
    def from_tables(cls, tables: Tables, calibrators: Calibrators) -> Analysis:
        return cls(cls.observe(tables, calibrators), cls.observe_documents(tables))

    @classmethod
    def observe(cls, tables: Tables, calibrators: Calibrators) -> list[Observation]:
        """The accuracy of every method; with parts of the estimate set, one run of the model serves all of them."""
        return [
            one
            for table in tables
            for conditions, rows in cls.parts_of(table)
            for one in observe(table, accuracies(table, calibrators, rows=rows), **conditions)
        ]

    @classmethod
    def parts_of(cls, table: ScoreTable) -> Iterable[Part]:
        """What calibrators are fitted on, one after the other."""
        return [({}, None)]

    @classmethod
    def observe_documents(cls, tables: Tables) -> list[Observation]:
        return []

    def summary(self) -> list[Observation]:
        """What the command prints."""
        return mean_by(self.observed, *PROMPT, *self.printed)

    def further(self) -> list[Observation]:
        """A second table, which is printed below the first."""
        return []

    def panels(self) -> dict[Any, list[Observation]]:
        """What each panel shows, by what it is about."""
        return grouped(self.observed, lambda one: tuple(one[column] for column in self.panel_by))

    def title(self, panel: Any) -> str:
        """The task, and what else differs between panels."""
        told = {"model": "{}", "task": "{}", "num_fewshot": "{}-shot"}
        shown = {
            key: value
            for key, value in zip(self.panel_by, panel, strict=True)
            if key == "task" or len({one[key] for one in self.observed}) > 1
        }
        return ", ".join(told[key].format(short_name(str(value))) for key, value in shown.items())

    @abstractmethod
    def draw(self, ax: Any, observed: Observations, panel: Any) -> None:
        """Draw one panel."""

    def footnote(self) -> str:
        """What the figure rests on: models, and evaluation rows per run, which may have been limited."""
        models = ", ".join(distinct(str(one["model"]) for one in self.observed))
        sizes = sorted({one["eval_rows"] for one in self.observed})
        return f"{models}; {sizes[0]}{f' to {sizes[-1]}' if len(sizes) > 1 else ''} evaluation rows per run"

    def plot(self, ax: Any = None) -> Analysis:
        """Draw on `ax` (an array of axes where there are several panels), or on a new figure."""
        with _pyplot().style.context(STYLE):
            panels = self.panels()
            axes = self._new_axes(len(panels)) if ax is None else np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
            if len(axes) != len(panels):
                raise ProcaError(f"This figure has {len(panels)} panels, {len(axes)} axes were given.")
            for axis, (panel, observed) in zip(axes, panels.items(), strict=True):
                axis.set_ylabel(self.ylabel)
                axis.set_title(self.title(panel))
                self.draw(axis, observed, panel)
            figure = axes[0].figure
            if ax is None:
                lines = textwrap.wrap(self.footnote(), width=int(15 * figure.get_figwidth()))
                figure.supxlabel("\n".join(lines), fontsize=8, color="#666666")
            if self.shared_legend:
                found = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
                named = {name: handle for handle, name in found}  # a method may be in some of the panels only
                place = {"loc": "outside upper center", "ncols": len(named)} if ax is None else {}
                (figure if ax is None else axes[0]).legend(named.values(), named.keys(), **place)
        self.figure_ = figure
        self.ax_ = axes if len(panels) > 1 else axes[0]
        return self

    def _new_axes(self, panels: int) -> np.ndarray:
        width, height = self.panel_size
        columns = min(panels, COLUMNS_OF_PANELS)
        rows = -(-panels // columns)
        size = (width * columns, height * rows)
        _, axes = _pyplot().subplots(rows, columns, squeeze=False, figsize=size, layout="constrained")
        for unused in axes.ravel()[panels:]:
            unused.set_visible(False)
        return axes.ravel()[:panels]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the drawn figure as a picture (PNG, PDF, SVG by suffix)."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.figure_.savefig(path, dpi=DPI, facecolor="white")
        _pyplot().close(self.figure_)
        return path


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingMatplotlib(
            "Figures need matplotlib, which is not installed: pip install 'lm-eval-proca[plots]'."
        ) from error
    return plt
