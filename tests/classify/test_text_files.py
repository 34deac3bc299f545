from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm_eval_proca.classify.question import DamagedRow
from lm_eval_proca.classify.text_files import read_rows, survey, writing
from lm_eval_proca.errors import TextsError

ADDED = {"label": pa.string(), "probability": pa.float64()}
TEXTS = ['a "quoted", text', "two\nlines", "", "\u2028 é 漢字", "x" * 200_000]


def written(source: Path, output: Path) -> list:
    """The rows of one file in another, with a label each."""
    with writing(output, survey(source), ADDED) as write:
        write([{**row, "label": "good", "probability": 0.25} for row in read_rows(source)])
    return list(read_rows(output))


def make_csv(path: Path, texts: list[str] = TEXTS) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerows([["id", "body"], *([str(i), text] for i, text in enumerate(texts))])
    return path


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_texts_of_a_csv_file_survive_in_every_format(tmp_path: Path, ending: str):
    rows = written(make_csv(tmp_path / "texts.csv"), tmp_path / f"out.{ending}")
    assert [row["body"] for row in rows] == TEXTS
    assert {(row["label"], float(row["probability"])) for row in rows} == {("good", 0.25)}
    assert list(rows[0]) == ["id", "body", "label", "probability"]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_json_with_changing_columns_and_types_can_be_written(tmp_path: Path, ending: str):
    given = [{"body": "a", "n": 1}, {"body": "b", "n": "one", "tags": ["x", "y"]}, {"body": None}]
    source = tmp_path / "texts.jsonl"
    source.write_text("\n".join(map(json.dumps, given)), encoding="utf-8")
    assert survey(source).columns == ["body", "n", "tags"]
    rows = written(source, tmp_path / f"out.{ending}")
    assert [row["body"] or None for row in rows] == ["a", "b", None]
    assert [str(row.get("n") or "") for row in rows] == ["1", "one", ""]
    tags = rows[1]["tags"]
    assert (json.loads(tags) if isinstance(tags, str) else tags) == ["x", "y"]


def test_the_types_of_parquet_stay(tmp_path: Path):
    table = pa.table({"body": ["a", None], "n": pa.array([1, None], pa.int16()), "when": pa.array([0, 1], pa.date32())})
    pq.write_table(table, tmp_path / "texts.parquet")
    written(tmp_path / "texts.parquet", tmp_path / "out.parquet")
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.select(table.column_names).equals(table)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_bytes_that_are_no_text_do_not_end_the_run(tmp_path: Path, ending: str):
    (tmp_path / "texts.csv").write_bytes(b"\xef\xbb\xbfbody\ncaf\xe9\n")
    assert survey(tmp_path / "texts.csv").columns == ["body"]  # the mark that Excel puts before it is no part of it
    assert len(written(tmp_path / "texts.csv", tmp_path / f"out.{ending}")) == 1
    (tmp_path / "half.jsonl").write_text('{"body": "half a character \\ud800"}\n')
    assert len(written(tmp_path / "half.jsonl", tmp_path / f"half_out.{ending}")) == 1


def test_bytes_of_csv_stay_what_they_are(tmp_path: Path):
    (tmp_path / "texts.csv").write_bytes(b"body\ncaf\xe9\n")
    written(tmp_path / "texts.csv", tmp_path / "out.csv")
    assert b"caf\xe9,good" in (tmp_path / "out.csv").read_bytes()


def test_lines_that_cannot_be_read_are_rows_with_a_reason(tmp_path: Path):
    (tmp_path / "texts.jsonl").write_text('{"body": "a"}\n{"body": \n\n[1]\n{"body": "b"}\n')
    rows = list(read_rows(tmp_path / "texts.jsonl"))
    assert [row.reason if isinstance(row, DamagedRow) else row["body"] for row in rows] == [
        *("a", "is not JSON", "is not a JSON object", "b")
    ]
    (tmp_path / "texts.csv").write_text("id,body\n1,well, well\n2\n3,fine\n")
    first, second, third = read_rows(tmp_path / "texts.csv")
    assert isinstance(first, DamagedRow)
    assert first == {"id": "1", "body": "well"}
    assert "more fields than the header" in first.reason
    assert second == {"id": "2", "body": ""}
    assert third == {"id": "3", "body": "fine"}


def test_files_are_refused_in_a_sentence(tmp_path: Path):
    (tmp_path / "a file").touch()
    with pytest.raises(TextsError, match=r"cannot be written \(.*\); mend that and repeat the command"):
        written(make_csv(tmp_path / "texts.csv"), tmp_path / "a file" / "out.csv")
    with pytest.raises(TextsError, match=r"must end in \.csv, \.jsonl, \.parquet"):
        survey(tmp_path / "texts.xlsx")
    with pytest.raises(TextsError, match="cannot be read"):
        survey(tmp_path / "missing.csv")
    (tmp_path / "texts.parquet").write_text("body")
    with pytest.raises(TextsError, match=r"is damaged or not a \.parquet file"):
        survey(tmp_path / "texts.parquet")
