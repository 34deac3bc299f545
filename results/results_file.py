"""A results file: the numbers of one table, with what they rest on."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import lm_eval_proca
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.files import replacing
from lm_eval_proca.scores.identity import PROCEDURE

ROOT = Path(__file__).resolve().parent.parent
FILES = Path("results", "files")
DIGITS = 6

Row = dict[str, Any]


@dataclass(frozen=True)
class ResultsFile:
    """Numbers as they were measured: views of it decide about digits, order and averages."""

    name: str
    commands: Sequence[str]
    version: str
    procedure: int
    """Of the runs, which may be older than the fits."""
    commit: str | None
    dirty: bool
    date: str
    runs: int
    machine: Mapping[str, Any]
    versions: Mapping[str, str | None]
    columns: Sequence[str]
    figure: str | None
    """A hash of the figure that was drawn with these numbers."""
    values: Sequence[Sequence[Any]]

    @property
    def rows(self) -> list[Row]:
        return [dict(zip(self.columns, values, strict=True)) for values in self.values]

    @property
    def age(self) -> str:
        """A line that says how old the numbers are; empty for those of the present version."""
        if (self.version, self.procedure) == (lm_eval_proca.__version__, PROCEDURE):
            return ""
        commit = f"commit {self.commit}{' and changes' if self.dirty else ''}, " if self.commit else ""
        return f"*Made with version {self.version} ({commit}{self.date[:10]}).*"

    def save(self, root: Path = ROOT) -> Path:
        path = path_of(self.name, root)
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            unfinished.write_text(self._text(), encoding="utf-8")
        return path

    def _text(self) -> str:
        """JSON with a line for each row, so that changes can be read."""
        head = {key: value for key, value in asdict(self).items() if key != "values"}
        lines = ",\n  ".join(json.dumps([_rounded(value) for value in values]) for values in self.values)
        return json.dumps(head, indent=1).removesuffix("\n}") + f',\n "values": [\n  {lines}\n ]\n}}\n'


def load(name: str, root: Path = ROOT) -> ResultsFile:
    path = path_of(name, root)
    try:
        return ResultsFile(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ResultsError(f"{path} cannot be read ({error}); `python -m results {name}` makes it.") from error


def path_of(name: str, root: Path = ROOT) -> Path:
    return root / FILES / f"{name}.json"


def _rounded(value: Any) -> Any:
    return round(value, DIGITS) if isinstance(value, float) else value
