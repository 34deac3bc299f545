"""What all figures share: one look, one colour per method, and the pieces that several of them are drawn with."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy.special import logit

from lm_eval_proca.metrics import Observation, mean, standard_deviation

T = TypeVar("T", bound=Hashable)
Looks = dict[str, dict[str, str]]
"""Colour and label of what is drawn, by its name."""

METHODS = {
    **{"none": "raw", "conca": "ConCa", "domain": "DC", "bc": "BC", "bc_prob": "BC-prob", "ucpa": "UCPA"},
    **{"proca": "ProCa", "proca_a": "ProCa-a", "proca_h": "ProCa-h"},
}
COLOURS = {
    **{"none": "#8a8a8a", "conca": "#e69f00", "bc": "#0072b2"},
    **{"proca": "#009e73", "proca_a": "#56b4e9", "proca_h": "#d55e00"},
    **{"domain": "#cc79a7", "bc_prob": "#f0e442", "ucpa": "#882255"},
}
"""One colour per method in all figures, told apart with every kind of colour vision (Okabe and Ito)."""
OTHER_COLOURS = ("#117733", "#999933", "#332288", "#aa4499")
CLASS_COLOURS = ("#4a6fb5", "#cf4d4d")

STYLE = Path(__file__).with_name("figures.mplstyle")


def spread_of(groups: Iterable[Sequence[float]]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each group in per cent; not a number, which is not drawn, where there is none."""
    pairs = [(mean(group), standard_deviation(group)) if group else (None, None) for group in groups]
    means, deviations = np.array(pairs, dtype=float).T * 100
    return means, deviations


def accuracies_by(observed: Iterable[Observation], key: str, places: Iterable[Any], **of: Any) -> list[list[float]]:
    """The accuracies at each place along `key`, of the observations that have these values."""
    chosen = [one for one in observed if all(one[column] == value for column, value in of.items())]
    return [[one["accuracy"] for one in chosen if one[key] == place] for place in places]


def lines_with_spread(ax: Any, observed: Sequence[Observation], key: str) -> list[Any]:
    """Mean over everything else per method along `key`, with a band of one standard deviation; the places along it."""
    places = sorted({one[key] for one in observed})
    for method, look in looks_of(observed).items():
        means, spread = spread_of(accuracies_by(observed, key, places, calibrator=method))
        line, marker = ("--", None) if method in ("none", "conca", "domain") else ("-", "o")
        ax.plot(places, means, line, marker=marker, markersize=3.5, **look)
        ax.fill_between(places, means - spread, means + spread, color=look["color"], alpha=0.15, linewidth=0)
    return places


def side_by_side(
    ax: Any, ticks: Sequence[str], looks: Looks, width: float
) -> Iterator[tuple[str, dict[str, str], np.ndarray]]:
    """Each name with its look and where its marks are drawn, one beside the other above every tick."""
    ax.set_xticks(range(len(ticks)), ticks)
    ax.grid(axis="x", visible=False)
    for k, (name, look) in enumerate(looks.items()):
        yield name, look, np.arange(len(ticks)) + (k - (len(looks) - 1) / 2) * width


def looks_of(observed: Iterable[Observation]) -> Looks:
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
        (model, task, shots, seed): f"{model}, " * several + f"{short_name(task)}, {shots}-shot, seed {seed}"
        for model, task, shots, seed in prompts
    }


def short_name(task: str) -> str:
    return task.removeprefix("proca_").replace("sst2_template", "template ")


def distinct(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))


def percent(values: Sequence[float]) -> list[float]:
    return [100 * value for value in values]


def log_odds(probabilities: Sequence[float]) -> np.ndarray:
    return logit(np.clip(probabilities, 1e-12, 1 - 1e-12))


def probability_ticks(low: float, high: float) -> list[float]:
    """Round probabilities that are not too close to one another between two log-odds."""
    nice = [0.0001, 0.001, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999]
    kept: list[float] = []
    for tick, place in sorted(zip(nice, log_odds(nice), strict=True), key=lambda pair: abs(pair[1])):
        far = all(abs(place - other) > 0.09 * (high - low) for other in log_odds(kept))
        if low <= place <= high and far:
            kept.append(tick)
    return sorted(kept)
