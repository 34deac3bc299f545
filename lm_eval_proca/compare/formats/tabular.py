"""Rows (a list of dicts with the same keys) as printed text, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval_proca.errors import ResultsError
from lm_eval_proca.files import replacing


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Columns under their names, numbers to the right; four decimals, as lm-eval prints."""
    if not rows:
        return ""
    names = list(rows[0])
    cells = [[_text(row[name]) for name in names] for row in rows]
    numeric = [all(isinstance(row[name], (int, float)) or row[name] is None for row in rows) for name in names]
    widths = [max(len(name), *(len(line[k]) for line in cells)) for k, name in enumerate(names)]
    rule = ["-" * width for width in widths]
    aligned = "  ".join(f"{{:{'>' if right else '<'}{width}}}" for right, width in zip(numeric, widths, strict=True))
    return "\n".join(aligned.format(*line).rstrip() for line in (names, rule, *cells))


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Comma-separated values under a header; by default of all columns that a row has."""
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _flat(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def write_rows(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike[str]) -> Path:
    """Write CSV or JSON, whichever the suffix says."""
    path = Path(path)
    check_rows_file(path)
    as_json = path.suffix == ".json"
    text = json.dumps(list(rows), indent=2, ensure_ascii=False) + "\n" if as_json else csv_text(rows)
    return write_file(text, path)


def is_rows_file(path: str | os.PathLike[str]) -> bool:
    """Whether `write_rows` can serve the name."""
    return Path(path).suffix in (".csv", ".json")


def check_rows_file(path: str | os.PathLike[str] | None) -> None:
    """Refuse a name that `write_rows` cannot serve; None, for standard output, is fine."""
    if path is not None and not is_rows_file(path):
        raise ResultsError(f"Cannot write {path}: the name must end in .csv or .json.")


def write_file(text: str, path: str | os.PathLike[str]) -> Path:
    """Write a report the user named a file for; a reader sees the whole file or none."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            unfinished.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"Cannot write {path} ({error.strerror}); give another file.") from error
    return path


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        return " ".join(map(_text, value))
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def _flat(value: Any) -> Any:
    """A cell of a CSV file: lists become numbers with spaces between them, mappings JSON."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else value
