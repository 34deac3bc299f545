"""`calibrate SWEEP --output DIR`: cells of a real sweep, calibrated again from their score tables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lm_eval_proca.cli import main
from lm_eval_proca.compare.comparison import compare
from lm_eval_proca.scores.score_table import ScoreTable

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def sweep(tiny_gpt2: Path, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two cells: one prompt with hidden states, and two prompts."""
    folder = tmp_path_factory.mktemp("sweep")
    command = ["sweep", "--model_args", f"pretrained={tiny_gpt2}", "--device", "cpu", "--tasks", "proca_sst2"]
    command += ["--num_fewshot", "1", "--limit", "30", "--seeds", "0", "--output_path", str(folder)]
    command += ["--metadata", f"proca.data_dir={data_dir}", "proca.estimate_size=40"]
    assert main(command) == 0
    assert main([*command, "proca.prompts=2"]) == 0
    return folder


def results_of(folder: Path) -> dict[str, dict[str, Any]]:
    """By the name of the cell."""
    return {file.parent.name: json.loads(file.read_text()) for file in folder.rglob("results_*.json")}


def accuracies(results: Mapping[str, Any]) -> dict[str, float]:
    metrics = results["results"]["proca_sst2"]
    return {key: value for key, value in metrics.items() if key.startswith("acc") and value != "N/A"}


def test_the_same_calibrators_give_what_the_run_gave(sweep: Path, tmp_path: Path, capsys: Output) -> None:
    """proca_h with them, whose hidden states only the score tables have; every number and every sample."""
    assert main(["calibrate", str(sweep), "--output", str(tmp_path / "again")]) == 0
    before, after = results_of(sweep), results_of(tmp_path / "again")
    assert len(after) == len(before) == 2
    for cell, results in before.items():
        wanted = accuracies(results)
        assert {"acc,none", "acc,bc", "acc,conca", "acc,proca", "acc,proca_h"} <= wanted.keys()
        assert accuracies(after[cell]) == pytest.approx(wanted)
    for log in sweep.rglob("samples_*.jsonl"):
        old, new = (
            sorted((line["doc_id"], line["filter"], line["acc"], line["doc_hash"]) for line in map(json.loads, lines))
            for lines in (log.open(), (tmp_path / "again" / log.relative_to(sweep)).open())
        )
        assert new == old
    assert main(["compare", str(sweep), "--format", "csv"]) == 0
    expected = capsys.readouterr().out.split("model,")[-1]
    assert main(["compare", str(tmp_path / "again"), "--format", "csv"]) == 0
    assert capsys.readouterr().out.split("model,")[-1] == expected


def test_other_calibrators_replace_those_of_the_run(sweep: Path, tmp_path: Path, capsys: Output) -> None:
    command = ["calibrate", str(sweep), "--calibrators", "none,bc,proca", "--param", "proca.n_init=2", "--bias"]
    assert main([*command, "--output", str(tmp_path / "fewer")]) == 0
    printed = capsys.readouterr().out
    assert "Leaderboard, 1 shot: average over sst2" in printed
    assert "sd of recalls" in printed
    report = compare([tmp_path / "fewer"])
    assert report.methods == ["raw", "raw x2", "bc", "bc x2", "proca", "proca x2"]
    assert all(one.interval is not None for one in report.leaderboards[0].standings)
    for results in results_of(tmp_path / "fewer").values():
        assert {key.partition(",")[2] for key in accuracies(results)} == {"none", "bc", "proca"}
        config = results["configs"]["proca_sst2"]
        assert config["metadata"]["proca"]["filters"]["proca"] == [{"function": "proca", "n_init": 2}]
        assert [one["name"] for one in config["filter_list"]] == ["none", "bc", "proca"]
    for log in (tmp_path / "fewer").rglob("samples_*.jsonl"):
        assert {json.loads(line)["filter"] for line in log.open()} == {"none", "bc", "proca"}


def test_a_recalibrated_sweep_is_a_sweep(sweep: Path, tmp_path: Path) -> None:
    """It has identities and score tables, so that it can be calibrated again."""
    assert main(["calibrate", str(sweep), "--calibrators", "none", "--output", str(tmp_path / "raw")]) == 0
    assert {key for one in results_of(tmp_path / "raw").values() for key in accuracies(one)} >= {"acc,none"}
    again = ["calibrate", str(tmp_path / "raw"), "--calibrators", "bc", "--output", str(tmp_path / "bc")]
    assert main(again) == 0
    direct = ["calibrate", str(sweep), "--calibrators", "bc", "--output", str(tmp_path / "direct")]
    assert main(direct) == 0
    found, expected = results_of(tmp_path / "bc"), results_of(tmp_path / "direct")
    assert {cell: accuracies(one) for cell, one in found.items()} == {c: accuracies(e) for c, e in expected.items()}


def test_a_cell_that_is_not_whole_is_named_and_the_others_are_written(
    sweep: Path, tmp_path: Path, capsys: Output
) -> None:
    assert main(["calibrate", str(sweep), "--calibrators", "none", "--output", str(tmp_path / "copy")]) == 0
    (table,) = (tmp_path / "copy").rglob("*prompt1*.parquet")
    table.unlink()
    capsys.readouterr()
    assert main(["calibrate", str(tmp_path / "copy"), "--calibrators", "bc", "--output", str(tmp_path / "bc")]) == 1
    assert "has 1 score tables of 2 prompts" in capsys.readouterr().err
    assert len(results_of(tmp_path / "bc")) == 1
    other = next(sweep.rglob("*prompt0*.parquet"))
    (single,) = [one for one in (tmp_path / "copy").rglob("*.parquet") if "prompt" not in one.name]
    single.unlink()
    ScoreTable.load(other).save(single)
    assert main(["calibrate", str(single.parent.parent), "--calibrators", "bc", "--output", str(tmp_path / "x")]) == 1
    assert "score tables of 2 prompts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--output", "{sweep}"], "name another --output"),
        (["--output", "{new}", "--save", "c.json"], "--save keeps the calibrator of one file"),
    ],
)
def test_mistakes_end_in_one_sentence(
    sweep: Path, tmp_path: Path, capsys: Output, arguments: list[str], sentence: str
) -> None:
    given = [word.format(sweep=sweep, new=tmp_path / "new") for word in arguments]
    assert main(["calibrate", str(sweep), *given]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_score_tables_without_results_cannot_be_a_sweep(sweep: Path, tmp_path: Path, capsys: Output) -> None:
    table = next(sweep.rglob("*.parquet"))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / table.name).write_bytes(table.read_bytes())
    assert main(["calibrate", str(tmp_path / "tables"), "--output", str(tmp_path / "new")]) == 1
    said = capsys.readouterr().err
    assert "holds no results_DATE.json" in said
    assert f"It holds score tables: `lm-eval-proca calibrate {tmp_path / 'tables'}` takes them" in said


def test_a_result_of_other_calibrators_is_not_replaced(sweep: Path, tmp_path: Path, capsys: Output) -> None:
    again = ["calibrate", str(sweep), "--output", str(tmp_path / "again"), "--param", "proca.n_init=2"]
    assert main([*again, "--calibrators", "none,proca"]) == 0
    before = results_of(tmp_path / "again")
    missing = next((tmp_path / "again").rglob("results_*.json"))
    missing.unlink()  # it could be written, but the other could not
    for other in (["proca,bc"], ["proca", "--param", "proca.n_init=3"]):
        capsys.readouterr()
        assert main([*again, "--calibrators", *other]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert "was calibrated with other calibrators or parameters (proca n_init=2; now proca n_init=" in line
        assert not missing.exists()
    assert main([*again, "--calibrators", "proca"]) == 0, "the same ones are written again"
    after = results_of(tmp_path / "again")
    assert {cell: accuracies(one) for cell, one in after.items()} == {c: accuracies(b) for c, b in before.items()}


def test_a_sweep_and_its_recalibration_are_one_run(sweep: Path, tmp_path: Path) -> None:
    """Of rows that both have, those of the folder named later count, whatever the names of the folders."""
    cell, again = next(sweep.rglob("*prompts=2*")), tmp_path / "again"
    assert main(["calibrate", str(cell), "--calibrators", "bc", "--output", str(again)]) == 0
    for first, second in ((cell, again), (again, cell)):
        (text,) = [notice.text for notice in compare([first, second]).notices if notice.kind == "duplicate"]
        assert re.search(f"is one run, calibrated more than once: {second}/.*, named later, counts", text)


def test_a_sweep_without_any_row_that_was_asked_for_is_exit_code_1(sweep: Path, tmp_path: Path, capsys: Output) -> None:
    assert main(["calibrate", str(sweep), "--calibrators", "proca_a", "--output", str(tmp_path / "none")]) == 1
    assert "no row for proca_a: With up to 5 labels proca_a is batch calibration" in capsys.readouterr().out
