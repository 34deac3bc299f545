"""What both benchmarks share: alternating repeats, the table of ratios, and its JSON file."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from results import machine

RESULTS = Path(__file__).parent / "results"
PACKAGES = list(machine.PACKAGES)


@dataclass
class Ratio:
    """One line of the table. `goal` is the least ratio wanted, or the largest where `at_most` is set."""

    work: str
    ratio: float
    goal: float | None = None
    at_most: bool = False
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        if self.goal is None:
            return ""
        met = self.ratio <= self.goal if self.at_most else self.ratio >= self.goal
        return f"{'<=' if self.at_most else '>='} {self.goal:g} {'yes' if met else 'NO'}"


def alternate(runs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each run, taken in turns so that a busy spell of the machine meets them all."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(seconds: Mapping[str, list[float]], over: str, under: str) -> float:
    return statistics.median(seconds[over]) / statistics.median(seconds[under])


def show(row: Ratio) -> None:
    details = "  ".join(f"{key} {_short(value)}" for key, value in row.details.items())
    print(f"{row.work:<58} {row.ratio:>7.2f}  {row.verdict:<12} {details}", flush=True)


def save(name: str, rows: list[Ratio], settings: dict[str, Any]) -> Path:
    """Write the rows with everything one needs to judge them."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    report = {
        "benchmark": name,
        "date": machine.now(),
        "machine": machine.machine(),
        "versions": machine.versions(PACKAGES),
        "settings": settings,
        "ratios": [asdict(row) for row in rows],
    }
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"written to {path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path}")
    return path


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(_short(item) for item in value)
    return f"{value:.3g}" if isinstance(value, float) else str(value)
