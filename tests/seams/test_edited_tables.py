"""Score tables that somebody has edited: every command that reads them ends in one sentence, never in a traceback."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm_eval_proca.cli import main
from tests.score_tables import made_table

KEY = b"lm_eval_proca"


def with_column(name: str, values: Callable[[pa.Table], pa.Array]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(table.column_names.index(name), name, values(table))


def first(name: str, value: object) -> Callable[[pa.Table], pa.Table]:
    """Another value in the first row of a column."""
    return with_column(name, lambda table: pa.array([value, *table[name].to_pylist()[1:]]))


def recorded(**changes: object) -> Callable[[pa.Table], pa.Table]:
    def change(table: pa.Table) -> pa.Table:
        record = {**json.loads(table.schema.metadata[KEY]), **changes}
        return table.replace_schema_metadata({KEY: json.dumps(record)})

    return change


EDITS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "another role": first("role", "test"),
    "no role": first("role", None),
    "a role that is a number": with_column("role", lambda table: pa.array(range(len(table)))),
    "no index": first("index", None),
    "an index twice": first("index", 1),
    "an index as text": with_column("index", lambda table: pa.array(["x"] * len(table))),
    "a gold label that is none": first("gold", 7),
    "a gold label below none": first("gold", -3),
    "a gold label as text": with_column("gold", lambda table: pa.array(["Positive"] * len(table))),
    "an estimate label that is none": with_column("estimate_gold", lambda table: pa.array([9] * len(table))),
    "scores as text": with_column("score_0", lambda table: pa.array(["high"] * len(table))),
    "scores as lists": with_column("score_1", lambda table: pa.array([[1.0]] * len(table))),
    "no scores of a label": lambda table: table.drop_columns(["score_1"]),
    "no gold labels": lambda table: table.drop_columns(["gold"]),
    "no rows": lambda table: table.slice(0, 0),
    "no evaluation rows": lambda table: table.filter(pa.compute.not_equal(table["role"], "eval")),
    "no record": lambda table: table.replace_schema_metadata({}),
    "a record that is no JSON": lambda table: table.replace_schema_metadata({KEY: b"{"}),
    "a record that is a list": lambda table: table.replace_schema_metadata({KEY: b"[]"}),
    "three label words": recorded(labels=["a", "b", "c"]),
    "one label word twice": recorded(labels=["a", "a"]),
    "label words as text": recorded(labels="ab"),
    "an older record": recorded(format=1),
    "hidden states of several lengths": with_column(
        "view_-1", lambda table: pa.array([[1.0] * (1 + i % 2) for i in range(len(table))])
    ),
    "hidden states as text": with_column("view_-1", lambda table: pa.array(["x"] * len(table))),
    "hidden states that are missing": with_column(
        "view_-1", lambda table: pa.array([None, *table["view_-1"].to_pylist()[1:]])
    ),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_table(hidden=True, eval_rows=40, estimate_rows=60).save(tmp_path_factory.mktemp("t") / "t.parquet")


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_table_ends_in_a_sentence(whole: Path, tmp_path: Path, capsys, edit: str):
    path = tmp_path / "edited.parquet"
    pq.write_table(EDITS[edit](pq.read_table(whole)), path)
    for command in (["calibrate", str(path)], ["analyze", "size", str(path), "--output", str(tmp_path / "out")]):
        assert main(command) == 1, edit
        said = capsys.readouterr().err.strip()
        assert str(path) in said, said
        assert said.startswith(f"lm-eval-proca {command[0]}: ")
        assert said.endswith(".")
        assert "\n" not in said
        assert "Traceback" not in said


def test_the_table_itself_is_read(whole: Path, capsys):
    assert main(["calibrate", str(whole), "--calibrators", "bc"]) == 0
    assert "bc" in capsys.readouterr().out


def test_scores_that_are_not_finite_are_no_edit(whole: Path, tmp_path: Path, capsys):
    table = pq.read_table(whole)
    scores = table["score_0"].to_numpy().copy()
    scores[0] = np.nan
    edited = table.set_column(table.column_names.index("score_0"), "score_0", pa.array(scores))
    pq.write_table(edited, tmp_path / "nan.parquet")
    assert main(["calibrate", str(tmp_path / "nan.parquet")]) == 1
    assert "lacks calibrated rows. The model gave nan" in capsys.readouterr().err
