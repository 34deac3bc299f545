from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.runs.score_files import find_score_tables, read_run, read_scores
from tests.score_tables import made_table


def test_folders_give_their_score_tables_but_not_those_of_unfinished_cells(tmp_path: Path) -> None:
    whole = [made_table().save(tmp_path / "model" / cell / "scores" / "t.parquet") for cell in ("a", "b")]
    made_table().save(tmp_path / "model" / ".unfinished-c" / "scores" / "t.parquet")
    assert find_score_tables([tmp_path, whole[0]]) == [*whole, whole[0]]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ScoreTableError, match=r"no score table .* in .*empty"):
        find_score_tables([tmp_path / "empty"])


def test_plain_matrices(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("Bad,Good\n-1.5,-2\n-3,-0.25\n")
    scores, words, origin, *_ = read_scores(tmp_path / "scores.csv")
    assert (words, origin) == (["Bad", "Good"], {})
    np.testing.assert_array_equal(scores, [[-1.5, -2.0], [-3.0, -0.25]])
    (tmp_path / "scores.jsonl").write_text("[-1.5, -2]\n[-3, -0.25]\n")
    again, words, origin, *_ = read_scores(tmp_path / "scores.jsonl")
    assert (words, origin) == (None, {})
    np.testing.assert_array_equal(again, scores)


def test_the_mark_that_spreadsheets_write_is_no_part_of_a_label(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("Bad,Good\n-1.5,-2\n", encoding="utf-8-sig")
    assert read_scores(tmp_path / "scores.csv").labels == ["Bad", "Good"]


def test_evaluation_rows_of_a_score_table(tmp_path: Path) -> None:
    table = made_table(prompt_hash="abc")
    scores, words, origin, *_ = read_scores(table.save(tmp_path / "t.parquet"))
    np.testing.assert_array_equal(scores, table.scores_of("eval"))
    assert words == ["Negative", "Positive"]
    assert origin == {
        "task": "proca_sst2",
        "model": "somewhere/made-model",
        "num_fewshot": 4,
        "seed": 0,
        "prompt_hash": "abc",
    }
    assert made_table(model="unknown", prompt_hash=None).record.origin.keys() == {"task", "num_fewshot", "seed"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "-1,-2\n-3,-4\n", "must begin with a line of label words"),
        ("a.csv", "", "must begin with a line of label words"),
        ("a.csv", "Bad,Good\n", "holds no scores"),
        ("a.csv", "Bad,Good\n-1,-2\n-1\n", "line 3 .* not 2 finite numbers"),
        ("a.csv", "Bad,Good\n-1,nan\n", "line 2 .* not 2 finite numbers"),
        ("a.jsonl", "[-1, -2]\n[-1, true]\n", "line 2 .* not 2 finite numbers"),
        ("a.jsonl", "[-1, -2]\n{}\n", "line 2 .* not a list"),
        ("a.jsonl", "[-1, -2]\n[-1\n", "line 2 .* not JSON"),
        ("a.txt", "-1 -2", "neither a score table .* nor a sample log"),
    ],
)
def test_files_that_are_no_scores_are_refused_with_the_place(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ScoreTableError, match=message):
        read_scores(tmp_path / name)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_a_missing_file_is_one_sentence(tmp_path: Path, name: str) -> None:
    with pytest.raises(ScoreTableError, match=r"a\.(csv|jsonl|parquet)"):
        read_scores(tmp_path / name)
    with pytest.raises(ScoreTableError, match=r"a\.(csv|jsonl|parquet)"):
        read_run(tmp_path / name)
