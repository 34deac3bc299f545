"""Every format says the same numbers, and names from result files stay names."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from lm_eval_proca.cli import compare as command
from lm_eval_proca.cli.compare import FORMATS, SOMETHING_SKIPPED
from lm_eval_proca.compare.comparison import compare
from lm_eval_proca.compare.formats import latex, markdown, spreadsheet, structured, terminal
from lm_eval_proca.compare.tables import MISSING, NOT_AVERAGED


@pytest.fixture
def folder(write_result):
    for seed, (raw, proca) in enumerate([(0.50, 0.80), (0.52, 0.84)]):
        write_result(seed=seed, accuracy={"none": raw, "proca": proca})
    return write_result(seed=0, task="proca_mr", accuracy={"none": 0.61, "proca": 0.6}).parent


def run(*arguments: object) -> int:
    import argparse

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


def test_markdown_table(folder):
    lines = markdown.render(compare([folder])).splitlines()
    assert "| Shots | Method | sst2 | mr | Average |" in lines
    assert "| 4 | raw | 51.0 ±1.4 | **61.0** † | 56.0 † |" in lines
    assert "| 4 | proca | **82.0** ±2.8 | 60.0 † | **71.0** † |" in lines
    assert sum("†: fewer seeds" in line for line in lines) == 2, "below the leaderboard and below the model's table"


def test_unequal_seeds_of_models_are_marked(write_result):
    for model, seed, proca in (("a", 0, 0.8), ("b", 0, 0.65), ("b", 1, 1.0)):
        folder = write_result(model=model, seed=seed, accuracy={"none": 0.5, "proca": proca}).parent
    text = markdown.render(compare([folder]))
    assert "| 4 | proca | **80.0** † | **80.0** † |" in text
    assert "| 4 | proca | **82.5** ±24.7 | **82.5** |" in text
    assert f"| 1 | a | proca | 80.0 † | +30.0 | 1{MISSING}0 (no test) | 1 | 1{MISSING}0 (no test) |" in text
    assert f"| 2 | b | proca | 65.0 † | +32.5 | 1{MISSING}0 (no test) | 2 | 0{MISSING}1 (no test) |" in text
    assert "models have different seeds (a: 0; b: 0, 1)" in text


def test_latex_table(folder):
    text = latex.render(compare([folder]))
    assert r"4 & proca & \textbf{82.0}$_{2.8}$ & 60.0$^{\dagger}$ & \textbf{71.0}$^{\dagger}$ \\" in text
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2


def test_average_over_some_tasks_says_so(write_result):
    for shots, task, model in ((0, "mr", "a"), (4, "mr", "a"), (4, "sst2", "a"), (4, "mr", "b")):
        accuracy = {"none": 0.5, "proca": 0.7}
        folder = write_result(model=model, task=f"proca_{task}", shots=shots, accuracy=accuracy).parent
    report = compare([folder])
    text = markdown.render(report)
    assert f"| 0 | proca | {MISSING} | **70.0** | **70.0** (1 of 2) |" in text
    assert "| 4 | proca | **70.0** | **70.0** | **70.0** |" in text
    assert f"| 4 | proca | {MISSING} | **70.0** | {MISSING} (1 of 2) |" in text
    assert text.count("(1 of 2): the row has 1 of the 2 tasks compared here.") == 2
    assert NOT_AVERAGED not in text
    assert r"\textbf{70.0}~(1 of 2) \\" in latex.render(report)


def test_number_outside_the_average_is_marked(write_result):
    for model, limit, proca in (("a", None, 0.7), ("b", None, 0.7), ("b", 50, 0.9)):
        which = {"limit": limit, "documents_hash": "of fifty"} if limit else {}
        folder = write_result(model=model, accuracy={"none": 0.5, "proca": proca}, **which).parent
    text = markdown.render(compare([folder]))
    assert f"| 4 | proca | **90.0** {NOT_AVERAGED} | **70.0** | **70.0** |" in text
    assert text.count(f"{NOT_AVERAGED}: not in the average.") == 1


def test_terminal_marks_the_best_without_colour_too(folder):
    plain = terminal.render(compare([folder]))
    assert "*82.0 ±2.8" in plain
    assert "\x1b" not in plain
    assert "\x1b[1m82.0" in terminal.render(compare([folder]), width=120, color=True)


def test_terminal_fits_its_width(folder):
    lines = terminal.render(compare([folder]), width=60).splitlines()
    assert max(map(len, lines)) <= 60


def test_csv_for_spreadsheets(folder):
    rows = list(csv.DictReader(io.StringIO(spreadsheet.render(compare([folder])))))
    cell = next(row for row in rows if (row["method"], row["dataset"]) == ("proca", "sst2"))
    assert float(cell["accuracy"]) == pytest.approx(0.82)
    assert float(cell["gain"]) == pytest.approx(0.31)
    assert (cell["seeds"], cell["best"], cell["p_value"]) == ("2", "1", "")
    average = next(row for row in rows if (row["method"], row["dataset"]) == ("proca", "average"))
    assert (float(average["accuracy"]), average["rank"]) == (pytest.approx(0.71), "1")


def test_json_holds_every_seed(folder):
    accuracies = json.loads(structured.render(compare([folder])))["accuracies"]
    one = next(one for one in accuracies if (one["method"], one["dataset"]) == ("proca", "sst2"))
    assert one["by_seed"] == {"0": 0.80, "1": 0.84}


@pytest.mark.parametrize(
    ("render", "model", "never"),
    [
        (markdown.render, "<img src=x>|[a](b)`*c*", r"<img|(?<!\\)\[a\]|[^\\]`"),
        (latex.render, r"a_b\input{x}%&$#", r"[^\\]\\input|b_|[^\\]_b"),
        (spreadsheet.render, "=HYPERLINK(1)", r"(^|,|\n|\")="),
        (spreadsheet.render, "@SUM(1)", r"(^|,|\n|\")@"),
    ],
)
def test_names_stay_names(write_result, render, model, never):
    folder = write_result(model=model, accuracy={"none": 0.5, "proca": 0.6}).parent
    text = render(compare([folder]))
    assert not re.search(never, text)


@pytest.mark.parametrize("name", FORMATS)
def test_command_writes_each_format(folder, tmp_path, capsys, name):
    assert run(folder, "--format", name) == 0
    printed = capsys.readouterr().out
    assert "sst2" in printed
    assert run(folder, "--format", name, "--output", tmp_path / "new" / "table") == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "new" / "table").read_text(encoding="utf-8") == printed


def test_command_names_damage_and_its_exit_status_says_so(folder, capsys):
    damaged = folder / "results_2026-02-01T00-00-00.json"
    damaged.write_text("{")
    assert run(folder, "--format", "csv") == SOMETHING_SKIPPED
    output = capsys.readouterr()
    assert str(damaged) in output.err
    assert "org/model" in output.out


@pytest.mark.parametrize("is_terminal", [True, False])
def test_damage_is_said_once(folder, capsys, monkeypatch, is_terminal):
    damaged = folder / "results_2026-02-01T00-00-00.json"
    damaged.write_text("{")
    monkeypatch.setattr("sys.stdout.isatty", lambda: is_terminal)
    assert run(folder, "--format", "markdown") == SOMETHING_SKIPPED
    output = capsys.readouterr()
    assert (output.out + output.err).count(str(damaged)) == 1
    assert ("damaged" in output.err) is not is_terminal, "a failure needs a word where standard output is not seen"


@pytest.mark.parametrize(
    ("name", "expected"),
    [("o.md", markdown), ("o.csv", spreadsheet), ("o.TEX", latex), ("o.json", structured), ("o.txt", terminal)],
)
def test_suffix_of_the_output_is_its_format(folder, tmp_path, capsys, name, expected):
    assert run(folder, "--output", tmp_path / name) == 0
    assert (tmp_path / name).read_text(encoding="utf-8") == expected.render(compare([folder]))
    assert f"tables written to {tmp_path / name}\n" in capsys.readouterr().err


def test_a_format_that_is_given_wins_over_the_suffix(folder, tmp_path):
    assert run(folder, "--format", "latex", "--output", tmp_path / "o.csv") == 0
    assert "tabular" in (tmp_path / "o.csv").read_text(encoding="utf-8")


def test_command_says_what_csv_cannot_hold(folder, capsys):
    run(folder, "--format", "csv")
    assert "not logged" in capsys.readouterr().err


def test_command_takes_several_folders_and_chosen_tasks(folder, write_result, tmp_path, capsys):
    other = write_result(model="org/other", accuracy={"none": 0.4, "proca": 0.5}, folder=tmp_path / "more").parent
    assert run(folder, other, "--tasks", "proca_sst2,proca_rte", "--format", "markdown") == 0
    text = capsys.readouterr().out
    assert "org/other" in text
    assert "| mr" not in text
