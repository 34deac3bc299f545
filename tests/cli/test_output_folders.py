"""`calibrate` and `compare` on whole output folders of lm-eval."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lm_eval_proca import Calibrator
from lm_eval_proca.calibration.registry import make_calibrator
from lm_eval_proca.cli import main
from lm_eval_proca.cli.compare import SOMETHING_SKIPPED
from lm_eval_proca.runs import processes
from lm_eval_proca.scores import fitting
from lm_eval_proca.scores.fitting import calibrators_of_documents
from results.output_folders import Matrix, write_output
from tests.score_tables import made_table

Output = pytest.CaptureFixture[str]
GROUPS = {"all": ["physics", "algebra"]}


def matrix(seed: int, separation: float = 1.5) -> Matrix:
    table = made_table(labels=4, eval_rows=60 + 20 * seed, seed=seed, separation=separation)
    return Matrix(table.scores_of("eval"), table.gold_of("eval"))


@pytest.fixture(autouse=True, scope="module")
def few_restarts() -> Iterator[None]:
    """`compare` has no --param; a hundred restarts for each of many logs would show nothing more here."""

    def make(name: str, params: dict) -> Calibrator:
        return make_calibrator(name, {"n_init": 3, **params} if name == "proca" else params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "make_calibrator", make)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two models on the same documents, two tasks, one group."""
    return write_folder(tmp_path / "out")


def write_folder(folder: Path) -> Path:
    for model, separation in (("org/small", 1.0), ("org/large", 2.5)):
        tasks = {name: matrix(seed, separation) for seed, name in enumerate(("physics", "algebra"))}
        write_output(folder, model, tasks, groups=GROUPS)
    return folder


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `calibrate` makes of such a folder, with all calibrators."""
    made = tmp_path_factory.mktemp("made")
    assert main(["calibrate", str(write_folder(made / "out")), "--output", str(made / "calibrated")]) == 0
    return made / "calibrated"


def rows_of(printed: str, name: str) -> dict[tuple[str, str], str]:
    """Value by filter and metric of one task or group in lm-eval's table."""
    found: dict[tuple[str, str], str] = {}
    inside = False
    for line in printed.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 7:
            inside = cells[1].removeprefix("- ") == name or (inside and not cells[1])
            if inside:
                found.setdefault((cells[3], cells[5]), cells[7])
    return found


def test_lm_evals_own_table_with_calibrated_rows(folder: Path, capsys: Output) -> None:
    assert main(["calibrate", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert printed.index("org/large, ") < printed.index("org/small, ")
    assert [line for line in printed.splitlines() if re.match(r"\| *(Tasks|Groups) ", line)]
    of_large = printed[: printed.index("org/small")]
    rows = rows_of(of_large, "all")
    names = sorted({"none", *calibrators_of_documents(representations=False)} - {"proca_a"})
    assert list(rows) == [(name, metric) for metric in ("acc", "recall_sd") for name in names]
    assert names[:2] == ["bc", "none"]
    assert not {"conca", "proca_h"} & set(names)  # logs have neither content-free inputs nor hidden states
    raw = json.loads(next(folder.rglob("org__large/results_*")).read_text())["results"]["all"]["acc,none"]
    assert rows["none", "acc"] == f"{raw:.4f}"
    assert float(rows["bc", "acc"]) > raw
    assert float(rows["bc", "recall_sd"]) < float(rows["none", "recall_sd"])
    assert "2 tasks calibrated, each on its own unlabeled evaluation rows, cross-fitted" in of_large
    assert "proca_a" not in of_large, "with four labels it is bc, and nobody asked for it"


def test_what_is_written_is_a_folder_of_lm_eval_that_compare_takes(
    folder: Path, tmp_path: Path, capsys: Output
) -> None:
    output = tmp_path / "calibrated"
    assert main(["calibrate", str(folder), "--calibrators", "bc", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    names = {path.relative_to(folder) for path in folder.rglob("*.json*")}
    assert {path.relative_to(output) for path in output.rglob("*") if path.is_file()} == names
    results = json.loads(next(output.rglob("org__small/results_*")).read_text())["results"]
    assert rows_of(printed[printed.index("org/small") :], "all")["bc", "acc"] == f"{results['all']['acc,bc']:.4f}"

    assert main(["compare", str(output), "--format", "json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["methods"] == ["raw", "bc"]
    by_key = {(one["model"], one["method"], one["dataset"]): one["mean"] for one in compared["accuracies"]}
    assert by_key["org/small", "bc", "physics"] == pytest.approx(results["physics"]["acc,bc"])
    assert all(one["against_raw"]["tests"] for one in compared["leaderboards"][0]["standings"] if one["method"] == "bc")
    # Once calibrated, always calibrated.
    assert main(["calibrate", str(output), "--output", str(tmp_path / "again")]) == 0
    assert main(["calibrate", str(output), "--calibrators", "none,proca"]) == 1, "nothing that was asked for"
    said = capsys.readouterr().out
    assert "2 tasks unchanged (physics, algebra): calibrated by the run itself; for other calibrators give " in said


def test_compare_does_both_steps(folder: Path, calibrated: Path, tmp_path: Path, capsys: Output) -> None:
    tables = []
    for given in (folder, calibrated):
        page = tmp_path / f"{given.name}.html"
        assert main(["compare", str(given), "--format", "json", "--html", str(page)]) == 0
        tables.append(json.loads(capsys.readouterr().out))
        assert "org/large" in page.read_text()
    at_once, after = tables
    [notice] = at_once.pop("notices")
    assert notice["text"].startswith("4 results were calibrated here, cross-fitted on the evaluation rows")
    assert after.pop("notices") == []
    assert at_once == after
    assert at_once["methods"][:2] == ["raw", "bc"]
    assert not list(folder.rglob("*calibrated*"))


def test_tasks_that_report_acc_norm_alone_are_compared_with_paired_tests(
    folder: Path, tmp_path: Path, capsys: Output
) -> None:
    """As leaderboard_bbh_* do: their lines have no `acc` under the raw filter, and are whole."""
    for file in folder.rglob("*.json*"):
        text = file.read_text().replace('"acc,none"', '"acc_norm,none"')
        file.write_text(re.sub(r'"acc": (\d.0)}', r'"acc_norm": \1}', text))
    output = tmp_path / "calibrated"
    assert main(["calibrate", str(folder), "--calibrators", "bc", "--output", str(output)]) == 0
    capsys.readouterr()
    assert main(["compare", str(output), "--format", "json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared["notices"] == []
    assert compared["methods"] == ["bc"]
    tests = compared["leaderboards"][0]["standings"][0]["against_models"]["tests"]["org/small"]
    assert [one["documents"] for one in tests] == [80, 60]
    for one in tests:
        assert (one["better"] - one["worse"]) / one["documents"] == pytest.approx(one["difference"])


def test_compare_with_patterns_calibrates_only_what_it_shows(folder: Path, capsys: Output) -> None:
    for log in folder.rglob("samples_algebra_*"):
        log.write_text("nonsense")
    assert main(["compare", str(folder), "--tasks", "phys*", "--format", "json"]) == 0
    assert {one["dataset"] for one in json.loads(capsys.readouterr().out)["accuracies"]} == {"physics"}
    assert main(["compare", str(folder), "--format", "json"]) == 3
    printed = capsys.readouterr()
    assert {one["dataset"] for one in json.loads(printed.out)["accuracies"]} == {"physics"}
    assert len(re.findall(r"damaged: algebra of .* was skipped: line 1 of .* is not JSON", printed.err)) == 2


def test_compare_names_the_files_that_were_given(tmp_path: Path, capsys: Output) -> None:
    dates = ("2025-01-31T12-00-00.000001", "2025-02-28T12-00-00.000001")
    old, new = (write_output(tmp_path, "org/model", {"physics": matrix(0)}, date=date) for date in dates)
    assert main(["compare", str(tmp_path), "--format", "json"]) == 0
    texts = [notice["text"] for notice in json.loads(capsys.readouterr().out)["notices"]]
    assert any(f"{new} is newer and counts, {old} does not." in text for text in texts)


def answers(log: Path) -> list[tuple]:
    """Of each line of a sample log: the document, the calibrator, and whether it is right."""
    lines = map(json.loads, log.read_text().splitlines())
    return [(line["doc_id"], line["filter"], line["acc"]) for line in lines]


def test_the_same_whatever_the_number_of_processes(
    folder: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed, in which order, what is written, and what is skipped."""
    damaged = next(folder.rglob("org__large/samples_algebra_*"))
    damaged.write_text("{}\n" + damaged.read_text())
    monkeypatch.setattr(processes, "ALONE_SECONDS", 0.0)
    seen = {}
    for jobs in ("1", "2"):
        output = tmp_path / jobs
        assert main(["calibrate", str(folder), "--output", str(output), "--jobs", jobs]) == 1
        calibrated = capsys.readouterr()
        assert main(["compare", str(folder), "--format", "json", "--jobs", jobs]) == SOMETHING_SKIPPED
        compared = capsys.readouterr()
        results = [json.loads(file.read_text())["results"] for file in sorted(output.rglob("results_*.json"))]
        samples = {file.relative_to(output): answers(file) for file in output.rglob("samples_physics_*")}
        said = calibrated.err.replace(str(output), "OUTPUT")
        seen[jobs] = calibrated.out, said, compared.out, compared.err, results, samples
    assert "line 1 of" in seen["1"][1]
    assert len(seen["1"][5]) == 2
    assert seen["1"] == seen["2"]


def test_score_tables_are_the_same_whatever_the_number_of_processes(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "ALONE_SECONDS", 0.0)
    for seed in range(3):
        made_table(labels=3, eval_rows=60, seed=seed).save(tmp_path / f"{seed}.parquet")
    seen = []
    for jobs in ("1", "2"):
        assert main(["calibrate", str(tmp_path), "--calibrators", "bc,proca", "--jobs", jobs]) == 0
        seen.append(capsys.readouterr().out)
    assert seen[0] == seen[1]


def test_compare_where_every_log_is_damaged(folder: Path, capsys: Output) -> None:
    for log in folder.rglob("samples_*"):
        log.write_text("nonsense")
    assert main(["compare", str(folder)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "No result with a calibrated accuracy to compare" in line
    assert line.count("is not JSON") == 4


def test_groups_in_place_of_their_tasks(folder: Path, calibrated: Path, capsys: Output) -> None:
    assert main(["compare", str(folder), "--groups", "--tasks", "all", "--format", "json"]) == 0
    compared = json.loads(capsys.readouterr().out)
    assert {one["dataset"] for one in compared["accuracies"]} == {"all"}
    for one in compared["accuracies"]:
        [file] = (calibrated / one["model"].replace("/", "__")).glob("results_*")
        name = "none" if one["method"] == "raw" else one["method"]
        assert one["mean"] == pytest.approx(json.loads(file.read_text())["results"]["all"][f"acc,{name}"], abs=1e-11)
    [large] = [
        one for one in compared["leaderboards"][0]["standings"] if (one["model"], one["method"]) == ("org/large", "bc")
    ]
    [test] = large["against_raw"]["tests"]
    assert test["documents"] == 140  # of both tasks together
    assert (test["better"] - test["worse"]) / 140 == pytest.approx(test["difference"])
    assert {one["documents"] for one in compared["preferences"]} == {140}


def test_a_group_that_weighs_all_tasks_alike_has_no_test_over_documents(tmp_path: Path, capsys: Output) -> None:
    tasks = {name: matrix(seed) for seed, name in enumerate(("physics", "algebra"))}
    write_output(tmp_path, "org/model", tasks, groups=GROUPS, by_size=False)
    assert main(["compare", str(tmp_path), "--groups", "--format", "json"]) == 0
    standings = json.loads(capsys.readouterr().out)["leaderboards"][0]["standings"]
    [test] = next(one for one in standings if one["method"] == "bc")["against_raw"]["tests"]
    assert "p_value" not in test
    assert test["difference"] > 0


def test_a_hundred_files_with_damaged_and_foreign_ones(tmp_path: Path, capsys: Output) -> None:
    for number in range(25):
        tasks = {f"task{k}": matrix(0) for k in range(3)}
        write_output(tmp_path, f"model{number:02d}", tasks)
    logs = sorted(tmp_path.rglob("samples_*"))
    logs[7].write_bytes(logs[7].read_bytes()[:-500])
    logs[30].unlink()
    (tmp_path / "model05" / "samples_lost_2024-01-01T00-00-00.000000.jsonl").write_text("{}\n")
    broken = sorted(tmp_path.rglob("results_*"))[20]
    broken.write_text(broken.read_text()[:300])
    (tmp_path / "model01" / "results_2020-01-01T00-00-00.json").write_text('{"some": "thing else"}')
    (tmp_path / "model02" / "notes.json").write_text("not ours")
    (tmp_path / "model03" / ".results_2020-01-01T00-00-00.json").write_text("unfinished")
    assert main(["calibrate", str(tmp_path), "--calibrators", "bc"]) == 1
    printed = capsys.readouterr()
    problems = printed.err.strip().splitlines()
    assert all(line.startswith("lm-eval-proca calibrate: ") for line in problems)
    assert len(problems) == 5
    for part in (
        "samples_lost_",
        f"{logs[7]} is not JSON",
        f"no {logs[30].name} beside",
        str(broken),
        "model01/results_2020",
    ):
        assert len([line for line in problems if part in line]) == 1
    assert len(re.findall(r"^model\d\d, ", printed.out, flags=re.MULTILINE)) == 24


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--save", "x.json"], "--save keeps the calibrator of one file"),
        (["--together", "--bias"], "--bias is about single prompts"),
        (["--together", "--output", "x.csv"], "with --together, output folders are written as a folder"),
        (["--calibrators", "platt"], "no calibrator named 'platt'"),
        (["scores.parquet"], "together with output folders"),
    ],
)
def test_mistakes_end_in_one_sentence(folder: Path, capsys: Output, arguments: list[str], message: str) -> None:
    assert main(["calibrate", str(folder), *arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    [line] = printed.err.splitlines()
    assert message in line


def test_results_are_never_written_over_themselves(folder: Path, capsys: Output) -> None:
    assert main(["calibrate", str(folder), "--calibrators", "bc", "--output", str(folder)]) == 1
    assert "name another --output" in capsys.readouterr().err


def test_a_folder_without_results(tmp_path: Path, capsys: Output) -> None:
    assert main(["calibrate", str(tmp_path)]) == 1
    assert "holds no results_DATE.json" in capsys.readouterr().err
    assert main(["calibrate", str(tmp_path / "nowhere")]) == 1


def test_one_file_shows_its_labels(folder: Path, tmp_path: Path, capsys: Output) -> None:
    log = next(folder.rglob("samples_physics_*"))
    output = tmp_path / "numbers.json"
    assert main(["calibrate", str(log), "--calibrators", "bc", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"calibrator +label +mean probability +predicted +gold +recall +sd of recalls", printed)
    raw, calibrated = json.loads(output.read_text())
    for row in (raw, calibrated):
        assert row["bias"]["labels"] == ["A", "B", "C", "D"]
        [line] = [line.split() for line in printed.splitlines() if line.split()[:2] == [row["calibrator"], "D"]]
        shown = [row["bias"][key][3] for key in ("mean_probability", "predicted_share", "gold_share", "recall")]
        assert line[2:] == [f"{number:.4f}" for number in shown]
        assert row["recall_sd"] == row["bias"]["recall_sd"]
    assert raw["recall_sd"] > calibrated["recall_sd"]


def test_output_and_bias_mean_the_same_for_a_folder_and_for_its_files(
    folder: Path, tmp_path: Path, capsys: Output
) -> None:
    logs = sorted(map(str, folder.rglob("samples_*.jsonl")))
    options = ["--calibrators", "none,bc", "--bias", "--output"]
    assert main(["calibrate", *logs, *options, str(tmp_path / "files.json")]) == 0
    of_files = capsys.readouterr().out
    assert main(["calibrate", str(folder), *options, str(tmp_path / "folder.json")]) == 0
    of_folder = capsys.readouterr().out

    def rows(name: str) -> dict[tuple[str, str], dict]:
        written = json.loads((tmp_path / name).read_text())
        return {(row["file"], row["calibrator"]): row for row in written}

    assert len(rows("folder.json")) == 2 * len(logs)
    assert rows("folder.json") == rows("files.json")
    labels = [line for line in of_files.splitlines() if re.match(r"(none|bc) +[ABCD] +\d", line)]
    assert len(labels) == 4 * 2 * len(logs)
    assert sorted(labels) == sorted(line for line in of_folder.splitlines() if re.match(r"(none|bc) +[ABCD] +\d", line))
    assert main(["calibrate", str(folder), *options[:2], "--output", str(tmp_path / "folder.csv")]) == 0
    assert len((tmp_path / "folder.csv").read_text().splitlines()) == 1 + 2 * len(logs)


def test_an_output_that_cannot_be_a_folder_is_refused_before_anything_is_calibrated(
    folder: Path, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert main(["calibrate", str(folder), "--calibrators", "bc", "--output", str(tmp_path / "file" / "deep")]) == 1
    printed = capsys.readouterr()
    [line] = printed.err.splitlines()
    assert "Cannot write" in line
    assert "Not a directory" in line
    assert printed.out == ""


@pytest.fixture(params=["full", "read-only"])
def bad_folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder with room for one sample log of two, or for nothing; and what the system says about it."""
    folder = tmp_path / "disk"
    folder.mkdir()
    size, reason = ("size=700k", "No space left on device") if request.param == "full" else ("ro", "Read-only file")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("needs the right to mount a file system")
    yield folder, reason
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_or_read_only_disk_ends_in_one_sentence(
    folder: Path, bad_folder: tuple[Path, str], capsys: Output
) -> None:
    """Nothing is half-written: every file there is can be read, and results have their samples."""
    output, reason = bad_folder
    assert main(["calibrate", str(folder), "--calibrators", "bc", "--output", str(output)]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"lm-eval-proca calibrate: Cannot write {output}")
    assert reason in line
    for file in output.rglob("*"):
        if file.is_file():
            assert file.suffix == ".jsonl"
            [json.loads(written) for written in file.read_text().splitlines()]
    assert bool(list(output.rglob("samples_*"))) == (reason == "No space left on device")


def test_a_write_that_fails_at_last_leaves_no_part_of_a_file(
    folder: Path, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert main(["calibrate", str(folder), "--calibrators", "bc", "--output", str(tmp_path / "new")]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "No space left on device" in line
    assert not [file for file in (tmp_path / "new").rglob("*") if file.is_file()]
