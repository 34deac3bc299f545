"""`calibrate --together` on score tables and sample logs of several prompts, and `apply` with what it saves."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lm_eval_proca import PromptEnsemble, load_calibrator
from lm_eval_proca.cli import main
from lm_eval_proca.crossed import crossed_mean
from lm_eval_proca.scores.fitting import fit, make_calibrators
from lm_eval_proca.scores.score_table import ScoreTable
from results.output_folders import Matrix, write_output
from tests.score_tables import made_prompts, made_table

Output = pytest.CaptureFixture[str]
Written = tuple[list[ScoreTable], list[Path]]


@pytest.fixture
def prompts(tmp_path: Path) -> Written:
    return write(made_prompts(3), tmp_path / "scores")


def write(tables: list[ScoreTable], folder: Path) -> Written:
    return tables, [table.save(folder / f"seed{k}.parquet") for k, table in enumerate(tables)]


def members(tables: list[ScoreTable], name: str = "bc") -> np.ndarray:
    """The log-probabilities of every prompt, fitted one by one."""
    return np.stack([fit(make_calibrators([name])[name], table).log_proba for table in tables])


def test_the_numbers_are_those_of_prompts_fitted_one_by_one(prompts: Written, tmp_path: Path, capsys: Output) -> None:
    tables, _ = prompts
    output = tmp_path / "together.json"
    given = ["calibrate", str(tmp_path / "scores"), "--together", "--calibrators", "bc", "--output", str(output)]
    assert main(given) == 0
    printed = capsys.readouterr().out
    gold, log_proba = tables[0].gold_of("eval"), members(tables)
    right = log_proba.argmax(axis=2) == gold
    ensemble = log_proba.mean(axis=0).argmax(axis=1)
    over = crossed_mean(right)
    raw, bc = json.loads(output.read_text())
    assert (raw["calibrator"], bc["calibrator"]) == ("none", "bc")
    assert bc["accuracy"] == pytest.approx(right.mean(axis=1).tolist())
    assert bc["accuracy_prompts"] == pytest.approx(right.mean())
    assert bc["accuracy_prompts_stderr"] == pytest.approx(over.standard_error)
    assert bc["accuracy_sd"] == pytest.approx(np.std(right.mean(axis=1), ddof=1))
    assert bc["accuracy_worst"] == pytest.approx(right.mean(axis=1).min())
    assert bc["accuracy_together"] == pytest.approx(np.mean(ensemble == gold))
    assert bc["agreement"] == pytest.approx((log_proba.argmax(axis=2) == ensemble).mean(axis=1).tolist())
    assert [one["n_rows"] for one in bc["fits"]] == [300, 300, 300]
    line = re.search(r"^bc +(.*)$", printed, flags=re.MULTILINE)
    assert line is not None
    numbers = re.findall(r"\d\.\d{4}", line[1])
    expected = (bc["accuracy_prompts"], bc["accuracy_sd"], bc["accuracy_worst"], bc["accuracy_together"])
    assert numbers[:4] == [f"{value:.4f}" for value in expected]
    assert "proca_sst2, made-model, 4-shot, 3 prompts, 200 evaluation rows, 2 labels, 300 estimate rows" in printed


def test_each_prompt_is_shown_if_there_is_one_set(prompts: Written, tmp_path: Path, capsys: Output) -> None:
    tables, paths = prompts
    given = ["calibrate", *map(str, paths), "--together", "--calibrators", "bc"]
    assert main(given) == 0
    printed = capsys.readouterr().out
    right = (members(tables).argmax(axis=2) == tables[0].gold_of("eval")).mean(axis=1)
    _, by_prompt = printed.split("Each prompt: accuracy, agreement with all prompts together, estimated accuracy")
    of_prompt = {int(line.split()[0]): line.split()[4] for line in by_prompt.splitlines() if line[:6].strip().isdigit()}
    assert of_prompt == {k: f"{value:.3f}" for k, value in enumerate(right)}
    _, others = write(made_prompts(2, shots=8), tmp_path / "others")
    assert main([*given[:1], *map(str, others), *given[1:]]) == 0
    printed = capsys.readouterr().out
    assert printed.count("mean over prompts") == 2
    assert "Each prompt" not in printed


def test_a_spreadsheet_has_a_row_per_method(prompts: Written, tmp_path: Path) -> None:
    output = tmp_path / "together.csv"
    assert main(["calibrate", str(tmp_path / "scores"), "--together", "--output", str(output)]) == 0
    rows = list(csv.DictReader(output.open()))
    assert [row["calibrator"] for row in rows] == ["none", "bc", "conca", "proca"]
    assert all(len(row["accuracy"].split()) == 3 for row in rows)
    assert "fits" not in rows[0]


def test_tables_of_no_set_are_named_and_the_rest_goes_on(prompts: Written, tmp_path: Path, capsys: Output) -> None:
    _, paths = prompts
    stranger = made_prompts(1, task="proca_mr")[0].save(tmp_path / "mr.parquet")
    given = ["calibrate", *map(str, paths), str(stranger), "--together", "--calibrators", "bc"]
    assert main(given) == 1
    printed = capsys.readouterr()
    assert "3 prompts" in printed.out
    assert f"{stranger} is in no set: it has another task than {paths[0]}." in printed.err


def test_nothing_to_put_together_is_said(prompts: Written, tmp_path: Path, capsys: Output) -> None:
    _, paths = prompts
    assert main(["calibrate", str(paths[0]), "--together"]) == 1
    assert "There is nothing to put together." in capsys.readouterr().err
    assert main(["calibrate", *map(str, paths), "--together", "--bias"]) == 1
    assert "leave it or --together out" in capsys.readouterr().err


def test_without_the_word_a_note_says_that_there_is_a_set(prompts: Written, tmp_path: Path, capsys: Output) -> None:
    _, paths = prompts
    assert main(["calibrate", *map(str, paths), "--calibrators", "bc"]) == 0
    printed = capsys.readouterr().out
    assert f"note: {paths[0]} and 2 more are prompts of one task on the same documents; --together" in printed
    assert "mean over prompts" not in printed
    assert main(["calibrate", str(paths[0]), "--calibrators", "bc"]) == 0
    assert "--together" not in capsys.readouterr().out


def test_rows_without_gold_labels_are_put_together_but_not_measured(tmp_path: Path, capsys: Output) -> None:
    tables = made_prompts(2)
    for table in tables:
        table.gold[:] = -1
    write(tables, tmp_path / "scores")
    assert main(["calibrate", str(tmp_path / "scores"), "--together", "--calibrators", "bc"]) == 0
    assert "200 evaluation rows have no gold label" in capsys.readouterr().out


# ------------------------------------------------------------------ sample logs


def test_sample_logs_of_several_runs(tmp_path: Path, capsys: Output) -> None:
    """Cross-fitted; what tells the prompts apart is the logged text of the first document."""
    tables = made_prompts(3, labels=4)
    logs = []
    for k, table in enumerate(tables):
        matrix = Matrix(table.scores_of("eval"), table.gold_of("eval"))
        written = write_output(tmp_path / f"run{k}", "org/model", {"physics": matrix}, shots=5)
        [log] = written.parent.glob("samples_*.jsonl")
        log.write_text(log.read_text().replace("A made-up question", f"Prompt {k}", 1))
        logs.append(str(log))
    output = tmp_path / "together.json"
    given = ["calibrate", *logs, "--together", "--calibrators", "bc", "--output", str(output)]
    assert main(given) == 0
    assert "cross-fitted in 5 folds" in capsys.readouterr().out
    alone = []
    for k, log in enumerate(logs):
        one = tmp_path / f"{k}.json"
        assert main(["calibrate", log, "--calibrators", "bc", "--output", str(one)]) == 0
        alone.append(json.loads(one.read_text())[1]["accuracy"])
    [_, bc] = json.loads(output.read_text())
    assert bc["accuracy"] == alone
    assert bc["folds"] == 5
    capsys.readouterr()
    assert main(["calibrate", logs[0], logs[0].replace("run0", "run1"), logs[0], "--together"]) == 1
    assert f"{logs[0]} has the same prompt as {logs[0]}." in capsys.readouterr().err


# ------------------------------------------------------------------ saved ensembles


@pytest.fixture
def ensemble(prompts: Written, tmp_path: Path) -> Path:
    saved = tmp_path / "ensemble.json"
    given = ["calibrate", str(tmp_path / "scores"), "--together", "--calibrators", "bc", "--save", str(saved)]
    assert main(given) == 0
    return saved


def applied(given: list[str], capsys: Output) -> tuple[list[dict[str, str]], str]:
    capsys.readouterr()
    assert main(["apply", *given]) == 0
    printed = capsys.readouterr()
    return list(csv.DictReader(io.StringIO(printed.out))), printed.err


def test_a_saved_ensemble_predicts_what_the_command_measured(prompts: Written, ensemble: Path, capsys: Output) -> None:
    tables, paths = prompts
    loaded = load_calibrator(ensemble)
    assert isinstance(loaded, PromptEnsemble)
    assert loaded.labels_ == ["Negative", "Positive"]
    assert loaded.origin_ == {"task": "proca_sst2", "model": "somewhere/made-model", "num_fewshot": 4}
    rows, said = applied([str(ensemble), *map(str, paths)], capsys)
    expected = members(tables).mean(axis=0)
    assert [int(row["label"]) for row in rows] == expected.argmax(axis=1).tolist()
    odds = [np.log(float(row["p(Positive)"]) / float(row["p(Negative)"])) for row in rows]
    np.testing.assert_allclose(odds, expected[:, 1] - expected[:, 0])
    assert said == ""


def test_tables_find_their_prompt_in_any_order(prompts: Written, ensemble: Path, capsys: Output) -> None:
    _, paths = prompts
    in_order, _ = applied([str(ensemble), *map(str, paths)], capsys)
    turned, said = applied([str(ensemble), *map(str, reversed(paths))], capsys)
    assert turned == in_order
    assert said == ""


def test_files_without_names_go_by_their_order(
    prompts: Written, ensemble: Path, tmp_path: Path, capsys: Output
) -> None:
    tables, paths = prompts
    plain = []
    for k, table in enumerate(tables):
        plain.append(tmp_path / f"plain{k}.jsonl")
        plain[-1].write_text("".join(f"{row}\n" for row in table.scores_of("eval").tolist()))
    by_name, _ = applied([str(ensemble), *map(str, paths)], capsys)
    by_order, _ = applied([str(ensemble), *map(str, plain)], capsys)
    assert [row["p(Positive)"] for row in by_order] == [row["p(Positive)"] for row in by_name]


def test_what_does_not_fit_an_ensemble_is_refused(
    prompts: Written, ensemble: Path, tmp_path: Path, capsys: Output
) -> None:
    _, paths = prompts
    for given, sentence in [
        (paths[:2], "The ensemble has 3 prompts, 2 score files were given"),
        ([*paths[:2], made_table(eval_rows=20).save(tmp_path / "short.parquet")], "has other documents than"),
        ([*paths[:2], made_table(documents_hash="x").save(tmp_path / "others.parquet")], "has other documents than"),
        ([*paths[:2], made_table(labels=3).save(tmp_path / "three.parquet")], "has 3 labels, the calibrator was"),
    ]:
        assert main(["apply", str(ensemble), *map(str, given)]) == 1
        assert sentence in capsys.readouterr().err


def test_scores_of_another_prompt_are_noted(prompts: Written, ensemble: Path, tmp_path: Path, capsys: Output) -> None:
    _, paths = prompts
    other = made_table(prompt_hash="another", documents_hash="documents").save(tmp_path / "another.parquet")
    _, said = applied([str(ensemble), *map(str, paths[:2]), str(other)], capsys)
    assert f"note: {other} has scores of another prompt than the calibrator was fitted on" in said


@pytest.mark.parametrize("same_rows", [False, True])
def test_hidden_states_stand_side_by_side_too(same_rows: bool, tmp_path: Path, capsys: Output) -> None:
    """On the same unlabeled rows all prompts are fitted at once; else the ensemble is the mean of single fits."""
    tables = made_prompts(2, hidden=True, separation=0.3)
    if same_rows:
        tables = [replace(one, record=replace(one.record, unlabeled_hash="rows")) for one in tables]
    tables, paths = write(tables, tmp_path / "scores")
    saved, output = tmp_path / "proca_h.json", tmp_path / "out.json"
    given = ["calibrate", *map(str, paths), "--together", "--calibrators", "proca_h", "--save", str(saved)]
    assert main([*given, "--output", str(output)]) == 0
    rows, said = applied([str(saved), *map(str, reversed(paths))], capsys)
    predicted, gold = np.array([int(row["label"]) for row in rows]), tables[0].gold_of("eval")
    assert said == ""
    assert json.loads(output.read_text())[1]["accuracy_together"] == pytest.approx(np.mean(predicted == gold))
    if same_rows:
        both = PromptEnsemble(make_calibrators(["proca_h"])["proca_h"])
        scores, layers = (
            {role: how(role) for role in ("estimate", "eval")}
            for how in (
                lambda role: np.hstack([one.scores_of(role) for one in tables]),
                lambda role: np.concatenate([one.representations_of(role) for one in tables]),
            )
        )
        both.fit(scores["estimate"], representations=layers["estimate"])
        expected = both.predict(scores["eval"], representations=layers["eval"])
    else:
        expected = members(tables, "proca_h").mean(axis=0).argmax(axis=1)
    np.testing.assert_array_equal(predicted, expected)


def test_one_ensemble_is_saved_or_none(prompts: Written, tmp_path: Path, capsys: Output) -> None:
    given = ["calibrate", str(tmp_path / "scores"), "--together", "--save", str(tmp_path / "x.json")]
    assert main(given) == 1
    assert "--save keeps the ensemble of one calibrator, these would be 3" in capsys.readouterr().err
    assert not (tmp_path / "x.json").exists()
