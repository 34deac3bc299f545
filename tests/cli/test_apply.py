from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca import BatchCalibrator
from lm_eval_proca.cli import main
from tests.score_tables import made_table

Output = pytest.CaptureFixture[str]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    BatchCalibrator().fit([[-1.0, -2.0], [-1.0, -4.0]]).save(tmp_path / "bc.json")
    return tmp_path / "bc.json"


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
    assert "has 3 labels, the calibrator in" in capsys.readouterr().err


def test_a_changed_calibrator_is_refused(saved: Path, tmp_path: Path, capsys: Output) -> None:
    saved.write_text(saved.read_text()[:-40])
    (tmp_path / "new.csv").write_text("A,B\n-1,-2\n")
    assert main(["apply", str(saved), str(tmp_path / "new.csv")]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert str(saved) in line
