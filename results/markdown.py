"""Numbers as Markdown: tasks and methods by their names in documents, digits, bold, intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from lm_eval_proca.metrics import mean, mean_interval
from lm_eval_proca.paper.display import distinct
from results.results_file import Row

TASKS = {
    "sst2": "SST-2", "sst5": "SST-5", "mr": "MR", "subj": "Subj", "ap": "AP",
    "agnews": "AGNews", "dbpedia": "DBPedia", "rte": "RTE", "trec": "TREC",
}  # fmt: skip
METHODS = {
    "none": "raw", "conca": "contextual", "domain": "domain context", "bc": "batch",
    "bc_prob": "batch, of probabilities", "ucpa": "UCPA",
    "proca": "ProCa", "proca_a": "ProCa-a", "proca_h": "ProCa-h",
}  # fmt: skip
"""In the order of the tables."""
AVERAGE = "average"
CLEAR = 1.0 + 1e-9
"""Points that a task must differ by to count as better or worse."""


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    header_line, *lines = ("".join(f"| {cell} " if cell else "| " for cell in cells) + "|" for cells in (header, *rows))
    return "\n".join([header_line, "|---" * len(header) + "|", *lines])


def bold(text: str) -> str:
    return f"**{text}**"


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def spread(sd: float | None) -> str:
    """What stands behind a mean; nothing where there is no spread."""
    return f" ±{percent(sd)}" if sd else ""


def mean_and_sd(rows: Iterable[Row], **of: object) -> str:
    """Of the one row that has these values, in per cent; an empty text if there is none."""
    rows = list(rows)
    accuracy = value(rows, "accuracy", **of)
    return "" if accuracy is None else percent(accuracy) + spread(value(rows, "sd", **of))


def methods_of(rows: Iterable[Row]) -> list[str]:
    """Ours in the order of the tables, then others as they come."""
    found: list[str] = distinct(row["method"] for row in rows)
    return [name for name in METHODS if name in found] + [name for name in found if name not in METHODS]


def method_name(method: str) -> str:
    return METHODS.get(method, f"`{method}`")


def best_in_bold(shares: Sequence[float | None]) -> list[str]:
    """In per cent, an empty text for what is not known; numbers that look alike are equally good."""
    texts = ["" if share is None else percent(share) for share in shares]
    best = max(filter(None, texts), key=float, default=None)
    return [bold(text) if text == best else text for text in texts]


def value(rows: Iterable[Row], column: str, **of: object) -> float | None:
    """The number of the one row that has these values; None if there is none."""
    found = [row[column] for row in rows if all(row[key] == wanted for key, wanted in of.items())]
    if len(found) > 1:
        raise ValueError(f"{len(found)} rows have {of}")
    return found[0] if found else None


def by_task(rows: Sequence[Row], column: str, **of: object) -> list[float | None]:
    """One number for each task, then the average, if every task has one."""
    numbers = [value(rows, column, task=task, **of) for task in TASKS]
    known = [number for number in numbers if number is not None]
    return [*numbers, mean(known) if len(known) == len(TASKS) else None]


def average(rows: Sequence[Row], column: str, **of: object) -> float | None:
    return by_task(rows, column, **of)[-1]


def gain(better: Sequence[float | None], than: Sequence[float | None]) -> str:
    """Mean difference over tasks in points, and its 95 % interval; both are of :func:`by_task`."""
    differences = _differences(better, than)
    if len(differences) < len(TASKS):
        return ""
    middle, low, high = (signed(number) for number in mean_interval(differences))
    return f"{middle} ({low} to {high})"


def steps(better: Sequence[float | None], than: Sequence[float | None]) -> tuple[str, str]:
    """The same differences without the weight of a task that gains very much: their median, and how many are clear."""
    differences = _differences(better, than)
    if len(differences) < len(TASKS):
        return "", ""
    above, below = sum(one > CLEAR for one in differences), sum(one < -CLEAR for one in differences)
    return signed(median(differences)), f"{above}, {below}"


def _differences(better: Sequence[float | None], than: Sequence[float | None]) -> list[float]:
    """By task, in points."""
    pairs = zip(better[:-1], than[:-1], strict=True)
    return [100 * (a - b) for a, b in pairs if a is not None and b is not None]


def signed(number: float) -> str:
    return f"{number:+.1f}".replace("-", "\N{MINUS SIGN}")
