"""The numbers of the documents: written from results files, which sweeps make; none is old without saying so."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata, ttest_1samp

import lm_eval_proca
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.scores.identity import PROCEDURE
from lm_eval_proca.scores.together import Prompts
from results.__main__ import main
from results.documents import documents, undated, written
from results.markdown import TASKS
from results.results_file import ResultsFile, Row, load, path_of
from results.sweeps import AnalysisRuns, Sweep
from results.tables import TABLES, methods, prompts, self_labelled, self_labelled_elsewhere, sizes, templates
from tests.conftest import ROOT

FILES = sorted(path_of("any").parent.glob("*.json"))


def made_rows(**columns: Sequence[Any]) -> list[Row]:
    """A row for each task and each of these values, with numbers between 0.4 and 0.9."""
    rng, rows = np.random.default_rng(0), [{}]
    for name, values in {"task": list(TASKS), **columns}.items():
        rows = [{**row, name: value} for row in rows for value in values]
    measured = ("one prompt", "sd", "worst", "together", "accuracy")
    counts = {"prompts": 10, "failures": 2, "failures named": 1, "false alarms": 3}
    return [{**counts, **{name: rng.uniform(0.4, 0.9) for name in measured}, **row} for row in rows]


def made_file(name: str, rows: list[Row], **changed: Any) -> ResultsFile:
    file = ResultsFile(
        name=name, commands=["a command"], version=lm_eval_proca.__version__, procedure=PROCEDURE, commit="abc1234",
        dirty=False, date="2026-11-18T12:00:00+00:00", runs=18, machine={}, versions={}, columns=list(rows[0]),
        figure=None, values=[list(row.values()) for row in rows],
    )  # fmt: skip
    return replace(file, **changed)


SELF_COLUMNS = [what for what, _ in self_labelled.SHOWN]
METHODS = ["labels_on_states", "proca_h", "somebodys", "bc", "proca", "conca", "none"]
ROWS = {
    "prompts": made_rows(method=["none", "bc", "proca", "proca_h"]),
    "methods": made_rows(shots=[0, 4], method=METHODS),
    "self-labelled": [
        {
            **{**row, **dict.fromkeys(SELF_COLUMNS, row["accuracy"]), "0 shots": row["sd"]},
            **{**dict.fromkeys(self_labelled.JUDGES, row["worst"]), "kappa": 0.3 + row["worst"] / 1000},
        }
        for row in made_rows(seed=[10, 11], method=["bc", "proca_h"])
    ],
    "sizes": made_rows(model=list(sizes.MODELS), millions=[135], method=list(sizes.METHODS)),
}  # fmt: skip


def cells_of(view: str) -> list[list[str]]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in view.splitlines()]
    assert {len(line) for line in lines} == {len(lines[0])}
    return [lines[0], *lines[2:]]


# ------------------------------------------------------------------ the documents of this repository


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_documents_say_what_the_results_files_say(document: Path) -> None:
    assert document.read_text(encoding="utf-8") == written(document, TABLES), "write it: python -m results --write"


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_number_is_old_without_saying_so(document: Path) -> None:
    assert list(undated(document)) == [], 'below it belongs a line such as "*Version 0.1.0 (commit abc1234, date).*"'


@pytest.mark.parametrize("file", FILES, ids=lambda path: path.stem)
def test_every_results_file_is_of_a_table_and_names_no_place_on_a_machine(file: Path) -> None:
    found, table = load(file.stem), TABLES[file.stem]
    assert found.name == file.stem
    assert not re.search(r"(?:^|[=\s])(?:/|~)\w", " ".join(found.commands))
    if table.figure and (ROOT / "docs" / "figures").exists():
        assert table.figure_is_of(found), "the figure was not drawn with these numbers"


# ------------------------------------------------------------------ documents and files that differ


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with one document, as it is written from a file."""
    made_file("prompts", ROWS["prompts"]).save(tmp_path)
    document = tmp_path / "README.md"
    document.write_text("before\n\n<!-- table: prompts averages -->\n<!-- end of table -->\n\nafter\n")
    document.write_text(written(document, TABLES, tmp_path))
    return tmp_path


def test_what_stands_between_markers_is_written_and_nothing_else(root: Path) -> None:
    document = root / "README.md"
    text = document.read_text()
    assert text.startswith("before\n\n<!-- table: prompts averages -->\n| |")
    assert text.endswith("|\n<!-- end of table -->\n\nafter\n")
    assert written(document, TABLES, root) == text
    example = "```\n<!-- table: an example -->\n```\n"
    document.write_text(example + text)
    assert written(document, TABLES, root) == example + text


@pytest.mark.parametrize("changed", ["README.md", "results/files/prompts.json"])
def test_a_changed_digit_is_noticed(root: Path, changed: str) -> None:
    document, file = root / "README.md", root / changed
    text = file.read_text()
    place = text.index("values") + 40 if file.suffix == ".json" else text.index(".", text.index("raw")) - 1
    place = re.compile(r"\d").search(text, place).start()  # type: ignore[union-attr]
    file.write_text(text[:place] + str((int(text[place]) + 3) % 10) + text[place + 1 :])
    assert written(document, TABLES, root) != document.read_text()


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("<!-- table: prompt averages -->\n<!-- end of table -->", "known are prompts averages"),
        ("<!-- table: prompts -->\n<!-- end of table -->", "known are prompts averages"),
        ("<!-- table: prompts best -->\n<!-- end of table -->", "known are prompts averages"),
        ("<!-- figure: methods -->\n<!-- end of figure -->", "known are prompts averages"),
        ("<!-- table: sizes averages -->\n<!-- end of table -->", "`python -m results sizes` makes it"),
        ("<!-- table: prompts averages -->\n<!-- end of figure -->", "a marker without its end"),
    ],
)
def test_a_marker_names_a_file_and_a_view(root: Path, marker: str, said: str) -> None:
    (root / "README.md").write_text(marker)
    with pytest.raises(ResultsError, match=re.escape(said)):
        written(root / "README.md", TABLES, root)


def test_a_document_that_cannot_be_written_keeps_none_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("results.__main__.ROOT", tmp_path)
    monkeypatch.setattr("results.__main__.documents", lambda: [tmp_path / "a.md", tmp_path / "b.md"])
    for name, view in (("a.md", "no-such-view"), ("b.md", "averages")):
        (tmp_path / name).write_text(f"<!-- table: prompts {view} -->\n<!-- end of table -->\n")
    assert main(["--write"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("a.md: not written. ")
    assert printed.out == "b.md: written\n"


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({}, ""),
        ({"version": "0.0.9"}, "\n\n*Made with version 0.0.9 (commit abc1234, 2026-11-18).*"),
        ({"version": "0.0.9", "commit": None}, "\n\n*Made with version 0.0.9 (2026-11-18).*"),
        ({"version": "0.9", "dirty": True}, "\n\n*Made with version 0.9 (commit abc1234 and changes, 2026-11-18).*"),
        ({"procedure": 1}, f"\n\n*Made with version {lm_eval_proca.__version__} (commit abc1234, 2026-11-18).*"),
    ],
)  # fmt: skip
def test_numbers_of_another_version_say_so(root: Path, changed: dict[str, Any], line: str) -> None:
    rows = ROWS["prompts"]
    made_file("prompts", rows, **changed).save(root)
    assert TABLES["prompts"].show("averages", root) == prompts.averages(load("prompts", root).rows) + line
    page = root / "docs" / "page.md"
    assert TABLES["prompts"].show_figure(page, root).endswith(f"](figures/prompts.png){line}")
    assert TABLES["prompts"].show_figure(root / "README.md", root).endswith(f"](docs/figures/prompts.png){line}")


def test_which_measurements_must_say_their_version(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    measured = "| a | b |\n|---|---|\n| 0.5 | 71.2 |\n| 3.25 | x |"
    for text, expected in {
        measured: ["| a | b |"],
        f"{measured}\n\n*Version 0.1.0 (commit abc1234, 2026-11-18).*": [],
        f"{measured}\n\nOther words.": ["| a | b |"],
        f"```\n{measured}\n```": [],
        f"<!-- table: x y -->\n{measured}\n<!-- end of table -->": [],
        "| torch 2.4.0 | 1.2.3 |\n|---|---|\n| 4.5.6 | 7.8 |": [],
        "| [a](b/2309.17249) | [a](b/2305.19148) |\n|---|---|\n| [a](b/2307.06713) | `0.5` 1.5 |": [],
        "![a figure](a.png)\n\nWords.": ["![a figure](a.png)"],
        "![a figure](a.png)\n\n*Made with version 0.1.0 (2026-11-18).*": [],
    }.items():
        document.write_text(text)
        assert list(undated(document)) == expected


# ------------------------------------------------------------------ views


def numbers(rows: list[Row], column: str, **of: Any) -> np.ndarray:
    return np.array([row[column] for row in rows if all(row[key] == one for key, one in of.items())])


def gain_by_hand(differences: np.ndarray) -> str:
    low, high = ttest_1samp(100 * differences, 0).confidence_interval()
    return f"{100 * differences.mean():+.1f} ({low:+.1f} to {high:+.1f})".replace("-", "\N{MINUS SIGN}")


def test_averages_and_gains_by_hand() -> None:
    rows = ROWS["prompts"]
    header, *lines = cells_of(prompts.averages(rows))
    assert header == ["", "one prompt (sd over prompts)", "five prompts together"]
    assert [line[0].strip("*") for line in lines] == ["raw", "`bc`", "`proca_h`"]
    together = [numbers(rows, "together", method=method).mean() for method in ("none", "bc", "proca_h")]
    assert [line[2].strip("*") for line in lines] == [f"{100 * one:.1f}" for one in together]
    assert [line[2].startswith("**") for line in lines] == [one == max(together) for one in together]
    one, sd = (100 * numbers(rows, column, method="bc").mean() for column in ("one prompt", "sd"))
    assert lines[1][1] == f"{one:.1f} ({sd:.1f})"
    gains = dict(cells_of(prompts.gains(rows))[1:])
    ours = numbers(rows, "together", method="proca_h")
    assert gains["`bc`, one prompt"] == gain_by_hand(ours - numbers(rows, "one prompt", method="bc"))
    assert gains["raw, five together"] == gain_by_hand(ours - numbers(rows, "together", method="none"))
    assert ["`proca_h`", "9 of 18", "27 of 72"] in cells_of(prompts.judged(rows))


def test_every_method_by_task() -> None:
    rows = [{**row, "sd": row["sd"] / 10, "n": 2} for row in ROWS["methods"]]
    header, *lines = cells_of(methods.tasks(rows))
    assert header == ["shots", "method", *TASKS.values(), "average"]
    names = ["raw", "contextual", "batch", "ProCa", "ProCa-h", "`somebodys`", "*labels on hidden states*"]
    plain = [line[1].strip("*") for line in lines]
    assert plain == [name.strip("*") for name in names] * 2
    for shots in (0, 4):
        block = [line for line in lines if line[0] == str(shots)]
        column = {name.strip("*"): line[2] for name, line in zip(names, block, strict=True)}
        without = {
            name: float(cell.strip("*").split("*")[0].split()[0])
            for name, cell in column.items()
            if "labels" not in name
        }
        assert [name for name, cell in column.items() if cell.startswith("**")] == [max(without, key=without.get)]  # type: ignore[arg-type]
    raw = numbers(rows, "accuracy", shots=4, method="none")
    assert float(lines[7][-1].strip("*")) == pytest.approx(100 * raw.mean(), abs=0.051)
    ours = numbers(rows, "accuracy", shots=0, method="proca_h")
    gains = {line[0]: line[1:] for line in cells_of(methods.gains(rows))[1:]}
    assert gains["batch"][0] == gain_by_hand(ours - numbers(rows, "accuracy", shots=0, method="bc"))
    beside = cells_of(methods.paper(rows))
    assert beside[1][4].strip("*") == f"{100 * raw.mean():.1f}"
    assert beside[-1] == ["Bloom, 176B", "53.4", "51.7", "**63.9**", "71.7", "75.9", "**78.5**"]


def test_a_method_that_lacks_a_task_has_no_average() -> None:
    rows = [row for row in ROWS["prompts"] if (row["task"], row["method"]) != ("rte", "bc")]
    by_name = {line[0].strip("*"): line for line in cells_of(prompts.tasks(rows))}
    assert by_name["`bc`, five together"][-1] == by_name["`bc`, five together"][8] == ""
    assert by_name["raw, five together"][-1] != ""


def test_self_labelled_is_the_mean_of_two_draws() -> None:
    rows = ROWS["self-labelled"]
    assert len(cells_of(self_labelled.tasks(rows))) == 1 + len(self_labelled.SHOWN)
    ours, zero = (
        np.mean([numbers(rows, column, seed=seed, method=method) for seed in (10, 11)], axis=0)
        for column, method in (("all five together", "proca_h"), ("0 shots", "bc"))
    )
    by_name = {line[0]: line[1:] for line in cells_of(self_labelled.gains(rows))[1:]}
    differences = 100 * (ours - zero)
    median = f"{np.median(differences):+.1f}".replace("-", "\N{MINUS SIGN}")
    clear = f"{(differences > 1).sum()}, {(differences < -1).sum()}"
    assert by_name["0 shots: `bc`"] == [gain_by_hand(ours - zero), median, clear]
    lines = cells_of(self_labelled.draws(rows))[1:]
    assert len(lines) == 2 * len(TASKS)
    assert {line[-1] for line in lines} == {"0.30"}
    assert {line[0]: float(line[4]) - float(line[2]) for line in lines} == pytest.approx(
        {line[0]: float(line[5].replace("\N{MINUS SIGN}", "-")) for line in lines}, abs=0.11
    )


def test_what_could_tell_without_labels_whether_demonstrations_helped() -> None:
    """Three documents, prompt 0 and two others, two labels; numbers by hand."""
    first, other = np.log([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), np.log([[0.6, 0.4], [0.1, 0.9], [0.4, 0.6]])
    shown = Prompts(np.stack([first, other, other]))
    assert self_labelled.answers_changed(shown) == pytest.approx(1 / 3)
    assert self_labelled.mutual_predictability(shown) == pytest.approx(
        np.mean(np.log([0.6 / 0.4, 0.1 / 0.9, 0.6 / 0.4]))
    )
    together = np.exp((first + 2 * other) / 3)
    together /= together.sum(axis=1, keepdims=True)
    sure = together.max(axis=1).mean() - np.mean([0.9, 0.8, 0.7])
    assert self_labelled.confidence_gained(shown) == pytest.approx(sure)
    rows = [row for row in ROWS["self-labelled"] if row["method"] == "proca_h"]
    gained = np.array([row["all five together"] - row["0 shots"] for row in rows])
    said = np.array([row["answers changed"] for row in rows])
    by_name = {line[0]: line[1:] for line in cells_of(self_labelled.judges(ROWS["self-labelled"]))[1:]}
    lost = said[gained < -0.01]
    expected = f"{np.corrcoef(rankdata(said), rankdata(gained))[0, 1]:.2f}", f"{lost.min():.2f} to {lost.max():.2f}"
    assert tuple(by_name["answers changed"][:2]) == expected


def test_self_labelled_elsewhere_has_a_line_for_each_task() -> None:
    rows = [{"what": "Another", **row} for row in ROWS["self-labelled"] if row["seed"] == 10]
    lines = cells_of(self_labelled_elsewhere.tasks(rows))[1:]
    [rte] = [line for line in lines if line[1] == "RTE"]
    [bc] = [row for row in rows if (row["task"], row["method"]) == ("rte", "bc")]
    assert len(lines) == len(TASKS)
    assert [rte[0], rte[2], rte[-1]] == ["Another", f"{100 * bc['0 shots']:.1f}", "0.30"]


def test_models_of_several_sizes(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    rows = [{**row, "millions": sizes.MODELS[row["model"]][1]} for row in ROWS["sizes"]]
    header, *lines = cells_of(sizes.averages(rows))
    assert [line[0] for line in lines] == [model for model in sizes.MODELS for _ in range(2)]
    best = [max(float(cell.strip("*")) for cell in line[2:]) for line in lines]
    assert [float(cell.strip("*")) for line in lines for cell in line if cell.startswith("**")] == best
    gains = cells_of(sizes.gains(rows))
    raw, bc = (numbers(rows, "together", model="Gemma 3 270M", method=method) for method in ("none", "bc"))
    assert gains[4][:2] == ["Gemma 3 270M", "three together"]
    assert gains[4][header.index("`bc`") - 1] == gain_by_hand(bc - raw)
    assert sizes.Figure(rows).save(tmp_path / "sizes.png").stat().st_size > 10_000


def test_a_model_that_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SMOLLM2", "GEMMA", "QWEN_SMALL", "QWEN_LARGE"):
        monkeypatch.delenv(name, raising=False)
    assert TABLES["sizes"].not_given() == ["GEMMA", "QWEN_SMALL", "QWEN_LARGE"]
    assert TABLES["prompts"].not_given() == []  # SmolLM2 is found by itself


# ------------------------------------------------------------------ sweeps

SETTINGS = "--tasks proca_sst2 --seeds 0 1 --limit 20 --metadata proca.prompts=3 proca.estimate_size=40"
WITH_SHOTS = f"lm-eval-proca sweep --model_args $TINY --num_fewshot 2 {SETTINGS} --output_path .results/shots"
ANALYSIS = (
    "lm-eval-proca analyze templates --model_args $TINY --tasks proca_sst2_template1 proca_sst2_template2 "
    "--num_fewshot 2 --seeds 0 --limit 20 --metadata proca.estimate_size=40 --output .results/templates"
)
SELF = WITH_SHOTS.replace("sweep", "sweep --demonstrations self").replace("shots", "self")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_llama: Path, data_dir: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TINY", f"pretrained={tiny_llama}")
    monkeypatch.setenv("PROCA_DATA_DIR", str(data_dir))
    return tmp_path


def told_by(folder: Path, shots: str, task: str = "proca_sst2") -> dict[int, dict[str, float]]:
    """By seed, what the runs have written themselves."""
    found = [json.loads(file.read_text()) for file in folder.glob(f"*/{task}-{shots}-*/results_*.json")]
    seed_of = {id(one): one["configs"][task]["metadata"]["proca"]["seed"] for one in found}
    return {seed_of[id(one)]: one["results"][task] for one in found}


@pytest.mark.slow
@pytest.mark.usefixtures("only_our_tasks")
def test_tables_are_made_of_sweeps_and_finished_cells_are_taken(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    shots, self_made = Sweep(WITH_SHOTS, "Tiny"), Sweep(SELF, "Tiny")
    made = {}
    for table in (
        replace(prompts.TABLE, sources=[shots]),
        replace(methods.TABLE, sources=[shots, self_made]),
        replace(self_labelled.TABLE, sources=[self_made, shots]),
        replace(templates.TABLE, sources=[AnalysisRuns(ANALYSIS, "Tiny")]),
    ):
        made[table.name] = table.make(tiny)
        assert all(view(load(table.name, tiny).rows) for view in table.views.values())
    assert prompts.TABLE.figure_is_of(made["prompts"], tiny)
    with (tiny / "docs" / "figures" / "prompts.png").open("ab") as figure:
        figure.write(b"another")
    assert not prompts.TABLE.figure_is_of(made["prompts"], tiny)
    assert made["prompts"].runs == 2
    assert made["methods"].runs == 2 + 4
    assert {row["shots"] for row in made["methods"].rows} == {0, 2}
    assert str(tiny) not in path_of("prompts", tiny).read_text()
    assert made["templates"].runs == 2
    for row in made["templates"].rows:
        [said] = told_by(
            tiny / ".results" / "templates" / "runs", "2shot", f"proca_sst2_{row['task'].replace(' ', '')}"
        ).values()
        assert row["accuracy"] == pytest.approx(said[f"acc,{row['method']}"])
    for row in load("self-labelled", tiny).rows:  # as the runs themselves say
        said = told_by(tiny / ".results" / "self", "2shot")[row["seed"]]
        assert row["0 shots"] == pytest.approx(said[f"acc,{row['method']}"])
        assert row["all five together"] == pytest.approx(said[f"acc_together,{row['method']}"])
    both = [said["acc_together,bc"] for said in told_by(tiny / ".results" / "shots", "2shot").values()]
    [row] = [row for row in load("prompts", tiny).rows if row["method"] == "bc"]
    assert row["together"] == pytest.approx(np.mean(both))

    def fail(*_: Any) -> None:
        raise AssertionError("a finished sweep loads no model")

    monkeypatch.setattr("lm_eval_proca.sweep.cell.Model.load", fail)
    assert replace(prompts.TABLE, sources=[Sweep(WITH_SHOTS, "Tiny")]).make(tiny).values == made["prompts"].values
    analysis = replace(templates.TABLE, sources=[AnalysisRuns(ANALYSIS, "Tiny")])
    assert analysis.make(tiny).values == made["templates"].values
    cells = sorted(tiny.glob(".results/shots/*/*/identity.json"))
    for file in cells:  # as an earlier version would have made them
        identity = json.loads(file.read_text())
        file.write_text(json.dumps({**identity, "versions": {**identity["versions"], "procedure": "1"}}))
        file.parent.rename(file.parent.with_name(file.parent.name[:-12] + "0" * 12))
    older = replace(prompts.TABLE, sources=[Sweep(WITH_SHOTS, "Tiny")]).make(tiny, from_existing=True)
    assert (older.procedure, older.values) == (1, made["prompts"].values)
    with pytest.raises(ResultsError, match="is not finished in"):
        Sweep(WITH_SHOTS.replace("--seeds 0 1", "--seeds 0 7"), "Tiny").tables()


@pytest.mark.parametrize(("status", "error"), [(1, ResultsError), (130, KeyboardInterrupt)])
def test_a_sweep_that_does_not_finish(tiny: Path, monkeypatch: pytest.MonkeyPatch, status: int, error: type) -> None:
    """No table is made of a part of it; after Ctrl-C, the sweeps of other tables do not begin."""
    monkeypatch.setattr("lm_eval_proca.cli.main", lambda argv: status)
    with pytest.raises(error):
        replace(prompts.TABLE, sources=[Sweep(WITH_SHOTS, "Tiny")]).make(tiny)
    assert not path_of("prompts", tiny).exists()
