"""The tables of the paper's analyses and of runs that exist already: what is measured and shown, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lm_eval_proca.errors import ResultsError
from lm_eval_proca.paper.boundaries import positive_log_odds
from lm_eval_proca.scores.score_table import ScoreTable
from results import published
from results.published import PublishedRuns
from results.results_file import Row, load
from results.sweeps import call
from results.table import Table
from results.tables import (
    TABLES,
    boundaries,
    existing_runs,
    formats,
    imbalance,
    proportions,
    selection,
    size,
    templates,
    thresholds,
)
from tests.conftest import ROOT
from tests.score_tables import made_table
from tests.test_results import cells_of, numbers


def rows_with(**columns: Sequence[Any]) -> list[Row]:
    """A row for each combination of these values, with an accuracy and a spread of its own."""
    rng, rows = np.random.default_rng(0), [{}]
    for name, values in columns.items():
        rows = [{**row, name: value} for row in rows for value in values]
    return [{**row, "accuracy": rng.uniform(0.4, 0.9), "sd": rng.uniform(0.01, 0.1), "n": 3} for row in rows]


def shown(rows: list[Row], **of: Any) -> str:
    [accuracy], [sd] = (numbers(rows, column, **of) for column in ("accuracy", "sd"))
    return f"{100 * accuracy:.1f} ±{100 * sd:.1f}"


@dataclass
class Given:
    """Runs that have been made already."""

    made: list[ScoreTable]

    def tables(self) -> list[ScoreTable]:
        return self.made


# ------------------------------------------------------------------ SST-2: boundaries and thresholds


@pytest.fixture(scope="module")
def five_prompts() -> Given:
    return Given([made_table(seed=seed, bias=3.0 - seed, separation=1.5, hidden=True) for seed in range(3)])


def test_boundaries_and_accuracies_of_every_prompt(five_prompts: Given, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    rows, figure = boundaries.TABLE.measure([five_prompts])
    header, *lines = cells_of(boundaries.prompts(rows))
    methods = ["raw", "contextual", "batch", "ProCa", "ProCa-h"]  # ProCa-a is batch calibration for two labels
    assert header == ["seed", *(f"boundary: {one}" for one in methods[1:4]), *(f"accuracy: {one}" for one in methods)]
    for line, table in zip(lines, five_prompts.made, strict=True):
        positive = positive_log_odds(table) > 0
        [above] = [row["boundaries"] for row in rows if (row["seed"], row["method"]) == (table.record.seed, "bc")]
        assert line[2] == " and ".join(f"{one:.2f}" for one in above)
        assert line[4] == f"{100 * np.mean(positive == table.gold_of('eval')):.1f}"
    [sst2] = cells_of(boundaries.sst2(rows))[1:]
    raw = 100 * numbers(rows, "accuracy", method="none")
    assert sst2[0] == f"{raw.mean():.1f} ±{raw.std(ddof=1):.1f}"
    assert figure.save(tmp_path / "boundaries.png").stat().st_size > 10_000


def test_no_boundary_is_said_in_words() -> None:
    assert [boundaries.in_words(one) for one in ([0.25, 0.5], [0.126], [])] == ["0.25 and 0.50", "0.13", "none"]


def test_thresholds_have_a_line_for_each_prompt(five_prompts: Given, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    rows, figure = thresholds.TABLE.measure([five_prompts])
    assert [row["seed"] for row in rows] == [0, 1, 2]
    *lines, means = cells_of(thresholds.prompts(rows))[1:]
    for line, row in zip(lines, rows, strict=True):
        assert float(line[1]) <= float(line[3]) >= float(line[2])
        left = f"{100 * (row['proca_accuracy'] - row['best_accuracy']):+.1f}".replace("-", "\N{MINUS SIGN}")
        assert line[4] == left
    assert means[2] == f"{100 * np.mean([row['proca_accuracy'] for row in rows]):.1f}"
    assert figure.save(tmp_path / "thresholds.png").stat().st_size > 10_000


def test_a_run_that_an_analysis_cannot_use_is_named(five_prompts: Given) -> None:
    with pytest.raises(ResultsError, match=r"proca_trec \(6 labels, not two\)"):
        boundaries.TABLE.measure([Given([*five_prompts.made, made_table("proca_trec", labels=6)])])


# ------------------------------------------------------------------ means of observations


@pytest.mark.parametrize("name", ["templates", "imbalance", "proportions", "selection", "formats", "size"])
def test_what_is_measured_is_what_views_and_figures_show(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    made = {
        "templates": [made_table(f"proca_sst2_template{k}") for k in (1, 2)],
        "imbalance": [made_table(estimate_rows=60)],
        "proportions": [
            made_table(shots=8, seed=order, demonstration_counts=(8 - count, count), order_seed=order)
            for count in proportions.SHOWN
            for order in (0, 1)
        ],
        "selection": [made_table("proca_agnews", labels=4, shots=shots) for shots in (0, 4)],
        "formats": [made_table(shots=shots, seed=seed) for shots in (0, 4) for seed in (0, 1)],
        "size": [made_table(estimate_rows=60), made_table("proca_trec", labels=6, estimate_rows=60)],
    }
    rows, figure = TABLES[name].measure([Given(made[name])])
    for view in TABLES[name].views.values():
        assert all(any(line[1:]) for line in cells_of(view(rows))[1:])
    assert figure.save(tmp_path / f"{name}.png").stat().st_size > 10_000


def test_templates_and_their_spread() -> None:
    rows = rows_with(task=["template 1", "template 2"], method=["none", "proca"])
    found = 100 * numbers(rows, "accuracy", method="proca")
    assert cells_of(templates.accuracies(rows))[0] == ["", "1", "2", "mean ± sd"]
    line = cells_of(templates.accuracies(rows))[2]
    assert line == ["ProCa", *(f"{one:.1f}" for one in found), f"{found.mean():.1f} ±{found.std(ddof=1):.1f}"]


def test_levels_proportions_and_sizes() -> None:
    rows = rows_with(task=["sst2", "subj"], positives=[k / 10 for k in range(1, 10)], method=["none", "bc"])
    header, *lines = cells_of(imbalance.levels(rows))
    assert header[2:] == ["10%", "30%", "50%", "70%", "90%"]
    assert lines[3] == [
        *("Subj", "batch"),
        *(shown(rows, task="subj", method="bc", positives=level) for level in imbalance.SHOWN),
    ]
    rows = rows_with(positives=[*range(9), "all"], method=["none", "proca"])
    header, *lines = cells_of(proportions.proportions(rows))
    assert header == ["negative:positive", "8:0", "6:2", "4:4", "2:6", "0:8", "all 3 prompts"]
    assert lines[1][1] == shown(rows, method="proca", positives=0)
    assert lines[1][-1] == shown(rows, method="proca", positives="all")
    rows = rows_with(task=["sst2"], estimate_size=[400, *range(10, 100, 10)], method=["none", "bc"])
    lines = cells_of(size.sizes(rows))[1:]
    assert [line[:2] for line in lines] == [["SST-2", str(rows_)] for rows_ in (10, 40, 70, 400)]
    assert lines[3][3] == shown(rows, estimate_size=400, method="bc")


def test_over_all_orders_every_prompt_counts_once() -> None:
    observed = [
        {"positives": count, "calibrator": "bc", "accuracy": accuracy}
        for count, accuracy in ((0, 0.5), (0, 0.7), (1, 0.9))
    ]
    by_proportion = {row["positives"]: (row["accuracy"], row["n"]) for row in proportions.rows_of(observed)}
    assert by_proportion == {0: (0.6, 2), 1: (0.9, 1), "all": (0.7, 3)}


def test_restarts_and_formats_by_task_and_shots() -> None:
    rows = rows_with(task=["agnews", "dbpedia"], shots=[0, 4], selection=["likelihood", "assignment"])
    header, *lines = cells_of(selection.accuracies(rows))
    assert header[1:] == ["AGNews, 0 shots", "AGNews, 4 shots", "DBPedia, 0 shots", "DBPedia, 4 shots"]
    assert lines[1][2] == shown(rows, task="agnews", shots=4, selection="assignment")
    assert lines[3][1:] == ["64.6 ±1.4", "67.4 ±13.5", "73.6 ±3.0", "87.2 ±4.9"]
    rows = rows_with(task=["sst2", "ap"], shots=[0, 4], features=list(formats.NAMES))
    assert cells_of(formats.accuracies(rows))[2][4] == shown(rows, task="ap", shots=4, features="prob")


# ------------------------------------------------------------------ runs that exist already

MODELS = ["small-7b", "middle-13b", "large-65b"]
PARTS = [*existing_runs.DATASETS, "mmlu_professional_law", *existing_runs.SUBJECTS]
MEASURED = [
    {**row, "recall_sd": row["sd"], "relabelled": row["accuracy"] + 0.1, "tasks": 10, "better": 6, "worse": 3}
    for row in rows_with(model=MODELS, shots=[0, 5], part=PARTS, method=["none", "bc", "proca"])
]


def test_models_and_their_means() -> None:
    header, *lines, means = cells_of(existing_runs.models(MEASURED, "mmlu", 5))
    assert header == [
        "MMLU, 5 shots",
        *(f"{one} {name}" for one in ("acc", "sd") for name in ("raw", "`bc`", "`proca`")),
    ]
    assert [line[0] for line in lines] == MODELS
    recalls = 100 * numbers(MEASURED, "recall_sd", part="mmlu", shots=5, method="bc")
    assert [line[5] for line in lines] == [f"{one:.1f}" for one in recalls]
    assert means[5] == f"{recalls.mean():.1f}"


def test_gains_over_raw_by_dataset_and_size() -> None:
    lines = {line[0]: line[1:] for line in cells_of(existing_runs.gains(MEASURED))[1:]}
    bc, raw = (
        np.array([numbers(MEASURED, "accuracy", part=part, shots=0, method=method) for part in existing_runs.DATASETS])
        for method in ("bc", "none")
    )
    of_arc, of_large = (100 * (bc - raw)[1], 100 * (bc - raw)[:, 2])
    for words, models, gains in (
        ("ARC-Challenge, 0 shots", 3, of_arc),
        ("all, 0 shots, 65 billion parameters", 1, of_large),
    ):
        gain = f"{gains.mean():+.1f}".replace("-", "\N{MINUS SIGN}")
        assert lines[words][:2] == [str(models), f"{gain} ({(gains > 0).sum()} of {len(gains)})"]


def test_bias_subjects_and_relabelling() -> None:
    rows = [dict(row) for row in MEASURED]
    for row, raw in ((row, raw) for row in rows for raw in rows if row["method"] == "bc" and raw["method"] == "none"):
        if all(row[key] == raw[key] for key in ("model", "shots", "part")):
            row["accuracy"] = raw["accuracy"] + raw["recall_sd"]  # it gains what the spread of recalls is
    assert existing_runs.bias(rows).endswith("over 18 cases: 1.00.")
    first = cells_of(existing_runs.subjects(MEASURED))[1]
    bc, raw = (numbers(MEASURED, "accuracy", part="100 to 120", method=method) for method in ("bc", "none"))
    gain = f"{100 * (bc - raw).mean():+.1f}".replace("-", "\N{MINUS SIGN}")
    assert first == ["100 to 120 documents", "60", gain, "60%", "30%"]
    now, best = (float(cell) for cell in cells_of(existing_runs.relabelled(MEASURED))[2][2:])
    assert best - now == pytest.approx(10, abs=0.051)


DOCUMENTS = {("mmlu", "astronomy"): 110, ("mmlu", "virology"): 130, ("arc", ""): 60, ("csqa", ""): 60}


@pytest.fixture
def probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two models on four tasks; one answers A too often, the other mixes up A and B."""
    pandas = pytest.importorskip("pandas")
    monkeypatch.setenv("PROCA_MCQ", str(tmp_path / "mcq"))
    (tmp_path / "mcq").mkdir()
    rng = np.random.default_rng(0)
    for model in ("biased-7b", "mixed-65b"):
        rows = []
        for (dataset, subject), n in DOCUMENTS.items():
            for index, gold in enumerate(rng.integers(4, size=n).tolist()):
                scores = rng.normal(size=4) + 2 * np.eye(4)[[1, 0, 2, 3][gold] if model == "mixed-65b" else gold]
                scores[0] += 1.5 * (model == "biased-7b")
                chances = np.exp(scores) * (scores > (scores.min() if index % 50 == 0 else -np.inf))  # a few are 0
                rows += [(dataset, shots, subject, index, gold, chances / chances.sum()) for shots in (0, 5)]
        columns = ["dataset", "shots", "subject", "index", "gold", "probabilities"]
        frame = pandas.DataFrame(rows, columns=columns).astype({"dataset": "category", "subject": "category"})
        frame.sample(frac=1, random_state=0).to_parquet(tmp_path / "mcq" / f"{model}.parquet")
    return tmp_path


def test_published_probabilities_become_runs_that_are_calibrated_once(
    probabilities: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    called = []

    def calibrate(words: list[str]) -> None:
        called.append(words)
        call([*words, "--calibrators", "bc"])  # ProCa would take a minute

    monkeypatch.setattr(published, "call", calibrate)
    source = PublishedRuns(probabilities / "results")
    table: Table[Any] = replace(existing_runs.TABLE, sources=[source])
    with pytest.raises(ResultsError):
        table.make(probabilities, from_existing=True)
    for _ in range(2):
        made = table.make(probabilities)
    assert len(called) == 1
    assert made.runs == 4
    found = {
        (row["model"], row["part"], row["method"]): row
        for row in load("existing-runs", probabilities).rows
        if row["shots"] == 5
    }
    biased, calibrated = (found["biased-7b", "mmlu", method] for method in ("none", "bc"))
    assert calibrated["accuracy"] > biased["accuracy"]
    assert calibrated["recall_sd"] < biased["recall_sd"]
    mixed = found["mixed-65b", "arc", "none"]
    assert mixed["relabelled"] > mixed["accuracy"] + 0.2
    small, large, both = (found["mixed-65b", part, "none"]["accuracy"] for part in ("100 to 120", "121 to 250", "mmlu"))
    assert both == pytest.approx((110 * small + 130 * large) / 240, abs=1e-5)


def test_data_that_are_not_there_leave_the_table_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROCA_MCQ", raising=False)
    assert TABLES["existing-runs"].not_given() == ["PROCA_MCQ"]
    assert "PROCA_MCQ" in (ROOT / "Makefile").read_text(encoding="utf-8")
