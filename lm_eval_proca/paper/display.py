"""What all figures share: the display object, one look, one colour per method.

A display is an object in the manner of scikit-learn's `CalibrationDisplay`: made from what an analysis observed, drawn
with `plot(ax=None)`, after which it keeps `ax_` (an array of axes where a figure has several panels) and
`figure_`. matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import os
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from scipy.special import logit

from lm_eval_proca.errors import ProcaError
from lm_eval_proca.metrics import Observation, mean, standard_deviation

D = TypeVar("D", bound="Display")

METHODS = {"none": "raw", "conca": "ConCa", "bc": "BC", "proca": "ProCa", "proca_a": "ProCa-a", "proca_h": "ProCa-h"}
COLOURS = {
    "none": "#8a8a8a",
    "conca": "#e69f00",
    "bc": "#0072b2",
    "proca": "#009e73",
    "proca_a": "#56b4e9",
    "proca_h": "#d55e00",
}
"""One colour per method in all figures, told apart with every kind of colour vision (Okabe and Ito)."""
OTHER_COLOURS = ("#cc79a7", "#f0e442", "#882255")
CLASS_COLOURS = ("#4a6fb5", "#cf4d4d")

STYLE = Path(__file__).with_name("figures.mplstyle")
DPI = 200


class MissingMatplotlib(ProcaError, ImportError):
    """Figures were asked for and the optional package that draws them is not there."""


class Display(ABC):
    """What one analysis observed, and how it is drawn; `clouds` are single documents, for displays that show them.

    Attributes
    ----------
    ax_ : Axes or ndarray of Axes
        The axes drawn on: one, or as many as there are panels.
    figure_ : Figure
        The figure that holds them.
    """

    panel_size: ClassVar[tuple[float, float]] = (3.6, 3.0)
    panel_by: ClassVar[tuple[str, ...]] = ()
    """The columns that have one value in a panel; observations of different models must not be averaged."""
    shared_legend: ClassVar[bool] = True
    ylabel: ClassVar[str] = "accuracy (%)"

    def __init__(self, observed: Sequence[Observation], clouds: Sequence[Observation] = ()) -> None:
        if not observed:
            raise ProcaError("There is nothing to draw: the analysis observed nothing.")
        self.observed = list(observed)
        self.clouds = list(clouds)

    def panels(self) -> list[Any]:
        """What each panel is about."""
        return distinct(map(self._panel_of, self.observed))

    def of_panel(self, panel: Any) -> list[Observation]:
        """What was observed of what a panel is about."""
        return [one for one in self.observed if self._panel_of(one) == panel]

    def title(self, panel: Any) -> str:
        """The task, and what else differs between panels."""
        values = dict(zip(self.panel_by, panel or (), strict=False))
        told = {"model": "{}", "task": "{}", "num_fewshot": "{}-shot"}
        shown = [key for key in values if key == "task" or len({one[key] for one in self.observed}) > 1]
        return ", ".join(told[key].format(short_name(str(values[key]))) for key in shown)

    def _panel_of(self, one: Observation) -> tuple[Any, ...]:
        return tuple(one[column] for column in self.panel_by)

    def plot(self: D, ax: Any = None) -> D:
        """Draw on `ax` (an array of axes where there are several panels), or on a new figure."""
        plt = pyplot()
        panels = self.panels()
        with plt.style.context(STYLE):
            if ax is None:
                width, height = self.panel_size
                columns = min(len(panels), 3)
                size = (width * columns, height * -(-len(panels) // columns))
                figure, grid = plt.subplots(
                    -(-len(panels) // columns), columns, squeeze=False, figsize=size, layout="constrained"
                )
                axes = grid.ravel()
                for unused in axes[len(panels) :]:
                    unused.set_visible(False)
                axes = axes[: len(panels)]
            else:
                axes = np.atleast_1d(np.asarray(ax, dtype=object)).ravel()
                if len(axes) != len(panels):
                    raise ProcaError(f"This figure has {len(panels)} panels, {len(axes)} axes were given.")
                figure = axes[0].figure
            for axis, panel in zip(axes, panels, strict=True):
                axis.set_ylabel(self.ylabel)
                axis.set_title(self.title(panel))
                self.draw(axis, panel)
            if ax is None:
                lines = textwrap.wrap(self.footnote(), width=int(15 * figure.get_figwidth()))
                figure.supxlabel("\n".join(lines), fontsize=8, color="#666666")
            if self.shared_legend:
                found = [pair for axis in axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
                named = {name: handle for handle, name in found}  # a method may be in some of the panels only
                if ax is None:
                    figure.legend(named.values(), named.keys(), loc="outside upper center", ncols=len(named))
                else:
                    axes[0].legend(named.values(), named.keys())
        self.figure_ = figure
        self.ax_ = axes if len(panels) > 1 else axes[0]
        return self

    @abstractmethod
    def draw(self, ax: Any, panel: Any) -> None:
        """Draw one panel."""

    def footnote(self) -> str:
        """What the figure rests on: models, and evaluation rows per run, which may have been limited."""
        models = ", ".join(distinct(str(one["model"]) for one in self.observed))
        sizes = sorted({one["eval_rows"] for one in self.observed})
        return f"{models}; {sizes[0]}{f' to {sizes[-1]}' if len(sizes) > 1 else ''} evaluation rows per run"

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the drawn figure as a picture (PNG, PDF, SVG by suffix)."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self.figure_.savefig(path, dpi=DPI, facecolor="white")
        pyplot().close(self.figure_)
        return path


def pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingMatplotlib(
            "Figures need matplotlib, which is not installed: pip install 'lm-eval-proca[plots]'."
        ) from error
    return plt


def spread_of(groups: Iterable[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each group in per cent; not a number, which is not drawn, where there is none."""
    pairs = [(mean(group), standard_deviation(group)) if group else (None, None) for group in groups]
    means, deviations = np.array(pairs, dtype=float).T * 100
    return means, deviations


def accuracies_by(observed: Iterable[Observation], method: str, key: str, places: Iterable[Any]) -> list[list[float]]:
    """The accuracies of a method at each place along `key`."""
    of_method = [one for one in observed if one["calibrator"] == method]
    return [[one["accuracy"] for one in of_method if one[key] == place] for place in places]


def lines_with_spread(ax: Any, observed: Sequence[Observation], key: str) -> None:
    """Mean over everything else per method along `key`, with a band of one standard deviation."""
    places = sorted({one[key] for one in observed})
    for method, look in looks_of(observed).items():
        means, spread = spread_of(accuracies_by(observed, method, key, places))
        line = "--" if method in ("none", "conca") else "-"
        marker = "o" if line == "-" else None
        ax.plot(places, means, line, marker=marker, markersize=3.5, **look)
        ax.fill_between(places, means - spread, means + spread, color=look["color"], alpha=0.15, linewidth=0)


def beside(places: int, k: int, count: int, width: float) -> np.ndarray:
    """Where the k-th of so many marks is drawn at each of these places, side by side."""
    return np.arange(places) + (k - (count - 1) / 2) * width


def looks_of(observed: Iterable[Observation]) -> dict[str, dict[str, str]]:
    """Colour and name of the methods observed: ours in one order everywhere, then others as they come."""
    found: list[str] = distinct(one["calibrator"] for one in observed)
    methods = [name for name in METHODS if name in found] + [name for name in found if name not in METHODS]
    return {name: {"color": colour_of(name, methods), "label": METHODS.get(name, name)} for name in methods}


def colour_of(method: str, methods: Sequence[str]) -> str:
    others = [name for name in methods if name not in COLOURS]
    return COLOURS.get(method) or OTHER_COLOURS[others.index(method) % len(OTHER_COLOURS)]


def prompt_of(one: Observation) -> tuple[Any, ...]:
    return (one["model"], one["task"], one["num_fewshot"], one["seed"])


def titles_of(observed: Iterable[Observation]) -> dict[tuple[Any, ...], str]:
    """What tells prompts apart; the model is named only if there are several."""
    prompts = distinct(map(prompt_of, observed))
    several = len({model for model, *_ in prompts}) > 1
    return {
        prompt: f"{prompt[0]}, " * several + f"{short_name(prompt[1])}, {prompt[2]}-shot, seed {prompt[3]}"
        for prompt in prompts
    }


def short_name(task: str) -> str:
    return task.removeprefix("proca_").replace("sst2_template", "template ")


T = TypeVar("T", bound=Hashable)


def distinct(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def percent(values: Sequence[float]) -> list[float]:
    return [100 * value for value in values]


def log_odds(probabilities: Sequence[float]) -> np.ndarray:
    return logit(np.clip(probabilities, 1e-12, 1 - 1e-12))


def probability_ticks(low: float, high: float) -> list[float]:
    """Round probabilities that are not too close to one another between two log-odds."""
    nice = [0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999]
    odds = log_odds(nice)
    kept: list[float] = []
    for tick, place in sorted(zip(nice, odds, strict=True), key=lambda pair: abs(pair[1])):
        far = all(abs(place - other) > 0.09 * (high - low) for other in log_odds(kept))
        if low <= place <= high and far:
            kept.append(tick)
    return sorted(kept)
