"""What a table is: the runs that it is made of, what is measured on them, and how documents show that."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

import lm_eval_proca
from lm_eval_proca.errors import ResultsError
from results.machine import commit, machine, now, versions
from results.results_file import ROOT, ResultsFile, Row, load
from results.sweeps import ASSIGNMENT, SMOLLM2

View = Callable[[Sequence[Row]], str]
"""From the rows of a results file to Markdown."""

FIGURES = Path("docs", "figures")


class Source(Protocol):
    """What a table is made of: runs of a model, or published ones."""

    @property
    def command(self) -> str: ...

    @property
    def variable(self) -> str:
        """Of the environment, which holds what the command needs."""

    @property
    def is_given(self) -> bool:
        """Whether it does."""

    def run(self) -> None:
        """Make what is not finished."""

    def procedures(self) -> list[int]:
        """The `PROCEDURE` of every run."""


S = TypeVar("S", bound=Source)


class Drawn(Protocol):
    def save(self, path: Path) -> Path: ...


class Measured(NamedTuple):
    rows: Sequence[Row]
    drawn: Drawn | None = None


@dataclass(frozen=True)
class Table(Generic[S]):
    name: str
    sources: Sequence[S]
    measure: Callable[[Sequence[S]], Measured]
    views: Mapping[str, View]
    figure: str | None = None
    """What its figure, docs/figures/NAME.png, shows: the text for those who cannot see it."""

    @property
    def commands(self) -> list[str]:
        assignments = [ASSIGNMENT] * any(source.variable == SMOLLM2 for source in self.sources)
        return [*assignments, *(source.command for source in self.sources), f"python -m results {self.name}"]

    def not_given(self) -> list[str]:
        """Variables that nobody has set."""
        return [source.variable for source in self.sources if not source.is_given]

    def make(self, root: Path = ROOT, *, from_existing: bool = False) -> ResultsFile:
        """Run what is not finished, measure, and write the results file and the figure."""
        for source in () if from_existing else self.sources:
            source.run()
        rows, drawn = self.measure(self.sources)
        if not rows:
            raise ResultsError(f"The table {self.name} has no rows.")
        procedures = [one for source in self.sources for one in source.procedures()]
        made = ResultsFile(
            name=self.name,
            commands=self.commands,
            version=lm_eval_proca.__version__,
            procedure=min(procedures),
            **commit(ROOT),
            date=now(),
            runs=len(procedures),
            machine=machine(),
            versions=versions(),
            columns=list(rows[0]),
            figure=None if drawn is None else _hash(drawn.save(root / FIGURES / f"{self.name}.png")),
            values=[list(row.values()) for row in rows],
        )
        made.save(root)
        return made

    def figure_is_of(self, file: ResultsFile, root: Path = ROOT) -> bool:
        """Whether the picture is the one that was drawn with the numbers of the file."""
        return file.figure == _hash(root / FIGURES / f"{self.name}.png")

    def show(self, view: str, root: Path = ROOT) -> str:
        """The Markdown of a view, and a line about its age where it is not of the present version."""
        file = load(self.name, root)
        return with_age(self.views[view](file.rows), file)

    def show_figure(self, document: Path, root: Path = ROOT) -> str:
        """The figure, as a document links to it."""
        path = Path(os.path.relpath(root / FIGURES / f"{self.name}.png", document.parent)).as_posix()
        return with_age(f"![{self.figure}]({path})", load(self.name, root))


def with_age(text: str, file: ResultsFile) -> str:
    return f"{text}\n\n{file.age}" if file.age else text


def _hash(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else None
