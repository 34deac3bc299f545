from __future__ import annotations

import csv
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lm_eval_proca.cli import main
from lm_eval_proca.paper import ANALYSES
from tests.conftest import ROOT
from tests.score_tables import made_prompts, made_table

Output = pytest.CaptureFixture[str]


def table_files(name: str, folder: Path) -> Path:
    """The smallest set of score tables that an analysis can work on."""
    options = {
        "templates": [{"task": f"proca_sst2_template{k}"} for k in (1, 2)],
        "proportions": [
            {"shots": 8, "demonstration_counts": [8 - k, k], "order_seed": o} for k in (0, 4) for o in (0, 1)
        ],
        "selection": [{"task": "proca_agnews", "labels": 4}],
        "methods": [{"task": "proca_agnews", "labels": 4, "hidden": True, "seed": seed} for seed in (0, 1)],
    }
    if name == "prompts":
        for k, table in enumerate(made_prompts(2)):
            table.save(folder / f"{k}.parquet")
        return folder
    for k, some in enumerate(options.get(name, [{"seed": 0}, {"seed": 1}])):
        made_table(**{"estimate_rows": 60, "eval_rows": 40, **some}).save(folder / f"{k}.parquet")
    return folder


@pytest.mark.parametrize("name", ANALYSES)
def test_every_analysis_makes_a_table_and_a_figure(name: str, tmp_path: Path, capsys: Output) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    files = table_files(name, tmp_path / "scores")
    output = tmp_path / "out"
    assert main(["analyze", name, str(files), "--output", str(output), "--param", "proca.n_init=2"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{name}: {ANALYSES[name]}\n")
    with (output / f"{name}.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert rows
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    assert (output / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_format_analysis_says_that_it_is_not_quite_the_papers_logit(tmp_path: Path, capsys: Output) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    files = table_files("formats", tmp_path / "scores")
    main(["analyze", "formats", str(files), "--output", str(tmp_path), "--param", "proca.n_init=2"])
    assert "not quite the paper's logit" in capsys.readouterr().out


def test_without_matplotlib_the_table_is_written_all_the_same(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    files = table_files("templates", tmp_path / "scores")
    assert main(["analyze", "templates", str(files), "--output", str(tmp_path), "--param", "proca.n_init=2"]) == 0
    assert "pip install 'lm-eval-proca[plots]'" in capsys.readouterr().err
    assert (tmp_path / "templates.csv").is_file()


def test_tables_that_an_analysis_is_not_for_are_named_and_skipped(tmp_path: Path, capsys: Output) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    folder = tmp_path / "scores"
    for task, labels in (("proca_sst2", 2), ("proca_agnews", 4), ("proca_trec", 6)):
        for seed in (0, 1):
            made_table(task, labels=labels, seed=seed, eval_rows=40).save(folder / f"{task}-{seed}.parquet")
    common = ["--output", str(tmp_path), "--param", "proca.n_init=2"]
    for name in ("thresholds", "boundaries", "imbalance"):
        assert main(["analyze", name, str(folder), *common]) == 0
        [skipped] = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line]
        assert skipped == (
            f"{name}: skipped 4 of 6 score tables: proca_agnews (4 labels, not two), proca_trec (6 labels, not two)"
        )
        with (tmp_path / f"{name}.csv").open(newline="") as lines:
            assert {row["task"] for row in csv.DictReader(lines)} == {"proca_sst2"}
    assert main(["analyze", "proportions", str(folder), *common]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "`proportions` can use none of 6 score tables: proca_agnews (4 labels, not two), proca_sst2 (not" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["size"], "either score tables (FILE ...) or a model"),
        (["size", "scores", "--model_args", "pretrained=x"], "either score tables (FILE ...) or a model"),
        (["all", "scores"], "choose one analysis"),
        (["all", "--model_args", "pretrained=x", "--seeds", "1"], "choose one analysis"),
        (["size", "missing.parquet"], "no file or folder missing.parquet"),
    ],
)
def test_mistakes_end_in_one_sentence(arguments: list[str], message: str, tmp_path: Path, capsys: Output) -> None:
    assert main(["analyze", *arguments, "--output", str(tmp_path)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert message in line


def test_runs_are_made_once_and_shared_by_the_analyses(
    tmp_path: Path, data_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.setenv("PROCA_DATA_DIR", str(data_dir))
    common = ["--model", "dummy", "--model_args", "pretrained=none", "--limit", "20", "--output", str(tmp_path)]
    common += ["--metadata", "proca.estimate_size=40", "--param", "proca.n_init=2"]
    assert main(["analyze", "boundaries", *common]) == 0
    runs = sorted((tmp_path / "runs").glob("*/proca_sst2-*"))
    assert len(runs) == 2
    made = {run: run.stat().st_mtime_ns for run in runs}
    assert main(["analyze", "thresholds", *common, "--seeds", "0", "1", "2"]) == 0
    assert {run: run.stat().st_mtime_ns for run in runs} == made
    assert len(list((tmp_path / "runs").glob("*/proca_sst2-*"))) == 3
    with (tmp_path / "thresholds.csv").open(newline="") as lines:
        assert {row["eval_rows"] for row in csv.DictReader(lines)} == {"20"}


def test_a_group_and_a_task_of_ones_own_are_found(
    tmp_path: Path, data_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.setenv("PROCA_DATA_DIR", str(data_dir))
    own = tmp_path / "own"
    own.mkdir()
    (own / "reviews.yaml").write_text(f"include: {ROOT / 'task_configs' / 'proca_sst2.yaml'}\ntask: own_reviews\n")
    (own / "group.yaml").write_text("group: my_group\ntask: [own_reviews, proca_sst2]\n")
    command = ["analyze", "templates", "--model", "dummy", "--model_args", "pretrained=none", "--limit", "10"]
    command += ["--metadata", "proca.estimate_size=40", "--param", "proca.n_init=2", "--output", str(tmp_path)]
    assert main([*command, "--tasks", "my_group", "--include_path", str(own), "--seeds", "0"]) == 0
    with (tmp_path / "templates.csv").open(newline="") as lines:
        assert {row["task"] for row in csv.DictReader(lines)} == {"own_reviews", "proca_sst2"}


def test_proportions_reach_the_prompts(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    from lm_eval_proca.paper.proportions import Proportions

    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.setenv("PROCA_DATA_DIR", str(data_dir))
    monkeypatch.setattr(Proportions, "plan", replace(Proportions.plan, shots=(2,), orders=2))
    command = ["analyze", "proportions", "--model", "dummy", "--model_args", "pretrained=none", "--limit", "10"]
    command += ["--metadata", "proca.estimate_size=40", "--param", "proca.n_init=2", "--output", str(tmp_path)]
    assert main(command) == 0
    with (tmp_path / "proportions.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert {(row["positives"], row["order"]) for row in rows} == {(p, o) for p in "012" for o in "01"}
    rows_of = {row["sentence"]: row["label"] for row in map(json.loads, (data_dir / "sst2" / "train.jsonl").open())}
    for run in (tmp_path / "runs").glob("*/proca_sst2-*"):
        [log] = run.glob("samples_*.jsonl")
        prompt = json.loads(log.read_text().splitlines()[0])["arguments"]["gen_args_0"]["arg_0"]
        shown = [label for sentence, label in rows_of.items() if sentence.strip() in prompt]
        negative, positive = re.search(r"demonstration_counts=(\d)\D+(\d)", run.name).groups()
        assert (shown.count(0), shown.count(1)) == (int(negative), int(positive))


def test_calibrators_by_name(tmp_path: Path, capsys: Output) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    files = table_files("size", tmp_path / "scores")
    command = ["analyze", "size", str(files), "--output", str(tmp_path), "--param", "ucpa.max_iter=50"]
    assert main([*command, "--calibrators", "bc,bc_prob,ucpa,domain"]) == 0
    with (tmp_path / "size.csv").open(newline="") as lines:
        assert {row["calibrator"] for row in csv.DictReader(lines)} == {"none", "bc", "bc_prob", "ucpa"}
    assert "note: no row for domain: DomainContextCalibrator is fitted on scores of domain" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["selection", "thresholds", "prompts"])
def test_what_an_analysis_cannot_do_without_need_not_be_named(name: str, tmp_path: Path, capsys: Output) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    files = table_files(name, tmp_path / "scores")
    assert main(["analyze", name, str(files), "--output", str(tmp_path), "--calibrators", "bc_prob"]) == 0
