from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca import PrototypicalCalibrator, load_calibrator
from lm_eval_proca.cli import main
from lm_eval_proca.scores.fitting import fit
from lm_eval_proca.scores.score_table import ScoreTable
from results.output_folders import Matrix, write_output
from tests.conftest import ROOT
from tests.score_tables import made_table, without

Output = pytest.CaptureFixture[str]


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    return made_table().save(tmp_path / "scores" / "sst2.parquet")


def printed_accuracies(text: str) -> dict[str, str]:
    return dict(re.findall(r"^(\w+) +(\d\.\d{4}) \[", text, flags=re.MULTILINE))


@pytest.fixture(scope="module")
def finished_run(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A run of lm-eval with random scores: its score table and the accuracies in its results."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    folder = tmp_path_factory.mktemp("scores")
    settings = {"proca.data_dir": str(data_dir), "proca.scores_dir": str(folder), "proca.estimate_size": 80}
    manager = TaskManager(include_path=str(ROOT / "task_configs"), include_defaults=False, metadata=settings)
    results = lm_eval.simple_evaluate(
        model="dummy", tasks=["proca_sst2"], num_fewshot=2, task_manager=manager, bootstrap_iters=0
    )
    [path] = folder.glob("*.parquet")
    found = results["results"]["proca_sst2"]
    return path, {key.removeprefix("acc,"): value for key, value in found.items() if key.startswith("acc,")}


def test_accuracies_are_exactly_those_of_the_run(
    finished_run: tuple[Path, dict], capsys: Output, tmp_path: Path
) -> None:
    path, accuracies = finished_run
    assert main(["calibrate", str(path), "--output", str(tmp_path / "out.json")]) == 0
    assert set(accuracies) >= {"none", "bc", "conca", "proca"}
    assert printed_accuracies(capsys.readouterr().out) == {name: f"{value:.4f}" for name, value in accuracies.items()}
    written = json.loads((tmp_path / "out.json").read_text())
    assert {row["calibrator"]: row["accuracy"] for row in written} == accuracies


def test_what_is_printed_says_where_the_numbers_come_from(table_file: Path, capsys: Output) -> None:
    assert main(["calibrate", str(table_file.parent)]) == 0
    printed = capsys.readouterr().out
    assert (
        "proca_sst2, made-model, 4-shot, seed 0, 200 evaluation rows, 2 labels, 300 estimate rows (split:train)"
        in printed
    )
    assert str(table_file) in printed
    assert re.search(r"calibrator +accuracy +macro-F1 +Brier +calibration error", printed)
    assert "note:" not in printed


def test_what_a_fit_says_of_itself_is_printed(capsys: Output, tmp_path: Path) -> None:
    table = made_table(hidden=True, separation=0.0)
    noise = np.random.default_rng(0).normal(size=(len(table.role), 1, 16)).repeat(2, axis=1)
    replace(table, representations=noise).save(tmp_path / "noise.parquet")
    assert main(["calibrate", str(tmp_path / "noise.parquet"), "--calibrators", "bc,proca_h"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^calibrator .* estimated accuracy$", printed, re.MULTILINE)
    assert re.search(r"^proca_h .*\] +0\.\d{4}$", printed, re.MULTILINE)
    assert re.search(r"^bc .*\]$", printed, re.MULTILINE)
    assert "note: proca_h: " in printed


def test_chosen_calibrators_with_chosen_parameters(table_file: Path, capsys: Output, tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    command = [
        "calibrate",
        str(table_file),
        "--calibrators",
        "proca,bc",
        "--param",
        "proca.n_init=4",
        "proca.selection=likelihood",
    ]
    assert main([*command, "--output", str(output)]) == 0
    assert list(printed_accuracies(capsys.readouterr().out)) == ["none", "proca", "bc"]
    [row] = [row for row in json.loads(output.read_text()) if row["calibrator"] == "proca"]
    assert (row["params"]["n_init"], row["params"]["selection"]) == (4, "likelihood")
    assert row["fit"]["restarts"] == 4
    assert row["accuracy_low"] <= row["accuracy"] <= row["accuracy_high"]


def test_scores_that_are_not_finite_leave_the_raw_row_and_other_files_go_on(tmp_path: Path, capsys: Output) -> None:
    broken, whole = made_table("proca_trec", labels=3), made_table()
    broken.scores[4, 2] = float("nan")
    files = [str(broken.save(tmp_path / "broken.parquet")), str(whole.save(tmp_path / "whole.parquet"))]
    output = tmp_path / "out.json"
    assert main(["calibrate", *files, "--output", str(output)]) == 1
    printed = capsys.readouterr()
    [sentence] = [line for line in printed.err.splitlines() if "broken" in line]
    reason = "The model gave nan as the score of label 'label2' for eval document 4"
    assert sentence == f"lm-eval-proca calibrate: {files[0]} lacks calibrated rows. {reason}."
    assert f"note: no row for bc, conca, proca: {reason}" in printed.out
    assert [(row["file"], row["calibrator"]) for row in json.loads(output.read_text())] == [
        (files[0], "none"),
        *((files[1], name) for name in ("none", "bc", "conca", "proca")),
    ]


def test_csv_holds_the_numbers_of_all_files(table_file: Path, tmp_path: Path) -> None:
    other = made_table("proca_trec", labels=6, seed=3).save(tmp_path / "trec.parquet")
    output = tmp_path / "numbers" / "out.csv"
    assert main(["calibrate", str(table_file), str(other), "--calibrators", "bc", "--output", str(output)]) == 0
    with output.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["task"], row["calibrator"], row["fitted_on"]) for row in rows] == [
        ("proca_sst2", "none", ""),
        ("proca_sst2", "bc", "estimate"),
        ("proca_trec", "none", ""),
        ("proca_trec", "bc", "estimate"),
    ]
    table = ScoreTable.load(other)
    raw = (table.scores_of("eval").argmax(axis=1) == table.gold_of("eval")).mean()
    assert float(rows[2]["accuracy"]) == raw


def test_samples_of_a_task_without_our_class(
    tmp_path: Path, capsys: Output, write_samples: Callable[[Path, ScoreTable], None]
) -> None:
    table = made_table(eval_rows=80)
    path = tmp_path / "samples_sst2_2025-01-01T00-00-00.000000.jsonl"
    write_samples(path, table)
    assert main(["calibrate", str(path), "--param", "proca.n_init=4"]) == 0
    printed = capsys.readouterr().out
    expected = fit(PrototypicalCalibrator(n_init=4), without(table, "estimate", "content_free")).log_proba.argmax(1)
    assert printed_accuracies(printed)["proca"] == f"{(expected == table.gold_of('eval')).mean():.4f}"
    assert "the unlabeled evaluation rows are cross-fitted in 5 folds" in printed
    assert "no row for conca: ContextualCalibrator is fitted on scores of content-free inputs" in printed
    assert list(printed_accuracies(printed))[:3] == ["none", "bc", "proca"]


@pytest.fixture
def write_samples() -> Callable[[Path, ScoreTable], None]:
    def write(path: Path, table: ScoreTable) -> None:
        lines = []
        for k, (scores, gold) in enumerate(zip(table.scores_of("eval"), table.gold_of("eval"), strict=True)):
            responses = [[[str(score), "False"]] for score in scores.tolist()]
            arguments = {f"gen_args_{n}": {"arg_0": "a prompt", "arg_1": f" {w}"} for n, w in enumerate(table.labels)}
            lines.append(
                {
                    "doc_id": k,
                    "doc": {},
                    "target": str(gold),
                    "arguments": arguments,
                    "resps": responses,
                    "filtered_resps": [r[0] for r in responses],
                    "filter": "none",
                }
            )
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    return write


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--save", "x.json"], "--save keeps one calibrator, these would be 3"),
        (["--param", "n_init=3"], "not of the form CALIBRATOR.NAME=VALUE"),
        (["--param", "proca.n_init=0", "--calibrators", "proca"], "n_init"),
        (["--calibrators", "bc", "--output", "x.txt"], "must end in .csv or .json"),
    ],
)
def test_mistakes_end_in_one_sentence(table_file: Path, capsys: Output, arguments: list[str], message: str) -> None:
    assert main(["calibrate", str(table_file), *arguments]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("lm-eval-proca calibrate: ")
    assert message in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output", "x.txt"], "must end in .csv or .json"),
        (["--param", "proca.n_init=0"], "n_init"),
        (["--param", "bc.n_init=3"], "bc has no parameter n_init"),
        (["--calibrators", "bc", "--param", "proca.n_init=3"], "parameters for proca"),
        (["--calibrators", "platt"], "no calibrator named 'platt'"),
    ],
)
def test_wrong_options_are_refused_before_any_file_is_read(capsys: Output, arguments: list[str], message: str) -> None:
    assert main(["calibrate", "no-such-file.parquet", *arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert message in printed.err


def test_a_parameter_of_no_filter_of_the_last_file_is_refused_before_the_first_is_fitted(
    tmp_path: Path, capsys: Output
) -> None:
    quick = {"quick": [{"function": "proca", "n_init": 3}]}
    files = [
        made_table(filters=quick).save(tmp_path / "a.parquet"),
        made_table().save(tmp_path / "b.parquet"),
    ]
    assert main(["calibrate", *map(str, files), "--param", "quick.n_init=2"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "parameters for quick, which is not among" in printed.err


def test_a_saved_calibrator_knows_its_labels_and_where_it_is_from(tmp_path: Path) -> None:
    table = made_table("proca_trec", labels=3, seed=7, prompt_hash="abc").save(tmp_path / "trec.parquet")
    assert main(["calibrate", str(table), "--calibrators", "bc", "--save", str(tmp_path / "trec.bc")]) == 0
    loaded = load_calibrator(tmp_path / "trec.bc")
    assert loaded.labels_ == ["label0", "label1", "label2"]
    assert loaded.origin_ == {
        "task": "proca_trec",
        "model": "somewhere/made-model",
        "num_fewshot": 4,
        "seed": 7,
        "prompt_hash": "abc",
    }


def test_a_saved_calibrator_predicts_what_was_measured(table_file: Path, tmp_path: Path, capsys: Output) -> None:
    saved = tmp_path / "sst2.proca"
    assert main(["calibrate", str(table_file), "--calibrators", "proca", "--save", str(saved)]) == 0
    table = ScoreTable.load(table_file)
    predicted = load_calibrator(saved).predict(table.scores_of("eval"))
    measured = printed_accuracies(capsys.readouterr().out)["proca"]
    assert measured == f"{(predicted == table.gold_of('eval')).mean():.4f}"


def test_no_language_model_library_is_imported(table_file: Path) -> None:
    code = (
        "import sys; from lm_eval_proca.cli import main; assert main(sys.argv[1:]) == 0;"
        "assert not {'lm_eval', 'torch', 'transformers', 'datasets', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code, "calibrate", str(table_file)], check=True, capture_output=True, cwd=ROOT
    )


def test_a_log_without_gold_labels_is_calibrated_and_measured_by_nothing(tmp_path: Path, capsys: Output) -> None:
    made = made_table(labels=3, eval_rows=60)
    unlabeled = Matrix(made.scores_of("eval"), np.full(60, -1), ("a", "b", "c"))
    file = write_output(tmp_path, "m", {"plain": unlabeled})
    [log] = file.parent.glob("samples_*")
    kept, saved = tmp_path / "rows.json", tmp_path / "bc.json"
    assert main(["calibrate", str(log), "--calibrators", "bc", "--output", str(kept), "--save", str(saved)]) == 0
    assert "note: 60 evaluation rows have no gold label" in capsys.readouterr().out
    assert {row["accuracy"] for row in json.loads(kept.read_text())} == {None}
    assert saved.is_file()


def test_nothing_of_what_was_asked_for_is_exit_code_1(table_file: Path, capsys: Output) -> None:
    assert main(["calibrate", str(table_file), "--calibrators", "none,proca_a"]) == 1
    assert "no row for proca_a: With up to 5 labels proca_a is batch calibration" in capsys.readouterr().out
    assert main(["calibrate", str(table_file), "--calibrators", "bc,proca_a"]) == 0
    assert main(["calibrate", str(table_file), "--calibrators", "none"]) == 0


def test_a_reader_that_leaves_costs_no_number(tmp_path: Path) -> None:
    """More is printed than a pipe holds, as `| head -3` would leave it."""
    for seed in range(36):
        made_table(labels=16, eval_rows=40, seed=seed).save(tmp_path / "scores" / f"{seed}.parquet")
    command = [sys.executable, "-m", "lm_eval_proca.cli", "calibrate", str(tmp_path / "scores"), "--bias"]
    command += ["--calibrators", "bc", "--output", str(tmp_path / "again.json")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
    assert process.returncode == 141
    assert said == f"numbers written to {tmp_path / 'again.json'}\n"
    assert len(json.loads((tmp_path / "again.json").read_text())) == 72


def test_published_methods_by_name(tmp_path: Path, data_dir: Path, capsys: Output) -> None:
    """A table of a default run serves those that are fitted on documents; random words must have been scored."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    settings = {"proca.data_dir": str(data_dir), "proca.estimate_size": 80, "proca.scores_dir": str(tmp_path)}
    asked = {**settings, "proca.calibrators": "bc/domain", "proca.scores_dir": str(tmp_path / "asked")}
    for metadata in (settings, asked):
        manager = TaskManager(include_path=str(ROOT / "task_configs"), include_defaults=False, metadata=metadata)
        lm_eval.simple_evaluate(model="dummy", tasks=["proca_sst2"], task_manager=manager, bootstrap_iters=0)
    [default], [with_words] = tmp_path.glob("*.parquet"), (tmp_path / "asked").glob("*.parquet")
    named = ["--calibrators", "none,bc_prob,ucpa,domain", "--param", "ucpa.prior=[0.3,0.7]"]
    assert main(["calibrate", str(default), *named]) == 0
    printed = capsys.readouterr().out
    assert set(printed_accuracies(printed)) == {"none", "bc_prob", "ucpa"}
    assert "no row for domain: DomainContextCalibrator is fitted on scores of domain inputs, which only" in printed
    assert "proca.calibrators=domain" in printed
    assert main(["calibrate", str(with_words), *named]) == 0
    assert set(printed_accuracies(capsys.readouterr().out)) == {"none", "bc_prob", "ucpa", "domain"}
    assert main(["calibrate", str(with_words)]) == 0  # those of the run
    assert set(printed_accuracies(capsys.readouterr().out)) == {"none", "bc", "domain"}
    saved = tmp_path / "domain.json"
    assert main(["calibrate", str(with_words), "--calibrators", "domain", "--save", str(saved)]) == 0
    capsys.readouterr()
    assert main(["apply", str(saved), str(with_words)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 121
