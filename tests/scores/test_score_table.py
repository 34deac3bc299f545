from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lm_eval_proca import BatchCalibrator, RepresentationCalibrator
from lm_eval_proca.errors import ScoreTableError
from lm_eval_proca.scores.fitting import fit_all
from lm_eval_proca.scores.record import FORMAT, RunRecord
from lm_eval_proca.scores.score_table import NO_GOLD, ScoreTable
from tests.score_tables import made_table


@pytest.fixture
def table() -> ScoreTable:
    return ScoreTable(
        role=np.array(["eval", "estimate", "eval", "content_free", "estimate"]),
        index=np.array([5, 1, 2, 0, 0]),
        gold=np.array([1, -1, 0, -1, -1]),
        estimate_gold=np.array([-1, 1, -1, -1, -1]),
        scores=np.array([[-1.0, -2.0], [-3.0, -4.0], [-5.0, -6.0], [-7.0, -8.0], [-9.0, -0.1]]),
        record=RunRecord(task="t", labels=("bad", "good")),
    )


def test_a_table_as_a_data_frame_has_words_for_labels(table: ScoreTable):
    frame = table.to_frame()
    assert list(frame.columns) == ["role", "index", "gold", "estimate_gold", "bad", "good"]
    assert frame["gold"].fillna("").tolist() == ["good", "", "bad", "", ""]
    assert frame["estimate_gold"].fillna("").tolist() == ["", "good", "", "", ""]
    assert frame.loc[frame["role"] == "eval", ["bad", "good"]].to_numpy().tolist() == [[-1.0, -2.0], [-5.0, -6.0]]
    unlabeled = frame.loc[frame["role"] == "estimate", table.labels]
    fitted = BatchCalibrator().fit(unlabeled)
    assert fitted.predict_labels(unlabeled).tolist() == ["bad", "good"]


def test_a_table_is_one_line_in_a_notebook():
    table = made_table("proca_sst2", hidden=True, model="/models/tiny")
    told = repr(replace(table, record=replace(table.record, num_fewshot=4)))
    assert told.startswith("ScoreTable(proca_sst2, tiny, 4-shot: 200 eval + ")
    assert told.endswith("hidden states of the layers 0.667, -1)")
    assert len(told) < 200
    assert "\n" not in told


def test_rows_of_a_role_come_in_document_order(table: ScoreTable):
    assert table.index_of("eval").tolist() == [2, 5]
    assert table.scores_of("eval").tolist() == [[-5.0, -6.0], [-1.0, -2.0]]
    assert table.gold_of("eval").tolist() == [0, 1]
    assert table.scores_of("estimate").tolist() == [[-9.0, -0.1], [-3.0, -4.0]]
    assert table.gold_of("estimate").tolist() == [-1, 1]
    with pytest.raises(ScoreTableError, match="the roles are eval, estimate, content_free"):
        table.scores_of("train")


def test_what_is_written_is_read(table: ScoreTable, tmp_path: Path):
    path = table.save(tmp_path / "deep" / "run.parquet")
    again = ScoreTable.load(path)
    assert again == table
    assert again.labels == ["bad", "good"]
    assert [file.name for file in path.parent.iterdir()] == ["run.parquet"]


def test_a_table_without_labels_is_read_too(table: ScoreTable, tmp_path: Path):
    unnamed = replace(table, record=RunRecord(task="t"))
    again = ScoreTable.load(unnamed.save(tmp_path / "run.parquet"))
    assert again == unnamed
    assert again.labels == ["0", "1"]


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_scores_that_are_not_finite_are_kept_and_told(table: ScoreTable, tmp_path: Path, bad: float):
    assert table.not_finite() is None
    scores = table.scores.copy()
    scores[1, 1] = bad
    broken = replace(table, scores=scores)
    assert ScoreTable.load(broken.save(tmp_path / "run.parquet")) == broken
    assert broken.not_finite() == f"The model gave {bad} as the score of label 'good' for estimate document 1"
    assert broken.not_finite(["eval"]) is None


def test_equality_is_of_rows_and_record(table: ScoreTable):
    assert table == replace(table, scores=table.scores.copy())
    assert table != replace(table, scores=table.scores + 1e-12)
    assert table != replace(table, role=np.array(["eval"] * 5))
    assert table != replace(table, record=replace(table.record, task="other"))
    assert table != "a table"


def test_gold_of_the_estimate_set_stays_out_of_the_gold_column(table: ScoreTable, tmp_path: Path):
    columns = pq.read_table(table.save(tmp_path / "run.parquet")).to_pydict()
    for role, gold, estimate_gold in zip(columns["role"], columns["gold"], columns["estimate_gold"], strict=True):
        assert (gold is not None) == (role == "eval")
        assert estimate_gold is None or role == "estimate"


def test_other_files_are_refused_with_a_sentence(table: ScoreTable, tmp_path: Path):
    with pytest.raises(ScoreTableError, match="There is no score table at"):
        ScoreTable.load(tmp_path / "none.parquet")

    path = table.save(tmp_path / "run.parquet")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ScoreTableError, match="damaged or not Parquet"):
        ScoreTable.load(path)

    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(ScoreTableError, match="not a score table of lm-eval-proca"):
        ScoreTable.load(path)

    path.write_bytes(whole)
    read = pq.read_table(path)
    newer = json.dumps({**table.record.as_json(), "format": 99}).encode()
    pq.write_table(read.replace_schema_metadata({b"lm_eval_proca": newer}), path)
    with pytest.raises(ScoreTableError, match=f"format 99, this lm-eval-proca reads format {FORMAT}"):
        ScoreTable.load(path)

    pq.write_table(read.drop_columns(["score_1"]), path)
    with pytest.raises(ScoreTableError, match="lacks the columns"):
        ScoreTable.load(path)


def test_an_interrupted_write_leaves_the_old_file(table: ScoreTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = table.save(tmp_path / "run.parquet")
    before = path.read_bytes()

    def fail(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fail)
    with pytest.raises(KeyboardInterrupt):
        table.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["run.parquet"]


def test_hidden_states_travel_with_the_scores(tmp_path: Path) -> None:
    table = made_table(hidden=True, eval_rows=20, estimate_rows=30)
    again = ScoreTable.load(table.save(tmp_path / "t.parquet"))
    assert again == table
    assert again.representations_of("estimate").shape == (2, 30, 16)
    np.testing.assert_array_equal(again.representations_of("eval")[1], table.representations[:20, 1])
    assert made_table().representations_of("eval") is None


def test_a_large_table_is_written_in_bounded_memory(tmp_path: Path) -> None:
    """100 000 documents with 126 probes each: what writing adds to the table itself is a part of it, not a copy."""
    n, probes = 100_000, 126
    values = np.random.default_rng(0).normal(size=(n, 1, probes)).astype(np.float16)
    whole = ScoreTable(
        role=np.repeat("eval", n),
        index=np.arange(n),
        gold=np.zeros(n, dtype=np.int64),
        estimate_gold=np.full(n, NO_GOLD),
        scores=np.zeros((n, 2)),
        representations=values,
        record=RunRecord(labels=("a", "b"), representation={"probes": list(range(probes))}),
    )
    arrow = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(arrow)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        path = whole.save(tmp_path / "large.parquet")
        added = tracemalloc.get_traced_memory()[1] + (pool.max_memory() or 0)
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(arrow)
    assert added < values.nbytes
    assert path.stat().st_size / n < 2 * probes + 50, "bytes per document"
    assert ScoreTable.load(path) == whole


def test_a_calibrator_of_hidden_states_is_fitted_on_a_table_and_left_out_without_them() -> None:
    calibrators = {"h": RepresentationCalibrator(), "bc": BatchCalibrator()}
    table = made_table(hidden=True, separation=0.5)
    fits, failures = fit_all(table, calibrators)
    accuracy = {name: np.mean(fit.log_proba.argmax(axis=1) == table.gold_of("eval")) for name, fit in fits.items()}
    assert accuracy["h"] > accuracy["bc"] + 0.1
    assert failures == {}
    fits, failures = fit_all(made_table(), calibrators)
    assert fits.keys() == {"bc"}
    assert "needs representations beside the scores" in failures["h"]


def test_hidden_states_of_evaluation_rows_are_cross_fitted_too() -> None:
    table = made_table(hidden=True, separation=0.5, estimate_rows=0)
    fits, _ = fit_all(table, {"h": RepresentationCalibrator()})
    assert fits["h"].folds == 5
    assert np.mean(fits["h"].log_proba.argmax(axis=1) == table.gold_of("eval")) > 0.8
