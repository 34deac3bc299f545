"""Files that hold label scores: score tables, lm-eval's sample logs, and plain matrices as CSV or JSON Lines."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.representations import Representation
from lm_eval_proca.runs.output_folder import visible_files
from lm_eval_proca.runs.sample_logs import find_log, json_lines, read_samples
from lm_eval_proca.scores.prompt_sets import OnePrompt
from lm_eval_proca.scores.score_table import ScoreTable


class NewScores(NamedTuple):
    """What a calibrator is applied to: scores (documents, labels), and what else their file holds."""

    scores: np.ndarray
    labels: list[str] | None = None
    origin: Mapping[str, Any] = {}
    documents: str | None = None
    """A hash of the documents, if it is known."""
    representation: Representation = Representation()
    representations: np.ndarray | None = None
    """Of shape (views, documents, width)."""


def find_score_tables(paths: Iterable[str | Path]) -> list[Path]:
    """The files named, and every score table inside the folders named (of `proca.scores_dir` or of a sweep)."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise ScoreTableError(f"There is no file or folder {path}.")
        if not path.is_dir():
            found.append(path)
            continue
        inside = visible_files(path, "*.parquet")  # a sweep fills a cell in a hidden folder before it is whole
        if not inside:
            raise ScoreTableError(
                f"There is no score table (*.parquet) in {path}; write them with --metadata proca.scores_dir=DIR."
            )
        found += inside
    return found


def read_run(path: str | Path) -> ScoreTable:
    """A score table, or lm-eval's `samples_*.jsonl`."""
    path = Path(path)
    if path.suffix not in (".parquet", ".jsonl"):
        raise ScoreTableError(
            f"{path} is neither a score table (.parquet, of --metadata proca.scores_dir=DIR) nor a sample log of "
            f"lm-eval (samples_*.jsonl, of --log_samples)."
        )
    return ScoreTable.load(path) if path.suffix == ".parquet" else read_samples(path)


def read_prompt(path: str | Path) -> OnePrompt:
    """The same as one of several prompts; that of a log is known by its first document."""
    if Path(path).suffix == ".jsonl":
        log = find_log(path)
        return OnePrompt(str(path), log.table(), log.prompt_hash)
    table = read_run(path)
    return OnePrompt(str(path), table, table.record.prompt_hash)


def read_scores(path: str | Path) -> NewScores:
    """Scores to apply a calibrator to.

    The evaluation rows of a score table or a sample log; or one document per line, one log-likelihood per label: as
    CSV under a header with the label words, or as JSON Lines with a list of numbers each.
    """
    path = Path(path)
    if path.suffix == ".csv":
        return NewScores(*_read_csv(path))
    if path.suffix == ".jsonl" and isinstance(next(json_lines(path), (0, None))[1], list):
        rows = list(json_lines(path))
        return NewScores(_matrix(rows, len(rows[0][1]), path))
    table = read_run(path)
    if problem := table.not_finite(("eval",)):
        raise ScoreTableError(f"{path} cannot be calibrated. {problem}; score again, e.g. in another dtype.")
    record = table.record
    return NewScores(
        table.scores_of("eval"),
        table.labels,
        record.origin,
        record.documents_hash,
        table.representation,
        table.representations_of("eval"),
    )


def _read_csv(path: Path) -> tuple[np.ndarray, list[str]]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:  # spreadsheets begin a file with a mark
            (_, header), *rows = [(k, row) for k, row in enumerate(csv.reader(lines), start=1) if row] or [(1, [])]
    except OSError as error:
        raise ScoreTableError(f"Cannot read {path} ({error.strerror}).") from error
    if not header or all(map(_is_number, header)):
        raise ScoreTableError(f"{path} must begin with a line of label words, in the order of the score columns.")
    return _matrix(rows, len(header), path), header


def _matrix(rows: Sequence[tuple[int, Any]], labels: int, path: Path) -> np.ndarray:
    """The rows, which come with the numbers of their lines, as one array."""
    for number, row in rows:
        if not isinstance(row, list):
            raise ScoreTableError(f"line {number} of {path} is not a list of numbers, one per label.")
        if len(row) != labels or not all(map(_is_number, row)):
            raise ScoreTableError(f"line {number} of {path} has not {labels} finite numbers, one per label.")
    if not rows:
        raise ScoreTableError(f"{path} holds no scores.")
    return np.array([row for _, row in rows], dtype=np.float64)


def _is_number(value: object) -> bool:
    try:
        return not isinstance(value, bool) and bool(np.isfinite(float(value)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False
