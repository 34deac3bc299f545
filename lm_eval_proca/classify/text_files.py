"""Files of rows, read and written row by row: CSV, JSON Lines and Parquet, by their endings."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from lm_eval_proca.classify.question import DamagedRow, Row
from lm_eval_proca.errors import TextsError
from lm_eval_proca.files import replacing

T = TypeVar("T")
Write = Callable[[Sequence[Row]], None]

FIELD_LIMIT = 2**31 - 1
"""Characters of a field of a CSV file; Python's own limit of 131 072 would end the run at a long text."""

BYTES_KEPT = "surrogateescape"
"""Bytes that are not UTF-8 are written as they were read; no model sees them."""

BATCH = 1024
"""Rows of a Parquet file that are read together."""


@dataclass(frozen=True)
class Survey:
    """What is in a file: its number of rows, the columns that they have, and of Parquet their types."""

    rows: int
    columns: list[str]
    schema: pa.Schema | None


def survey(path: Path) -> Survey:
    """Read the whole file once, keeping nothing."""
    if path.suffix == ".parquet":
        with _reading(path):
            file = pq.ParquetFile(path)
            return Survey(file.metadata.num_rows, file.schema_arrow.names, file.schema_arrow)
    columns: dict[str, None] = {}
    rows = 0
    for row in read_rows(path):
        columns.update(dict.fromkeys(row))
        rows += 1
    return Survey(rows, list(columns), None)


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file one by one; one that cannot be read comes as a DamagedRow."""
    with _reading(path):
        yield from _READERS[ending(path)](path)


def ending(path: Path) -> str:
    if path.suffix not in _READERS:
        raise TextsError(f"{path} must end in {', '.join(_READERS)}, which says what kind of file it is.")
    return path.suffix


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TextsError(f"{path} cannot be read ({error.strerror or error}).") from error
    except (pa.ArrowException, csv.Error) as error:
        raise TextsError(f"{path} is damaged or not a {path.suffix} file ({error}).") from error


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(FIELD_LIMIT)
    with open(path, newline="", encoding="utf-8-sig", errors=BYTES_KEPT) as file:
        reader = csv.DictReader(file, restval="")
        for row in reader:
            if None in row:
                known = {key: value for key, value in row.items() if key is not None}
                yield DamagedRow("has more fields than the header, so that quotes may be missing", known)
            else:
                yield row


def _read_jsonl(path: Path) -> Iterator[Row]:
    with open(path, encoding="utf-8", errors=BYTES_KEPT) as file:
        for line in file:
            if line.strip():
                yield _row_of_json(line)


def _row_of_json(line: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError:
        return DamagedRow("is not JSON")
    return row if isinstance(row, dict) else DamagedRow("is not a JSON object")


def _read_parquet(path: Path) -> Iterator[Row]:
    for batch in pq.ParquetFile(path).iter_batches(BATCH):
        yield from batch.to_pylist()


_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}


# ------------------------------------------------------------------ writing


@contextmanager
def writing(path: Path, given: Survey, added: Mapping[str, pa.DataType]) -> Iterator[Write]:
    """Write rows with the columns of a surveyed file and further ones; a reader sees the whole file or none."""
    with ExitStack() as stack:
        with _to_disk(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            unfinished = stack.enter_context(replacing(path))
            write = stack.enter_context(_WRITERS[ending(path)](unfinished, given, added))

        def write_rows(rows: Sequence[Row]) -> None:
            with _to_disk(path):
                write(rows)

        yield write_rows
        with _to_disk(path):
            stack.close()


@contextmanager
def _to_disk(path: Path) -> Iterator[None]:
    """Around what writes, and not around the model that works in between: a lost server is an OSError too."""
    try:
        yield
    except OSError as error:
        raise TextsError(
            f"{path} cannot be written ({error.strerror or error}); mend that and repeat the command."
        ) from error


@contextmanager
def _write_csv(path: Path, given: Survey, added: Mapping[str, pa.DataType]) -> Iterator[Write]:
    with open(path, "w", newline="", encoding="utf-8", errors=BYTES_KEPT) as file:
        writer = csv.DictWriter(file, [*given.columns, *added], lineterminator="\n")
        writer.writeheader()
        yield lambda rows: writer.writerows({key: _flat(value) for key, value in row.items()} for row in rows)


@contextmanager
def _write_jsonl(path: Path, given: Survey, added: Mapping[str, pa.DataType]) -> Iterator[Write]:
    with open(path, "w", encoding="utf-8") as file:
        yield lambda rows: file.writelines(map(_line, rows))


@contextmanager
def _write_parquet(path: Path, given: Survey, added: Mapping[str, pa.DataType]) -> Iterator[Write]:
    """The types of a Parquet file stay. The columns of other files become text, because their types may change."""
    known = given.schema or pa.schema([(name, pa.string()) for name in given.columns])
    schema = pa.schema([*known, *(pa.field(name, kind) for name, kind in added.items())])

    def table(rows: Sequence[Row]) -> pa.Table:
        typed = rows if given.schema is not None else [_as_text(row, added) for row in rows]
        return pa.Table.from_pylist(list(typed), schema)

    with pq.ParquetWriter(path, schema) as writer:
        yield lambda rows: writer.write_table(table(rows))


_WRITERS = {".csv": _write_csv, ".jsonl": _write_jsonl, ".parquet": _write_parquet}


def _as_text(row: Row, added: Mapping[str, Any]) -> Row:
    """For Parquet, which holds Unicode only."""
    texts = {key: str(_flat(value)) for key, value in row.items() if key not in added and value is not None}
    return {**row, **{key: _bytes(text).decode(errors="replace") for key, text in texts.items()}}


def _flat(value: Any) -> Any:
    """What a field of text holds: words and numbers as they are, lists and mappings as JSON."""
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict)) else value
    return _bytes(text).decode(errors=BYTES_KEPT) if isinstance(text, str) else text


def _bytes(text: str) -> bytes:
    """Half a character, which JSON can hold (`"\\ud800"`), becomes a question mark."""
    try:
        return text.encode(errors=BYTES_KEPT)
    except UnicodeEncodeError:
        return text.encode(errors="replace")


def _line(row: Row) -> str:
    line = json.dumps(row, ensure_ascii=False, default=str)
    try:
        line.encode()
    except UnicodeEncodeError:
        line = json.dumps(row, default=str)
    return line + "\n"
