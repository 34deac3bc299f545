"""Runs with several prompts: their mean, spread and worst, the ensemble as a method, tests, formats and the page."""

from __future__ import annotations

import csv
import io
import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest

from lm_eval_proca.compare.comparison import Report, compare
from lm_eval_proca.compare.formats import latex, markdown, spreadsheet, structured
from lm_eval_proca.compare.tables import prompt_order_table
from lm_eval_proca.crossed import crossed_test
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.runs.sample_logs import read_correct
from tests.compare.test_comparison import accuracy_of, notices, standing_of

DOCUMENTS = 40


def answers(*right: int) -> list[list[int]]:
    """One prompt for each number of right answers, which are the first documents."""
    return [[1] * count + [0] * (DOCUMENTS - count) for count in right]


@pytest.fixture
def folder(write_result) -> Path:
    """A: better on average, and worse under prompt 2. Accuracies are multiples of 2.5 %."""
    raw = answers(20, 16, 24)
    for model, proca, together in (("a", answers(36, 34, 20), 38), ("b", answers(30, 26, 22), 28)):
        file = write_result(
            model=model,
            prompts={"none": raw, "proca": proca},
            together={"none": answers(24)[0], "proca": answers(together)[0]},
        )
    return file.parent


def test_mean_spread_and_worst_prompt(folder):
    found = accuracy_of(compare([folder]), "sst2", "proca", model="a")
    assert list(found.values.values()) == pytest.approx([0.9, 0.85, 0.5])
    assert found.mean == pytest.approx(0.75)
    assert found.sd == pytest.approx(statistics.stdev([0.9, 0.85, 0.5]))
    assert found.worst == pytest.approx(0.5)
    assert not found.fewer_seeds


def test_all_prompts_together_are_a_method(folder):
    report = compare([folder])
    assert report.methods == ["raw", "raw x3", "proca", "proca x3"]
    assert accuracy_of(report, "sst2", "proca x3", model="a").mean == pytest.approx(0.95)
    standing = standing_of(report, "a", "proca x3")
    assert (standing.rank, standing.average.mean) == (1, pytest.approx(0.95))
    # Raw is 0.5, 0.4 and 0.6 under the prompts.
    assert standing.gain == pytest.approx(0.45)
    assert standing_of(report, "a", "proca").gain == pytest.approx(0.25)
    assert standing_of(report, "a", "raw x3").gain == pytest.approx(0.10)
    [against_b] = standing.against_models["b"]
    assert against_b.difference == pytest.approx(0.25)


def test_seeds_and_prompts_are_prompts(write_result):
    for seed, right in enumerate([(30, 20), (34, 24)]):
        file = write_result(
            seed=seed,
            prompts={"none": answers(20, 20), "proca": answers(*right)},
            together={"none": answers(20)[0], "proca": answers(36 + 2 * seed)[0]},
        )
    report = compare([file.parent])
    found = accuracy_of(report, "sst2", "proca")
    assert found.sd == pytest.approx(statistics.stdev([0.75, 0.5, 0.85, 0.6]))
    assert {str(prompt) for prompt in found.values} == {"0", "0/1", "1", "1/1"}
    together = accuracy_of(report, "sst2", "proca x2")
    assert (together.mean, together.sd) == (pytest.approx(0.925), pytest.approx(statistics.stdev([0.9, 0.95])))
    # Each ensemble against the two prompts that it is made of.
    [against_raw] = standing_of(report, "org/model", "proca x2").against_raw
    assert (against_raw.prompts, against_raw.difference) == (4, pytest.approx(0.425))


@pytest.fixture
def random_answers(write_result) -> tuple[Path, dict[str, dict[str, np.ndarray]]]:
    rng = np.random.default_rng(3)
    found: dict[str, dict[str, np.ndarray]] = {}
    for model, skill in (("a", 0.8), ("b", 0.6)):
        found[model] = {name: (rng.random((5, 60)) < skill).astype(int) for name in ("none", "proca")}
        together = {name: (rng.random(60) < 0.9).astype(int) for name in ("none", "proca")}
        file = write_result(
            model=model,
            prompts={name: right.tolist() for name, right in found[model].items()},
            together={name: right.tolist() for name, right in together.items()},
        )
        found[model] |= {f"{name} together": right for name, right in together.items()}
    return file.parent, found


def test_models_are_tested_over_prompts_and_documents(random_answers):
    folder, right = random_answers
    report = compare([folder])
    for model, other in (("a", "b"), ("b", "a")):
        [found] = standing_of(report, model, "proca").against_models[other]
        assert found.test == pytest.approx(crossed_test(right[model]["proca"], right[other]["proca"]))
        assert (found.test.prompts, found.test.documents) == (5, 60)
    [found] = standing_of(report, "a", "proca").against_raw
    assert found.test == pytest.approx(crossed_test(right["a"]["proca"], right["a"]["none"]))


def test_an_ensemble_is_tested_against_each_prompt_of_raw_and_another_ensemble_over_documents(random_answers):
    folder, right = random_answers
    report = compare([folder])
    together, raw = right["a"]["proca together"], right["a"]["none"]
    [found] = standing_of(report, "a", "proca x5").against_raw
    assert found.test == pytest.approx(crossed_test(np.tile(together, (5, 1)), raw))
    other = right["b"]["proca together"]
    [found] = standing_of(report, "a", "proca x5").against_models["b"]
    better, worse = int((together > other).sum()), int((together < other).sum())
    assert found.test.p_value == pytest.approx(binomtest(better, better + worse).pvalue)
    assert found.order_changes is None, "one answer of each"


def test_how_often_the_order_of_two_models_changes_with_the_prompt(folder):
    report = compare([folder])
    # Differences of 0.15, 0.2 and -0.05.
    [found] = standing_of(report, "a", "proca").against_models["b"]
    assert found.order_changes == pytest.approx(1 / 3)
    [mirrored] = standing_of(report, "b", "proca").against_models["a"]
    assert (mirrored.order_changes, mirrored.difference) == (pytest.approx(1 / 3), -found.difference)
    table = prompt_order_table(report)
    assert table is not None
    rows = {row[1].text: [entry.text for entry in row[2:]] for row in table.rows}
    assert rows["proca"][:3] == ["a > b", "33.3", "+10.0"]
    assert rows["raw"][:3] == ["a > b", "50.0", "+0.0"], "three ties, each half"
    assert set(rows) == {"raw", "proca"}


def test_one_prompt_is_compared_with_the_first_of_several(write_result, folder):
    write_result(model="c", correct={"none": answers(20)[0], "proca": answers(32)[0]})
    report = compare([folder])
    assert report.datasets_of("c") == report.datasets_of("a"), "in the same column"
    assert standing_of(report, "a", "proca").average.mean == pytest.approx(0.9), "prompt 0, which all have"
    [found] = standing_of(report, "a", "proca").against_models["c"]
    assert found.difference == pytest.approx(0.1)
    assert found.test.p_value == pytest.approx(binomtest(4, 4).pvalue)
    assert found.order_changes is None
    assert accuracy_of(report, "sst2", "proca", model="c").fewer_seeds
    [text] = notices(report, "differing")
    assert "models have different prompts (a: 0 with 3 prompts; b: 0 with 3 prompts; c: 0)" in text


def test_prompts_that_differ_in_something_else_stand_apart(write_result, folder):
    write_result(
        model="b",
        prompts={"none": answers(20, 20), "proca": answers(30, 30)},
        together={"none": answers(20)[0], "proca": answers(30)[0]},
        vary="orders",
    )
    report = compare([folder])
    names = [dataset.name for dataset in report.datasets_of("b")]
    assert sorted(names) == ["sst2 [prompts differ in demonstrations]", "sst2 [prompts differ in orders]"]
    assert standing_of(report, "b", "proca").average.mean == pytest.approx(0.65)


def test_only_several_prompts_change_what_is_written(write_result, folder, tmp_path):
    several = structured.as_dict(compare([folder]))
    keys = {"prompts", "worst", "together"}
    assert keys <= set(several["accuracies"][0])
    [test] = [
        one
        for standing in several["leaderboards"][0]["standings"]
        if (standing["model"], standing["method"]) == ("a", "proca")
        for one in standing["against_models"]["tests"]["b"]
    ]
    assert (test["prompts"], test["order_changes"]) == (3, pytest.approx(1 / 3))
    alone = tmp_path / "alone"
    for seed in range(2):
        write_result(seed=seed, correct={"none": answers(20)[0], "proca": answers(32)[0]}, folder=alone)
    single = compare([alone])
    assert not keys & set(structured.as_dict(single)["accuracies"][0])
    assert "order_changes" not in structured.render(single).replace('"order_changes": []', "")
    for render in (markdown.render, latex.render, spreadsheet.render):
        assert "rompt" not in render(single)


def test_formats_have_the_worst_prompt(folder):
    report = compare([folder])
    text = markdown.render(report)
    assert "| 4 | proca | 75.0 ±21.8 ≥50.0 | 75.0 |" in text
    assert "| 4 | proca x3 | **95.0** | **95.0** |" in text
    assert text.count("≥: the worst prompt.") == 1
    assert "prompts and documents as crossed sources of error" in text
    assert r"4 & proca & 75.0$_{21.8}$~$\geq$50.0 & 75.0 \\" in latex.render(report)
    rows = list(csv.DictReader(io.StringIO(spreadsheet.render(report))))
    [row] = [row for row in rows if (row["model"], row["method"], row["dataset"]) == ("a", "proca", "sst2")]
    assert (row["prompts"], row["seeds"], float(row["worst"])) == ("3", "1", pytest.approx(0.5))
    # Raw is better under prompt 2 alone: 0.9, 0.85, 0.5 against 0.5, 0.4, 0.6.
    assert float(row["order_changes"]) == pytest.approx(1 / 3)


def test_doubts_about_prompts_are_a_notice(write_result):
    doubt = "Prompt 1 has gone wrong."
    together = {name: {"accuracy": [0.5, 0.5], "warnings": [doubt] * (name == "proca")} for name in ("none", "proca")}
    right = answers(20, 20)
    file = write_result(
        prompts={"none": right, "proca": right},
        together={"none": right[0], "proca": right[0]},
        together_record=together,
    )
    [text] = notices(compare([file.parent]), "fit")
    assert text == f"proca x2 warns of 1 of 1 fits. org/model on proca_sst2, 4 shots, seed 0: {doubt}"


@pytest.mark.parametrize("recorded", [[0.5], [0.5, 1.5], [0.5, "N/A"], None])
def test_a_record_without_the_accuracies_of_its_prompts_is_damaged(write_result, folder, recorded):
    right = answers(20, 20)
    write_result(
        model="c",
        prompts={"none": right, "proca": right},
        together={"none": right[0], "proca": right[0]},
        together_record={"none": {"accuracy": [0.5, 0.5]}, "proca": {"accuracy": recorded}},
    )
    report = compare([folder])
    assert report.models == ["a", "b"]
    assert "an accuracy of proca for each of its 2 prompts" in notices(report, "damaged")[0]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"acc_prompts": [1.0, 1.0, 0.0]', '"acc_prompts": [1.0, 1.0]'),
        ('"acc_prompts": [1.0, 1.0, 0.0]', '"acc_prompts": [1.0, 1.0, 0.5]'),
        ('"acc_together": 1.0', '"acc_together": "yes"'),
    ],
)
def test_a_log_with_other_prompts_in_some_lines_is_refused(folder, before, after):
    samples = sorted(folder.glob("samples_*.jsonl"))[0]
    samples.write_text(samples.read_text().replace(before, after, 1))
    with pytest.raises(ResultsError, match="cut or changed"):
        read_correct(samples)
    report = compare([folder])
    assert notices(report, "damaged")
    assert standing_of(report, "a", "proca").against_raw[0].test is None


def test_a_log_with_changed_prompts_is_not_tested(folder):
    samples = sorted(folder.glob("samples_*.jsonl"))[0]
    text = samples.read_text()
    samples.write_text(text.replace('"acc_prompts": [1.0, 1.0, 0.0]', '"acc_prompts": [1.0, 1.0, 1.0]'))
    assert "does not give the accuracies" in notices(compare([folder]), "damaged")[0]


def write_group(write_result, accuracy: dict[str, float]) -> Path:
    """A group of two tasks, of 40 and 20 documents, in one results file."""
    files = []
    for task, size in (("proca_one", 40), ("proca_two", 20)):
        right = {
            name: [[1] * (size // 4 * k) + [0] * (size - size // 4 * k) for k in (1, 2)] for name in ("none", "bc")
        }
        together = {name: right[name][1] for name in right}
        files.append(write_result(task=task, prompts=right, together=together, eval_rows=size))
    first, second = (json.loads(file.read_text()) for file in files)
    for key in ("results", "configs", "versions"):
        first[key] |= second[key]
    first["results"]["both"] = {**{f"acc,{k}": v for k, v in accuracy.items()}, "acc_together,bc": 0.625}
    first["group_subtasks"] = {"both": ["proca_one", "proca_two"]}
    files[0].write_text(json.dumps(first))
    files[1].unlink()
    return files[0].parent


def group_report(folder: Path) -> Report:
    return compare([folder], groups=True)


def test_a_group_is_averaged_under_each_prompt(write_result):
    report = group_report(write_group(write_result, {"none": 0.25, "bc": 0.25}))
    found = accuracy_of(report, "both", "bc")
    assert list(found.values.values()) == pytest.approx([0.25, 0.5])
    assert accuracy_of(report, "both", "bc x2").mean == 0.625


def test_a_group_with_another_average_has_its_first_prompt_alone(write_result):
    report = group_report(write_group(write_result, {"none": 0.25, "bc": 0.27}))
    assert list(accuracy_of(report, "both", "bc").values.values()) == [0.27]
    assert report.methods == ["raw", "bc"]
    assert notices(report, "left out") == [
        "both: its average under each prompt is not known, so the tables have its first prompt alone."
    ]
