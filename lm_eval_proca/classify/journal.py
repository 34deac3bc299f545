"""What an unfinished run has paid for already: a folder beside the output, which is gone once that is written.

It keeps two kinds of things, chunk by chunk: the score tables of the rows that the calibrator is fitted on, and the
calibrated log-probabilities of all others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_proca.classify.scoring import Scored
from lm_eval_proca.errors import ScoreTableError, TextsError
from lm_eval_proca.files import replacing
from lm_eval_proca.scores.identity import IDENTITY_FILE, Identity, differences, digest
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep import claims


@dataclass(frozen=True)
class Labeled:
    """Calibrated log-probabilities by row, in the order of the labels, or why a row has none."""

    log_proba: dict[int, list[float]]
    unusable: dict[int, str]

    @classmethod
    def of(cls, scored: Scored, log_proba: np.ndarray) -> Labeled:
        return cls(dict(zip(scored.rows, log_proba.tolist(), strict=True)), scored.unusable)

    def __contains__(self, row: int) -> bool:
        return row in self.log_proba or row in self.unusable

    def __or__(self, other: Labeled) -> Labeled:
        return Labeled({**self.log_proba, **other.log_proba}, {**self.unusable, **other.unusable})


@dataclass(frozen=True)
class Journal:
    """The folder, and what decides the run; nothing is written before something was paid for."""

    folder: Path
    identity: Identity

    @classmethod
    def begin(cls, folder: Path, identity: Identity) -> Journal:
        """Go on with what the same run has left, or begin; what another run has paid for is never overwritten."""
        with _files_at(folder):
            if not any(folder.glob("*-*.json")):
                shutil.rmtree(folder, ignore_errors=True)
                return cls(folder, identity)
            other = differences(_read(folder / IDENTITY_FILE), json.loads(json.dumps(identity)))
        if other:
            raise TextsError(
                f"{folder} has what another run with the same output has left: it differs in {other}. Delete the "
                f"folder to begin anew, or choose another output."
            )
        return cls(folder, identity)

    def scored(self, number: int, score: Callable[[], Scored]) -> Scored:
        """The scores of a chunk of rows to fit on, kept or made now."""
        file = self.folder / f"fit-{number:06}.json"
        with _files_at(self.folder):
            if file.exists():
                kept = _read(file)
                tables = [ScoreTable.load(self._table(number, prompt)) for prompt in range(kept["tables"])]
                return Scored(kept["rows"], tables, _by_row(kept["unusable"]))
        found = score()
        with _files_at(self.folder):
            for prompt, table in enumerate(found.tables):
                table.save(self._table(number, prompt))
            self._keep(file, {"rows": found.rows, "unusable": found.unusable, "tables": len(found.tables)})
        return found

    def _table(self, number: int, prompt: int) -> Path:
        return self.folder / f"fit-{number:06}-prompt{prompt}.parquet"

    def labeled(self, number: int, label: Callable[[], Labeled]) -> Labeled:
        """The labels of a chunk of other rows, kept or made now."""
        file = self.folder / f"labels-{number:06}.json"
        with _files_at(self.folder):
            if file.exists():
                kept = _read(file)
                return Labeled(_by_row(kept["log_proba"]), _by_row(kept["unusable"]))
        found = label()
        with _files_at(self.folder):
            self._keep(file, {"log_proba": found.log_proba, "unusable": found.unusable})
        return found

    def _keep(self, file: Path, value: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / IDENTITY_FILE).exists():
            _write(self.folder / IDENTITY_FILE, self.identity)
        _write(file, value)

    def end(self) -> None:
        shutil.rmtree(self.folder)


@contextmanager
def sole_writer(output: Path) -> Iterator[None]:
    """Refuse a second run that writes the same output at the same time; a claim of a dead process does not count."""
    home, key = output.parent, digest(output.name)
    with _files_at(home):
        home.mkdir(parents=True, exist_ok=True)
        claim = claims.take(home, key, "classify")
    if claim is None:
        who = claims.holders(home).get(key) or "it has just begun"
        raise TextsError(f"Another run writes {output} ({who}); wait for its end, or choose another output.")
    with claims.kept(claim):
        yield


def _by_row(kept: dict[str, Any]) -> dict[int, Any]:
    return {int(row): value for row, value in kept.items()}


def _write(file: Path, value: Any) -> None:
    with replacing(file) as unfinished:
        unfinished.write_text(json.dumps(value), encoding="utf-8")


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


@contextmanager
def _files_at(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TextsError(
            f"{folder} cannot be used ({error.strerror or error}); mend that and repeat the command, which goes on."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, ScoreTableError) as error:
        raise TextsError(f"{folder} is damaged ({error}); delete it and repeat the command.") from error
