"""Finished runs of lm-eval: real ones of plain tasks, and folders made from score matrices."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.metrics import recall_score

from lm_eval_proca.errors import ResultsError
from lm_eval_proca.runs.finished import (
    CALIBRATED_IN_RUN,
    NO_CHOICES,
    CalibratedRun,
    FittedTask,
    calibrate_run,
)
from lm_eval_proca.runs.sample_logs import read_correct, read_samples
from lm_eval_proca.runs.writing import write_samples
from lm_eval_proca.scores.fitting import fit, make_calibrators
from results.output_folders import Matrix, write_output
from tests.conftest import made_sentences, write_jsonl
from tests.score_tables import made_table

BC = make_calibrators(["bc"])
GROUPS = {"all": ["stem", "other"], "stem": ["physics", "algebra"]}


def matrix(rows: int, seed: int, labels: int = 4) -> Matrix:
    table = made_table(labels=labels, eval_rows=rows, seed=seed, separation=1.5)
    return Matrix(table.scores_of("eval"), table.gold_of("eval"), "ABCDEFGH"[:labels])


@pytest.fixture(scope="module")
def tasks() -> dict[str, Matrix]:
    return {"physics": matrix(60, 1), "algebra": matrix(25, 2), "other": matrix(110, 3)}


def by_hand(task: Matrix) -> np.ndarray:
    """Predictions of batch calibration, cross-fitted by a loop over folds."""
    n = len(task.gold)
    dealt = np.random.default_rng(0).permutation([row % 5 for row in range(n)])
    log_proba = log_softmax(task.scores, axis=1)
    return np.array([np.argmax(log_proba[row] - log_proba[dealt != dealt[row]].mean(axis=0)) for row in range(n)])


@pytest.mark.parametrize("by_size", [True, False])
def test_tasks_and_groups_are_what_arithmetic_by_hand_gives(
    tmp_path: Path, tasks: dict[str, Matrix], by_size: bool
) -> None:
    file = write_output(tmp_path, "org/model", tasks, groups=GROUPS, by_size=by_size)
    before = json.loads(file.read_text())
    run = calibrate_run(file, BC)
    assert (run.calibrated, run.skipped, run.notes) == (list(tasks), [], [])
    right = {name: (by_hand(task) == task.gold) for name, task in tasks.items()}
    results = run.document["results"]
    for name, hits in right.items():
        assert results[name]["acc,bc"] == pytest.approx(hits.mean(), abs=1e-12)
        assert results[name]["acc_stderr,bc"] == pytest.approx(hits.std(ddof=1) / len(hits) ** 0.5)
    for group, of_group in {"stem": ["physics", "algebra"], "all": ["physics", "algebra", "other"]}.items():
        hits = [right[name] for name in of_group]
        expected = np.concatenate(hits).mean() if by_size else np.mean([one.mean() for one in hits])
        assert results[group]["acc,bc"] == pytest.approx(expected, abs=1e-12)
        assert run.document["groups"][group]["acc,bc"] == results[group]["acc,bc"]
        if not by_size:
            errors = [results[name]["acc_stderr,bc"] for name in of_group]
            assert results[group]["acc_stderr,bc"] == pytest.approx(sum(e**2 for e in errors) ** 0.5 / len(errors))
        gold = np.concatenate([tasks[name].gold for name in of_group])
        predicted = np.concatenate([by_hand(tasks[name]) for name in of_group])
        recalls = recall_score(gold, predicted, average=None)
        assert results[group]["recall_sd,bc"] == pytest.approx(statistics.pstdev(recalls.tolist()))
    for name, known in before["results"].items():
        assert {key: results[name][key] for key in known} == known  # what lm-eval measured is left alone


def test_a_group_without_all_of_its_tasks_has_no_row(tmp_path: Path, tasks: dict[str, Matrix]) -> None:
    few = {**tasks, "algebra": matrix(19, 2)}
    run = calibrate_run(write_output(tmp_path, "m", few, groups=GROUPS), BC)
    assert run.calibrated == ["physics", "other"]
    [(reason, failed)] = run.failures.items()
    assert failed == {"algebra": ["bc"]}
    assert reason.startswith("19 evaluation documents are too few to calibrate 4 labels")
    assert run.notes == [
        f"{group}: no row for bc, since 1 of the {count} tasks in its raw row have none (algebra)."
        for group, count in (("all", 3), ("stem", 2))
    ]
    assert "acc,bc" not in run.document["results"]["all"]


@pytest.mark.parametrize("by_size", [True, False])
def test_a_group_whose_weights_are_not_known_has_no_row(tmp_path: Path, by_size: bool) -> None:
    """A model that always gives one label is right on half of every balanced task, however tasks are weighed."""

    def one_label(rows: int, seed: int) -> Matrix:
        made = matrix(rows, seed, labels=2)
        scores = made.scores + np.array([100.0, 0.0])
        return Matrix(scores, np.arange(rows) % 2, made.labels)

    unequal = {"physics": one_label(60, 1), "algebra": one_label(24, 2)}
    equal = {"first": one_label(40, 3), "second": one_label(40, 4)}
    groups = {"stem": list(unequal), "same": list(equal)}
    run = calibrate_run(write_output(tmp_path, "m", {**unequal, **equal}, groups=groups, by_size=by_size), BC)
    [note] = run.notes
    assert note.startswith("stem: no calibrated row, since the results file does not say whether it weighs its tasks")
    results = run.document["results"]
    assert "acc,bc" not in results["stem"]
    assert results["same"]["acc,bc"] == pytest.approx(np.mean([results[task]["acc,bc"] for task in equal]))


def test_a_group_that_is_no_average_of_its_tasks_has_no_row(tmp_path: Path, tasks: dict[str, Matrix]) -> None:
    file = write_output(tmp_path, "m", tasks, groups=GROUPS)
    changed = json.loads(file.read_text())
    changed["results"]["stem"]["acc,none"] += 0.01
    file.write_text(json.dumps(changed))
    run = calibrate_run(file, BC)
    assert run.notes == ["stem: no calibrated row, since its raw accuracy is not the average of its tasks."]
    assert "acc,bc" in run.document["results"]["all"]


def test_documents_without_a_gold_label_are_calibrated_and_counted_by_no_row(
    tmp_path: Path, tasks: dict[str, Matrix]
) -> None:
    part = tasks["other"]._replace(gold=np.where(np.arange(110) % 4, tasks["other"].gold, -1))
    file = write_output(tmp_path / "in", "m", {**tasks, "other": part}, groups=GROUPS)
    run = written(file, tmp_path / "out")
    results = run.document["results"]
    known = part.gold >= 0
    for name, predicted in {"none": part.scores.argmax(axis=1), "bc": by_hand(part)}.items():
        right = (predicted == part.gold)[known]
        assert results["other"][f"acc,{name}"] == pytest.approx(right.mean())
        assert results["other"][f"acc_stderr,{name}"] == pytest.approx(right.std(ddof=1) / len(right) ** 0.5)
    assert run.notes == [
        "28 of the 110 documents of other have no gold label; they are calibrated, and no accuracy counts them "
        "(lm-eval counts them as wrong).",
        "all: no calibrated row, since its raw row counts documents without a gold label as wrong (other).",
    ]
    assert "acc,bc" in results["stem"]
    [log] = (tmp_path / "out").glob("samples_other_*")
    lines = [json.loads(line) for line in log.read_text().splitlines()][110:]
    assert [line.get("acc") for line in lines] == [
        float(a == b) if b >= 0 else None for a, b in zip(by_hand(part), part.gold, strict=True)
    ]
    assert read_correct(log).by_filter["bc"].tolist() == (by_hand(part) == part.gold)[known].tolist()


def test_a_task_without_any_gold_label_has_predictions_and_no_accuracy(
    tmp_path: Path, tasks: dict[str, Matrix]
) -> None:
    without = tasks["physics"]._replace(gold=np.full(60, -1))
    file = write_output(tmp_path / "in", "m", {"physics": without})
    run = written(file, tmp_path / "out")
    assert run.calibrated == ["physics"]
    assert "acc,bc" not in run.document["results"]["physics"]
    assert run.notes[0].startswith("60 of the 60 documents of physics have no gold label")
    [log] = (tmp_path / "out").iterdir()
    lines = [json.loads(line) for line in log.read_text().splitlines()][60:]
    predicted = [np.argmax([float(score) for score, _ in line["filtered_resps"]]) for line in lines]
    assert predicted == by_hand(without).tolist()
    json.dumps(run.document, allow_nan=False)


def test_bias_is_recorded_before_and_after(tmp_path: Path, tasks: dict[str, Matrix]) -> None:
    run = calibrate_run(write_output(tmp_path, "m", tasks), BC)
    record = run.document["configs"]["other"]["metadata"]["proca"]
    assert (record["labels"], record["folds"], record["eval_rows"]) == (["A", "B", "C", "D"], 5, 110)
    raw, calibrated = record["label_counts"]["none"], record["label_counts"]["bc"]
    gold = np.bincount(tasks["other"].gold, minlength=4)
    assert raw["gold"] == calibrated["gold"] == gold.tolist()
    assert raw["predicted"][-1] > 2 * gold[-1] > calibrated["predicted"][-1]  # made to prefer the last
    assert raw["mean_probability"][-1] > calibrated["mean_probability"][-1]
    metrics = run.document["results"]["other"]
    assert metrics["recall_sd,none"] > metrics["recall_sd,bc"]
    json.dumps(run.document, allow_nan=False)


def written(run_file: Path, output: Path) -> CalibratedRun:
    def keep(task: FittedTask) -> None:
        write_samples(task, output)

    return calibrate_run(run_file, BC, keep=keep)


def test_written_samples_are_lines_of_lm_eval(tmp_path: Path, tasks: dict[str, Matrix]) -> None:
    file = write_output(tmp_path / "in", "m", {"physics": tasks["physics"]})
    run = written(file, tmp_path / "out")
    [log] = (tmp_path / "out").iterdir()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    raw, calibrated = lines[:60], lines[60:]
    assert (file.parent / log.name).read_text() == log.read_text()[: len((file.parent / log.name).read_text())]
    assert [line["doc_id"] for line in calibrated] == list(range(60))
    differ = {"filtered_resps", "filter", "acc"}
    for before, after in zip(raw, calibrated, strict=True):
        assert list(before) == list(after)
        assert {k: v for k, v in before.items() if k not in differ} == {
            k: v for k, v in after.items() if k not in differ
        }
        assert after["filter"] == "bc"
        scores = [float(score) for score, _ in after["filtered_resps"]]
        assert after["acc"] == (np.argmax(scores) == int(after["target"]))
    results = run.document["results"]["physics"]
    assert np.mean([line["acc"] for line in calibrated]) == pytest.approx(results["acc,bc"])


def test_lines_in_another_order_belong_to_their_documents(tmp_path: Path, tasks: dict[str, Matrix]) -> None:
    file = write_output(tmp_path / "in", "m", {"physics": tasks["physics"]})
    [log] = file.parent.glob("samples_*")
    lines = log.read_text().splitlines(keepends=True)
    straight = written(file, tmp_path / "straight").document["results"]
    log.write_text("".join(np.random.default_rng(0).permutation(lines)))
    assert written(file, tmp_path / "mixed").document["results"] == straight
    in_order = sorted((tmp_path / "straight" / log.name).read_text().splitlines())
    assert sorted((tmp_path / "mixed" / log.name).read_text().splitlines()) == in_order


def test_tasks_that_are_not_what_they_seem_are_named(tmp_path: Path) -> None:
    names = ("good", "cut", "short", "missing", "other", "nan", "varying", "inputs", "generates", "before", "changed")
    file = write_output(tmp_path, "m", {name: matrix(40, k) for k, name in enumerate(names)})
    document = json.loads(file.read_text())
    logs = {name: file.parent / f"samples_{name}_{file.stem.removeprefix('results_')}.jsonl" for name in names}

    def rewrite(name: str, change) -> None:
        rows = [json.loads(line) for line in logs[name].read_text().splitlines()]
        for row in rows:
            change(row)
        logs[name].write_text("".join(json.dumps(row) + "\n" for row in rows))

    logs["cut"].write_text(logs["cut"].read_text()[:-900])
    logs["short"].write_text("".join(logs["short"].read_text().splitlines(keepends=True)[:-3]))
    logs["missing"].unlink()
    rewrite("other", lambda row: row.update(resps=[["some text"]], filtered_resps=["some text"]))
    rewrite("nan", lambda row: row["resps"][0][0].__setitem__(0, "nan") if row["doc_id"] == 3 else None)
    rewrite("varying", lambda row: row["arguments"]["gen_args_1"].update(arg_1=f" choice {row['doc_id']}"))
    rewrite("inputs", lambda row: [one.update(arg_1=" the same") for one in row["arguments"].values()])
    document["configs"]["generates"]["output_type"] = "generate_until"
    document["results"]["before"]["acc,proca"] = 0.5
    document["results"]["changed"]["acc,none"] = 0.0
    rows = [json.loads(line) for line in logs["nan"].read_text().splitlines()]
    scores = np.array([[float(response[0][0]) for response in row["resps"]] for row in rows])
    document["results"]["nan"]["acc,none"] = float(np.mean(scores.argmax(axis=1) == [int(r["target"]) for r in rows]))
    rewrite("nan", lambda row: row.pop("acc"))
    file.write_text(json.dumps(document))

    run = calibrate_run(file, BC)
    assert run.calibrated == ["good"]
    assert run.unchanged == {NO_CHOICES: ["generates"], CALIBRATED_IN_RUN: ["before"]}
    reasons = {one.task: (one.reason, one.damaged) for one in run.skipped}
    assert reasons.keys() == {"cut", "short", "missing", "other", "nan", "varying", "inputs", "changed"}
    assert {task for task, (_, damaged) in reasons.items() if not damaged} == {"varying", "inputs"}
    for task, part in {
        "cut": "line 40 of", "short": "it was cut, or is of another run", "missing": "there is no samples_missing_",
        "other": "no sample of a multiple-choice task", "nan": "for eval document 3", "changed": "not of one run",
        "varying": "its choices differ", "inputs": "its choices differ",
    }.items():  # fmt: skip
        assert part in reasons[task][0]
    assert "acc,bc" not in run.document["results"]["nan"]
    assert "acc,none" in run.document["results"]["nan"]


def test_a_task_without_an_accuracy_gets_one_on_its_calibrated_rows(tmp_path: Path, tasks: dict[str, Matrix]) -> None:
    """As in a calibrated run."""
    file = write_output(tmp_path, "m", {"physics": tasks["physics"]})
    document = json.loads(file.read_text())
    document["results"]["physics"] = {"alias": "physics", "acc_norm,none": 0.5}
    file.write_text(json.dumps(document))
    found = calibrate_run(file, BC).document["results"]["physics"]
    assert found["acc,bc"] == pytest.approx(np.mean(by_hand(tasks["physics"]) == tasks["physics"].gold))
    assert "acc,none" not in found
    assert "acc_norm,bc" not in found


@pytest.mark.parametrize(
    "text",
    ['{"results": {}', "[1, 2]", '{"results": {}}', '{"results": {"a": 1}, "configs": {}}', "\x00\xff", "[" * 100_000],
)
def test_files_that_are_no_results_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "results_2025-01-31T12-00-00.json"
    file.write_text(text)
    with pytest.raises(ResultsError, match=f"{file.name} was skipped: "):
        calibrate_run(file, BC)


def test_older_files_without_filter_names_and_sample_counts(tmp_path: Path, tasks: dict[str, Matrix]) -> None:
    """lm-eval 0.4.5 logged no filter, gave no `sample_len`, indented aliases and listed tasks as empty groups."""
    file = write_output(tmp_path, "m", tasks, groups=GROUPS)
    document = json.loads(file.read_text())
    for name, metrics in document["results"].items():
        metrics.update(alias=f" - {name}")
        del metrics["sample_len"], metrics["name"]
    document["group_subtasks"] |= {name: [] for name in tasks}
    file.write_text(json.dumps(document))
    for log in file.parent.glob("samples_*"):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        log.write_text(
            "".join(json.dumps({k: v for k, v in r.items() if k not in ("filter", "metrics")}) + "\n" for r in rows)
        )
    results = calibrate_run(file, BC).document["results"]
    right = np.concatenate([by_hand(task) == task.gold for task in tasks.values()])
    assert results["all"]["acc,bc"] == pytest.approx(right.mean())


PLAIN_TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{validation: {rows}}}}}
output_type: multiple_choice
validation_split: validation
doc_to_text: "{{{{sentence}}}} It was"
doc_to_target: label
doc_to_choice: ["bad", "good"]
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


@pytest.mark.parametrize("by_size", [True, False])
def test_a_real_run_of_lm_eval(tmp_path: Path, by_size: bool) -> None:
    """The group's raw row decides the weights; acc_norm stays where it is."""
    import lm_eval
    from lm_eval.loggers import EvaluationTracker
    from lm_eval.tasks import TaskManager

    for name, count in (("first", 40), ("second", 70)):
        write_jsonl(tmp_path / f"{name}.jsonl", made_sentences(count, seed=count))
        (tmp_path / f"{name}.yaml").write_text(PLAIN_TASK.format(name=name, rows=tmp_path / f"{name}.jsonl"))
    (tmp_path / "both.yaml").write_text(
        f"group: both\ntask: [first, second]\naggregate_metric_list: [{{metric: acc, weight_by_size: {by_size}}}]\n"
    )
    tracker = EvaluationTracker(output_path=str(tmp_path / "out"))
    results = lm_eval.simple_evaluate(
        model="dummy",
        tasks=["both"],
        task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
        log_samples=True,
        evaluation_tracker=tracker,
    )
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in ("first", "second"):
        tracker.save_results_samples(task_name=name, samples=samples[name])

    [file] = (tmp_path / "out").rglob("results_*.json")
    before = json.loads(file.read_text())["results"]
    run = calibrate_run(file, BC)
    found = run.document["results"]
    assert run.calibrated == ["first", "second"]
    expected = []
    for name in ("first", "second"):
        table = read_samples(next(file.parent.glob(f"samples_{name}_*")))
        expected.append(fit(BC["bc"], table).log_proba.argmax(axis=1) == table.gold_of("eval"))
        assert found[name]["acc,bc"] == expected[-1].mean()
        assert {key for key in found[name] if key.endswith(",bc")} == {"acc,bc", "acc_stderr,bc", "recall_sd,bc"}
        assert {key: found[name][key] for key in before[name]} == before[name]
    average = np.concatenate(expected).mean() if by_size else np.mean([one.mean() for one in expected])
    assert found["both"]["acc,bc"] == pytest.approx(average, abs=1e-12)
