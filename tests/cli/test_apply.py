from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm_eval_proca import BatchCalibrator
from lm_eval_proca.cli import main
from tests.score_tables import made_table

Output = pytest.CaptureFixture[str]
ARGS = {"pretrained": "somewhere/made-model"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    BatchCalibrator().fit([[-1.0, -2.0], [-1.0, -4.0]]).save(tmp_path / "bc.json")
    return tmp_path / "bc.json"


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """The same calibrator as `calibrate --save` writes it: with its labels, model and prompt."""
    labels, origin = ["Negative", "Positive"], made_table(prompt_hash="abc", identity={"model": ARGS}).record.origin
    BatchCalibrator().fit([[-1.0, -2.0], [-1.0, -4.0]], labels=labels, origin=origin).save(tmp_path / "named.json")
    return tmp_path / "named.json"


def applied(calibrator: Path, scores: Path, capsys: Output) -> tuple[list[dict[str, str]], str]:
    """The rows that are printed, and what is said about them."""
    assert main(["apply", str(calibrator), str(scores)]) == 0
    printed = capsys.readouterr()
    return list(csv.DictReader(io.StringIO(printed.out))), printed.err


@pytest.mark.parametrize("text", ["Negative,Positive\n-1,-2.5\n-1,-3.5\n", "Positive, Negative\n-2.5,-1\n-3.5,-1\n"])
def test_columns_go_by_their_names(named: Path, tmp_path: Path, capsys: Output, text: str) -> None:
    (tmp_path / "new.csv").write_text(text)
    rows, said = applied(named, tmp_path / "new.csv", capsys)
    assert [(row["label"], row["word"]) for row in rows] == [("1", "Positive"), ("0", "Negative")]
    assert float(rows[0]["p(Positive)"]) == pytest.approx(1 / (1 + np.exp(-0.5)))
    assert said == ""


def test_scores_without_names_get_the_words_of_the_fit(named: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "new.jsonl").write_text("[-1, -2.5]\n[-1, -3.5]\n")
    rows, _ = applied(named, tmp_path / "new.jsonl", capsys)
    assert [row["word"] for row in rows] == ["Positive", "Negative"]
    assert {"p(Negative)", "p(Positive)"} < rows[0].keys()


@pytest.mark.parametrize("header", ["Bad,Good", "Negative,Good", "Positive,Positive"])
def test_other_names_are_refused(named: Path, tmp_path: Path, capsys: Output, header: str) -> None:
    (tmp_path / "new.csv").write_text(f"{header}\n-1,-2.5\n")
    assert main(["apply", str(named), str(tmp_path / "new.csv")]) == 1
    printed = capsys.readouterr()
    [line] = printed.err.splitlines()
    assert "but the calibrator was fitted on Negative, Positive; give the columns these names" in line
    assert printed.out == ""


@pytest.mark.parametrize(
    ("table", "note"),
    [
        ({"prompt_hash": "abc"}, None),
        ({"prompt_hash": "abc", "seed": 1, "task": "my_copy"}, None),
        ({"prompt_hash": "abc", "model": "unknown"}, None),
        ({}, None),
        (
            {"prompt_hash": "abc", "model": "a/b"},
            r"model than .* \(model a/b instead of somewhere/made-model\)",
        ),
        ({"prompt_hash": "xyz"}, r"prompt than .* \(prompt_hash xyz instead of abc\)"),
        ({"seed": 1}, r"prompt than .* \(seed 1 instead of 0\)"),
        ({"task": "proca_mr", "model": "a/b"}, "model and prompt than"),
        ({"prompt_hash": "abc", "identity": {"model": {**ARGS, "max_length": "9"}}}, r"model than .* \(max_length 9"),
        (
            {"prompt_hash": "abc", "identity": {"model": {**ARGS, "add_bos_token": "True"}}},
            r"model than .* \(add_bos_token True instead of unset\)",
        ),
        ({"prompt_hash": "abc", "identity": {"model": ARGS}}, None),
    ],
)
def test_a_note_when_model_or_prompt_are_not_those_of_the_fit(
    named: Path, tmp_path: Path, capsys: Output, table: dict[str, Any], note: str | None
) -> None:
    path = made_table(eval_rows=5, **table).save(tmp_path / "t.parquet")
    rows, said = applied(named, path, capsys)
    assert len(rows) == 5
    if note is None:
        assert said == ""
    else:
        [line] = said.splitlines()
        assert re.match(f"note: .*t.parquet has scores of another {note}", line)


def test_no_note_when_the_calibrator_does_not_know_where_it_is_from(
    saved: Path, tmp_path: Path, capsys: Output
) -> None:
    _, said = applied(saved, made_table(eval_rows=5).save(tmp_path / "t.parquet"), capsys)
    assert said == ""


def test_new_scores_as_csv(saved: Path, tmp_path: Path, capsys: Output) -> None:
    # The mean of the fit is a margin of 2: a margin of 1.5 is label 1, one of 2.5 label 0.
    (tmp_path / "new.csv").write_text("Bad,Good\n-1,-2.5\n-1,-3.5\n")
    assert main(["apply", str(saved), str(tmp_path / "new.csv")]) == 0
    first, second = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert (first["label"], first["word"]) == ("1", "Good")
    assert (second["label"], second["word"]) == ("0", "Bad")
    assert float(first["p(Good)"]) == pytest.approx(1 / (1 + np.exp(-0.5)))
    assert float(first["p(Bad)"]) + float(first["p(Good)"]) == pytest.approx(1)


def test_several_files_into_one(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "new.jsonl").write_text("[-1, -2.5]\n[-1, -3.5]\n")
    table = made_table(eval_rows=5)
    parquet = table.save(tmp_path / "t.parquet")
    assert (
        main(["apply", str(saved), str(tmp_path / "new.jsonl"), str(parquet), "--output", str(tmp_path / "out.json")])
        == 0
    )
    rows = json.loads((tmp_path / "out.json").read_text())
    margin = table.scores_of("eval")[:, 1] - table.scores_of("eval")[:, 0]
    assert [row["label"] for row in rows] == [1, 0, *(margin > -2.0).astype(int)]


def test_another_number_of_labels_is_refused(saved: Path, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "new.csv").write_text("A,B,C\n-1,-2,-3\n")
    assert main(["apply", str(saved), str(tmp_path / "new.csv")]) == 1
    assert "has 3 labels, the calibrator was fitted on 2" in capsys.readouterr().err


def test_a_changed_calibrator_is_refused(saved: Path, tmp_path: Path, capsys: Output) -> None:
    saved.write_text(saved.read_text()[:-40])
    (tmp_path / "new.csv").write_text("A,B\n-1,-2\n")
    assert main(["apply", str(saved), str(tmp_path / "new.csv")]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert str(saved) in line


def test_a_calibrator_of_hidden_states_reads_them_from_the_score_table(tmp_path: Path, capsys: Output) -> None:
    table = made_table(hidden=True, separation=0.5, filters={"proca_h": [{"function": "proca_h"}]})
    file = str(table.save(tmp_path / "t.parquet"))
    assert main(["calibrate", file, "--save", str(tmp_path / "h.json")]) == 0
    capsys.readouterr()
    assert main(["apply", str(tmp_path / "h.json"), file]) == 0
    labels = [int(line.split(",")[2]) for line in capsys.readouterr().out.splitlines()[1:]]
    assert np.mean(np.array(labels) == table.gold_of("eval")) > 0.8


def test_hidden_states_go_by_their_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same layers in another order are the same document; other layers are refused."""
    table = made_table(hidden=True, separation=0.5)
    saved = tmp_path / "states.json"
    command = ["calibrate", str(table.save(tmp_path / "t.parquet")), "--calibrators", "proca_h", "--save", str(saved)]
    assert main(command) == 0

    def named(layers: list[str], states: np.ndarray) -> Any:
        return replace(table, representations=states, record=replace(table.record, representation={"layers": layers}))

    swapped = named(["-1", "0.667"], table.representations[:, ::-1])
    renamed = named(["0.25"], table.representations[:, :1])
    words = []
    for name, one in {"same": table, "swapped": swapped}.items():
        capsys.readouterr()
        assert main(["apply", str(saved), str(one.save(tmp_path / f"{name}.parquet"))]) == 0
        words.append([line["word"] for line in csv.DictReader(io.StringIO(capsys.readouterr().out))])
    assert words[0] == words[1]
    assert main(["apply", str(saved), str(renamed.save(tmp_path / "renamed.parquet"))]) == 1
    wanted = "hidden states of the layers 0.25, but the calibrator was fitted on hidden states of the layers 0.667, -1"
    assert wanted in capsys.readouterr().err
