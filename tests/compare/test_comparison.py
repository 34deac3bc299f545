"""The arithmetic of tables and leaderboards, by hand on small folders, and what must never be mixed."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest, kendalltau
from sklearn.metrics import recall_score

from lm_eval_proca.compare.comparison import Report, compare
from lm_eval_proca.compare.formats import spreadsheet, terminal
from lm_eval_proca.compare.formats.structured import as_dict
from lm_eval_proca.compare.names import method_name
from lm_eval_proca.compare.page import render_page
from lm_eval_proca.errors import ResultsError
from results.output_folders import Matrix, write_output
from tests.score_tables import made_table


def notices(report: Report, kind: str) -> list[str]:
    return [notice.text for notice in report.notices if notice.kind == kind]


def standing_of(report: Report, model: str, method: str, shots: int = 4):
    (board,) = [board for board in report.leaderboards if board.shots == shots]
    (standing,) = [one for one in board.standings if (one.model, one.method) == (model, method)]
    return standing


def accuracy_of(report: Report, dataset: str, method: str, model: str = "org/model", shots: int = 4):
    (block,) = [block for block in report.blocks if (block.model, block.shots) == (model, shots)]
    return next((a for (m, d), a in block.accuracies.items() if m == method and d.name == dataset), None)


def test_mean_and_standard_deviation_over_seeds(write_result):
    for seed, value in enumerate((0.6, 0.7, 0.8)):
        folder = write_result(seed=seed, accuracy={"none": 0.5, "proca": value}).parent
    accuracy = accuracy_of(compare([folder]), "sst2", "proca")
    assert accuracy.mean == pytest.approx(0.7)
    assert accuracy.sd == pytest.approx(0.1)
    assert not accuracy.fewer_seeds


def test_one_seed_has_no_standard_deviation(write_result):
    folder = write_result(accuracy={"none": 0.5, "proca": 0.6}).parent
    assert accuracy_of(compare([folder]), "sst2", "proca").sd is None


def test_average_gain_and_ranks_by_hand(write_result):
    numbers = {
        ("a", "proca_sst2"): {"none": 0.50, "conca": 0.60, "proca": 0.80},
        ("a", "proca_mr"): {"none": 0.60, "conca": 0.50, "proca": 0.70},
        ("b", "proca_sst2"): {"none": 0.70, "conca": 0.70, "proca": 0.72},
        ("b", "proca_mr"): {"none": 0.60, "conca": 0.62, "proca": 0.68},
    }
    for (model, task), accuracy in numbers.items():
        folder = write_result(model=model, task=task, accuracy=accuracy).parent
    report = compare([folder])
    got = {
        (one.model, one.method): (one.rank, one.model_rank, pytest.approx(one.average.mean), one.gain)
        for one in report.leaderboards[0].standings
    }
    assert got == {
        ("a", "proca"): (1, 1, 0.75, pytest.approx(0.20)),
        ("b", "proca"): (2, 2, 0.70, pytest.approx(0.05)),
        ("b", "conca"): (3, 1, 0.66, pytest.approx(0.01)),
        ("b", "raw"): (4, 1, 0.65, None),
        ("a", "conca"): (5, 2, 0.55, pytest.approx(0.0, abs=1e-12)),
        ("a", "raw"): (5, 2, 0.55, None),
    }
    tally = standing_of(report, "a", "conca").raw_tally
    assert (tally.wins, tally.losses) == (1, 1)
    assert (tally.significant_wins, tally.significant_losses) == (None, None)
    assert "--log_samples" in notices(report, "no test")[0]
    changes = {change.method: change for change in report.leaderboards[0].order_changes}
    assert changes["proca"].kendall_tau == -1
    assert changes["proca"].raw_order == [["b"], ["a"]]
    assert changes["proca"].order == [["a"], ["b"]]
    assert changes["conca"].kendall_tau == 1


def test_kendalls_tau_by_hand(write_result):
    raw, calibrated = {"a": 0.5, "b": 0.6, "c": 0.7, "d": 0.8}, {"a": 0.6, "b": 0.9, "c": 0.7, "d": 0.7}
    for model in raw:
        folder = write_result(model=model, accuracy={"none": raw[model], "proca": calibrated[model]}).parent
    (change,) = compare([folder]).leaderboards[0].order_changes
    # Pairs: ab ac ad agree, bc bd disagree, cd is a tie: (3 - 2) / sqrt(6 * 5).
    assert change.kendall_tau == pytest.approx(1 / 30**0.5)
    assert change.kendall_tau == pytest.approx(kendalltau(list(raw.values()), list(calibrated.values())).statistic)
    assert change.order == [["b"], ["c", "d"], ["a"]]


def test_equal_means_are_equal_whatever_the_order_of_seeds(write_result):
    # As floats, the means of these differ in the last bit.
    for seed, (raw, proca) in enumerate([(0.1, 0.1), (0.1, 0.2), (0.4, 0.3)]):
        folder = write_result(seed=seed, accuracy={"none": raw, "proca": proca}).parent
    standing = standing_of(compare([folder]), "org/model", "proca")
    assert (standing.rank, standing.gain) == (1, 0)
    assert (standing.raw_tally.wins, standing.raw_tally.losses) == (0, 0)


def test_best_is_bold_also_when_shared(write_result):
    folder = write_result(accuracy={"none": 0.5, "bc": 0.8004, "proca": 0.8001}).parent
    (block,) = compare([folder]).blocks
    assert block.best(block.averaged[0]) == {"bc", "proca"}
    assert block.best(None) == {"bc", "proca"}


def test_missing_dataset_leaves_the_average_out(write_result):
    both = {"none": 0.5, "proca": 0.7}
    for model, task in (("a", "proca_sst2"), ("a", "proca_mr"), ("b", "proca_sst2")):
        folder = write_result(model=model, task=task, accuracy=both).parent
    report = compare([folder])
    missing = standing_of(report, "b", "proca")
    assert (missing.rank, missing.average.mean, missing.gain) == (None, None, None)
    assert (missing.average.present, missing.average.expected) == (1, 2)
    assert standing_of(report, "a", "proca").rank == 1
    assert notices(report, "missing") == ["b, 4 shots: no result for mr, so its average is left out."]
    assert "mr" in [dataset.name for dataset in report.datasets_of("b")]


def test_tasks_without_results_for_some_shots_are_named_and_counted(write_result):
    for shots, tasks in ((0, ("mr",)), (4, ("sst2", "mr", "trec"))):
        for task in tasks:
            folder = write_result(task=f"proca_{task}", shots=shots, accuracy={"none": 0.5, "proca": 0.7}).parent
    report = compare([folder])
    average = standing_of(report, "org/model", "proca", shots=0).average
    assert (average.mean, average.present, average.expected) == (0.7, 1, 3)
    assert notices(report, "missing") == [
        "No result with 0 shots for sst2, trec, so averages with 0 shots are over the other 1 of 3 tasks."
    ]
    assert not standing_of(report, "org/model", "proca", shots=4).average.partial


def test_fewer_seeds_are_marked(write_result):
    for task, seeds in (("proca_sst2", (0, 1)), ("proca_mr", (0,))):
        for seed in seeds:
            folder = write_result(task=task, seed=seed, accuracy={"none": 0.5, "proca": 0.7}).parent
    report = compare([folder])
    assert accuracy_of(report, "mr", "proca").fewer_seeds
    assert not accuracy_of(report, "sst2", "proca").fewer_seeds
    assert standing_of(report, "org/model", "proca").average.fewer_seeds
    assert "fewer seeds" in notices(report, "missing")[0]


@pytest.fixture
def unequal_seeds(write_result):
    """A: 80 % under seed 0. B: 65 % of the same documents, and 100 % under seed 1, which A has not."""
    raw = [0] * 100
    write_result(model="A", seed=0, correct={"none": raw, "proca": [1] * 80 + [0] * 20})
    write_result(model="B", seed=0, correct={"none": raw, "proca": [1] * 65 + [0] * 35})
    return write_result(model="B", seed=1, correct={"none": raw, "proca": [1] * 100}).parent


def test_a_significant_loss_is_never_shown_as_a_win(unequal_seeds):
    report = compare([unequal_seeds])
    for model, other, sign in (("A", "B", 1), ("B", "A", -1)):
        standing = standing_of(report, model, "proca")
        [comparison] = standing.against_models[other]
        assert comparison.difference == pytest.approx(sign * 0.15)
        assert (comparison.test.better > comparison.test.worse) == (comparison.difference > 0)
        assert (comparison.test.seeds, comparison.significant) == (1, True)
        tally = standing.model_tally
        assert (tally.significant_wins, tally.significant_losses) == ((1, 0) if sign > 0 else (0, 1))


def test_ranks_and_orders_are_over_the_seeds_that_all_models_have(unequal_seeds):
    report = compare([unequal_seeds])
    got = {m: (standing_of(report, m, "proca").rank, standing_of(report, m, "proca").average.mean) for m in "AB"}
    assert got == {"A": (1, pytest.approx(0.80)), "B": (2, pytest.approx(0.65))}
    [change] = report.leaderboards[0].order_changes
    assert change.order == [["A"], ["B"]]
    # What B gained over its own raw scores, both of its seeds say.
    assert standing_of(report, "B", "proca").gain == pytest.approx(0.825)
    assert accuracy_of(report, "sst2", "proca", model="B").mean == pytest.approx(0.825)


def test_unequal_seeds_of_models_are_marked_everywhere(unequal_seeds):
    report = compare([unequal_seeds])
    assert accuracy_of(report, "sst2", "proca", model="A").fewer_seeds
    assert not accuracy_of(report, "sst2", "proca", model="B").fewer_seeds
    assert all(one.average.fewer_seeds for one in report.leaderboards[0].standings)
    assert notices(report, "differing") == [
        "sst2, 4 shots: models have different seeds (A: 0; B: 0, 1), so ranks and averages in the leaderboard are over "
        "the common ones, 0."
    ]
    document = as_dict(report)
    assert {(one["model"], one["fewer_seeds"]) for one in document["accuracies"]} == {("A", True), ("B", False)}
    assert all(one["fewer_seeds"] for one in document["leaderboards"][0]["standings"])


def test_models_without_a_common_seed_are_neither_ranked_nor_compared(write_result):
    for model, seed in (("A", 0), ("B", 7)):
        folder = write_result(model=model, seed=seed, accuracy={"none": 0.5, "proca": 0.7}).parent
    report = compare([folder])
    for model in "AB":
        standing = standing_of(report, model, "proca")
        assert (standing.rank, standing.average.mean, standing.model_tally) == (None, None, None)
        assert standing.gain == pytest.approx(0.2)
    assert "left out, as none is common to all" in notices(report, "differing")[0]


def test_a_method_with_fewer_seeds_than_its_model_has_a_gain_but_no_rank(write_result):
    write_result(seed=0, accuracy={"none": 0.5, "bc": 0.6, "proca": 0.9})
    folder = write_result(seed=1, accuracy={"none": 0.7, "bc": 0.6}).parent
    report = compare([folder])
    standing = standing_of(report, "org/model", "proca")
    assert (standing.rank, standing.average.mean, standing.gain) == (None, None, pytest.approx(0.4))
    assert [standing_of(report, "org/model", method).rank for method in ("raw", "bc")] == [1, 1]


@pytest.mark.parametrize(
    ("change", "label"),
    [
        ({"version": 2}, "version 2"),
        ({"limit": 50, "documents_hash": "abcdef0123"}, "limit 50"),
        ({"estimate_size": 300}, "estimate 300"),
        ({"eval_rows": 50}, "50 rows"),
        ({"documents_hash": "abcdef0123"}, "documents abcdef"),
    ],
)
def test_other_conditions_are_flagged_and_not_mixed(write_result, change, label):
    write_result(model="a", seed=0, accuracy={"none": 0.5, "proca": 0.7})
    write_result(model="b", seed=0, accuracy={"none": 0.5, "proca": 0.6})
    folder = write_result(model="b", seed=1, accuracy={"none": 0.5, "proca": 0.9}, **change).parent
    report = compare([folder])
    names = [dataset.name for dataset in report.datasets_of("b")]
    assert len(names) == 2
    assert f"sst2 [{label}]" in names
    assert accuracy_of(report, f"sst2 [{label}]", "proca", model="b").mean == 0.9
    # Two models share the other column: that one is averaged.
    assert standing_of(report, "b", "proca").average.mean == pytest.approx(0.6)
    assert len(notices(report, "differing")) == 1


def test_of_two_results_for_one_cell_the_newest_counts(write_result):
    newer = write_result(accuracy={"none": 0.5, "proca": 0.9}, date=7)
    older = write_result(accuracy={"none": 0.5, "proca": 0.1}, date=3, prompt_hash="other")
    report = compare([newer.parent])
    assert accuracy_of(report, "sst2", "proca").mean == 0.9
    (text,) = notices(report, "duplicate")
    assert str(newer) in text.split("counts")[0]
    assert str(older) in text.split("counts")[1]
    assert "different prompts" in text


def test_many_duplicates_are_summed_up(write_result):
    for _ in range(10):
        folder = write_result(accuracy={"none": 0.5, "proca": 0.9}).parent
    said = notices(compare([folder]), "duplicate")
    assert len(said) == 6
    assert said[-1].startswith("4 more results")


def test_generated_estimate_sets_stand_beside_the_sampled(write_result):
    filters = {"none": 0.5, "conca": 0.6, "bc": 0.7}
    write_result(accuracy={**filters, "proca": 0.9})
    folder = write_result(
        accuracy={**filters, "proca": 0.8},
        estimate_source="file:generated.jsonl",
        generated_by={"model": "m"},
        estimate_size=57,
    ).parent
    report = compare([folder])
    assert report.methods == ["raw", "bc", "bc-g", "conca", "proca-g", "proca"]
    assert [dataset.name for dataset in report.datasets_of("org/model")] == ["sst2"]
    assert accuracy_of(report, "sst2", "proca-g").mean == 0.8
    assert accuracy_of(report, "sst2", "proca").mean == 0.9
    assert not notices(report, "duplicate")


def test_generated_alone_needs_no_sampled_run(write_result):
    folder = write_result(
        accuracy={"none": 0.5, "proca": 0.8}, estimate_source="file:generated.jsonl", generated_by={"model": "m"}
    ).parent
    assert compare([folder]).methods == ["raw", "proca-g"]


def test_wins_and_losses_are_tested_over_the_same_documents(write_result):
    raw = [0] * 30 + [1] * 70
    better = [1] * 20 + [0] * 10 + [1] * 68 + [0] * 2  # 20 documents better, 2 worse
    folder = write_result(correct={"none": raw, "proca": better}).parent
    (comparison,) = standing_of(compare([folder]), "org/model", "proca").against_raw
    assert (comparison.test.better, comparison.test.worse, comparison.test.documents) == (20, 2, 100)
    assert comparison.test.p_value == pytest.approx(binomtest(2, 22).pvalue)
    assert comparison.significant


def test_significance_is_adjusted_over_the_leaderboard(write_result):
    # p = 0.031 alone; with a second comparison of p = 1 Holm makes it 0.0625.
    raw, better = [0] * 6 + [1] * 10, [1] * 16
    folder = write_result(correct={"none": raw, "proca": better}).parent
    assert standing_of(compare([folder]), "org/model", "proca").raw_tally.significant_wins == 1
    write_result(task="proca_mr", correct={"none": raw, "proca": raw})
    tally = standing_of(compare([folder]), "org/model", "proca").raw_tally
    assert (tally.wins, tally.losses, tally.significant_wins) == (1, 0, 0)


def test_models_are_tested_against_each_other(write_result):
    write_result(model="a", correct={"none": [1] * 20, "proca": [1] * 20})
    folder = write_result(model="b", correct={"none": [0] * 15 + [1] * 5, "proca": [1] * 20}).parent
    report = compare([folder])
    for model, wins, losses in (("a", 1, 0), ("b", 0, 1)):
        tally = standing_of(report, model, "raw").model_tally
        assert (tally.wins, tally.losses) == (wins, losses)
        assert (tally.significant_wins, tally.significant_losses) == (wins, losses)


def test_no_test_where_documents_differ(write_result):
    write_result(model="a", correct={"none": [1] * 20, "proca": [1] * 20})
    file = write_result(model="b", correct={"none": [0] * 20, "proca": [1] * 20})
    samples = next(file.parent.glob(f"*{file.stem.removeprefix('results')}.jsonl"))
    samples.write_text(samples.read_text().replace(f'"doc_hash": "{0:064d}"', f'"doc_hash": "{99:064d}"'))
    report = compare([file.parent])
    assert standing_of(report, "a", "raw").model_tally.significant_wins is None
    assert standing_of(report, "b", "proca").raw_tally.significant_wins == 1


@pytest.mark.parametrize("damage", ["cut", "shorter", "not zero or one"])
def test_damaged_samples_are_named_and_the_test_left_out(write_result, damage):
    file = write_result(correct={"none": [0] * 10, "proca": [1] * 10})
    (samples,) = file.parent.glob("samples_*.jsonl")
    text = samples.read_text()
    lines = text.splitlines(keepends=True)
    samples.write_text(
        {
            "cut": text[:-40],
            "shorter": "".join(lines[:-1]),
            "not zero or one": text.replace('"acc": 1.0', '"acc": 0.7'),
        }[damage]
    )
    report = compare([file.parent])
    assert report.damaged
    assert str(samples) in notices(report, "damaged")[0]
    assert standing_of(report, "org/model", "proca").raw_tally.significant_wins is None
    assert accuracy_of(report, "sst2", "proca").mean == 1.0


def test_real_results_against_plain_arithmetic(lm_eval_folder):
    documents = [json.loads(file.read_text()) for file in lm_eval_folder.rglob("results_*.json")]
    report = compare([lm_eval_folder])
    assert not report.notices
    for model in ("org/small", "org/large"):
        own = [d for d in documents if d["config"]["model_args"]["pretrained"] == model]
        for method, key in (("raw", "acc,none"), ("conca", "acc,conca"), ("bc", "acc,bc"), ("proca", "acc,proca")):
            values = [d["results"]["proca_toy"][key] for d in own]
            accuracy = accuracy_of(report, "toy", method, model=model, shots=2)
            assert accuracy.mean == pytest.approx(statistics.fmean(values))
            assert accuracy.sd == pytest.approx(statistics.stdev(values))
    tally = standing_of(report, "org/large", "proca", shots=2).raw_tally
    assert tally.significant_wins is not None


def test_as_dict_is_plain_json(lm_eval_folder):
    document = json.loads(json.dumps(as_dict(compare([lm_eval_folder])), allow_nan=False))
    assert {one["dataset"] for one in document["accuracies"]} == {"toy", "other"}
    assert document["leaderboards"][0]["standings"][0]["rank"] == 1


def test_preferred_labels_are_counted_over_tasks_with_the_same_labels(tmp_path: Path) -> None:
    from lm_eval_proca.cli import main

    tasks = {}
    for seed, name in enumerate(("physics", "algebra", "colours")):
        table = made_table(labels=4, eval_rows=60 + 40 * seed, seed=seed)
        words = ("red", "blue", "green", "grey") if name == "colours" else ("A", "B", "C", "D")
        tasks[name] = Matrix(table.scores_of("eval"), table.gold_of("eval"), words)
    write_output(tmp_path / "in", "org/model", tasks)
    assert main(["calibrate", str(tmp_path / "in"), "--calibrators", "bc", "--output", str(tmp_path / "out")]) == 0
    found = compare([tmp_path / "out"]).preferences
    assert [(one.labels[0], one.method, one.tasks) for one in found] == [
        ("A", "raw", ["algebra", "physics"]),
        ("A", "bc", ["algebra", "physics"]),
        ("red", "raw", ["colours"]),
        ("red", "bc", ["colours"]),
    ]
    gold = np.concatenate([tasks[name].gold for name in ("physics", "algebra")])
    predicted = np.concatenate([tasks[name].scores.argmax(axis=1) for name in ("physics", "algebra")])
    assert found[0].documents == 160
    assert found[0].predicted_minus_gold == pytest.approx((np.bincount(predicted) - np.bincount(gold)) / 160)
    assert found[0].recall_sd == pytest.approx(np.std(recall_score(gold, predicted, average=None)))
    assert found[0].predicted_minus_gold[3] > 0.2  # made to prefer the last label
    assert as_dict(compare([tmp_path / "out"]))["preferences"][0]["predicted_minus_gold"][3] > 0.2
    page = render_page(compare([tmp_path / "out"]))
    assert "Who prefers which label" in page
    assert page.count('<svg class="preference"') == 4 * 4
    assert "Preferred labels: algebra, physics" in page


def test_what_fits_say_against_themselves_is_a_notice(write_result, tmp_path):
    doubt = "Two labels lie 0.40 standard deviations apart, too close to tell them apart."
    for seed in range(5):
        fits = {"bc": {"warnings": []}, "proca": {"warnings": [doubt] if seed else []}}
        write_result(accuracy={"none": 0.5, "bc": 0.6, "proca": 0.7}, seed=seed, fits=fits)
    (text,) = notices(compare([tmp_path / "results"]), "fit")
    assert text.startswith("proca warns of 4 of 5 fits. org/model on proca_sst2, 4 shots, seed 1: " + doubt)
    assert text.count(doubt) == 3
    assert text.endswith("And 1 more.")


def test_the_same_documents_stand_in_one_column_whatever_the_limit_was_called(write_result):
    """lm-eval writes down a share, a run of ours the number of documents that it came to."""
    write_result(model="a", accuracy={"none": 0.5, "proca": 0.7}, limit=0.5)
    folder = write_result(model="b", accuracy={"none": 0.5, "proca": 0.6}, limit=20).parent
    report = compare([folder])
    assert [dataset.name for dataset in report.datasets_of("a")] == ["sst2"]
    assert standing_of(report, "b", "proca").rank is not None
    assert not notices(report, "differing")


def test_documents_that_nobody_recorded_stand_beside_as_many_that_somebody_did(write_result):
    """A filter that is not ours has no record; its column needs no name of its own."""
    write_result(model="a", accuracy={"none": 0.5, "proca": 0.7})
    folder = write_result(model="b", accuracy={"none": 0.5, "theirs": 0.6}, documents_hash=None).parent
    report = compare([folder])
    assert {dataset.name for model in "ab" for dataset in report.datasets_of(model)} == {"sst2"}
    folder = write_result(model="c", accuracy={"none": 0.5, "proca": 0.6}, documents_hash="abcdef0123").parent
    said = " ".join(notices(compare([folder]), "differing"))
    assert "documents not known" in said
    assert "unknow" not in said


def test_a_task_name_that_is_nearly_right(write_result):
    folder = write_result(accuracy={"none": 0.5, "proca": 0.9}).parent
    with pytest.raises(ResultsError, match=r"No task matches 'sts2'; there are: sst2\. Did you mean sst2\?"):
        compare([folder], ["sts2"])


def test_the_leaderboard_has_intervals_where_documents_are_logged(lm_eval_folder, write_result):
    report = compare([lm_eval_folder])
    for one in report.leaderboards[0].standings:
        low, high = one.interval
        assert 0 < low < one.average.mean < high < 1
    assert f"[{100 * low:.1f}, {100 * high:.1f}]" in terminal.render(report)
    assert ",low,high" in spreadsheet.render(report)
    not_logged = compare([write_result(accuracy={"none": 0.5, "proca": 0.9}).parent])
    assert {one.interval for one in not_logged.leaderboards[0].standings} == {None}


def test_published_methods_have_a_fixed_place(write_result):
    methods = {"none": 0.5, "ucpa": 0.6, "domain": 0.7, "bc_prob": 0.7, "conca": 0.6, "bc": 0.6, "proca": 0.6}
    folder = write_result(accuracy=methods).parent
    assert compare([folder]).methods == ["raw", "bc", "conca", "domain", "bc_prob", "ucpa", "proca"]


@pytest.mark.parametrize(("name", "shown"), [("domain", "domain-g"), ("ucpa", "ucpa-g"), ("conca", "conca")])
def test_random_words_of_generated_rows_are_generated_too(name, shown):
    assert method_name(name, {}, generated=True) == shown
    assert method_name(name, {}, generated=False) == name
