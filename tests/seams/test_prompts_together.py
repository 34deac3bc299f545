"""Five prompts in one run, their score tables, and five runs with one prompt each: the same numbers, three ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_eval_proca.cli import main
from lm_eval_proca.harness.prompts import stratified_orders
from tests.conftest import made_sentences, write_jsonl

Output = pytest.CaptureFixture[str]
SHOTS, PROMPTS, SEED = 4, 5, 1234
TASKS = {"quiz_many": 90, "quiz_few": 45}
METRICS = ("acc", "acc_prompts", "acc_prompts_stderr", "acc_sd", "acc_worst", "acc_together", "acc_together_stderr")
OURS = ("none", "bc", "proca")

QUIZ = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}/{name}.jsonl
    dev: {data}/{dev}.jsonl
test_split: test
fewshot_split: dev
fewshot_config: {{sampler: first_n}}
output_type: multiple_choice
doc_to_text: "{{{{sentence}}}}\\nAnswer:"
doc_to_target: label
doc_to_choice: ["A", "B", "C"]
metric_list: [{{metric: acc}}]
"""
GROUP = "group: quizzes\ntask: [quiz_many, quiz_few]\naggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"


class Biased(LM):
    """Prefers A, likes the gold letter, and is otherwise at the mercy of a hash of the whole prompt."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()

    def loglikelihood(self, requests: Any, **kwargs: Any) -> list[tuple[float, bool]]:
        return [(self.answer(*request.args), False) for request in requests]

    @staticmethod
    def answer(context: str, continuation: str) -> float:
        letter = continuation.strip()
        number = int(context.rpartition("number ")[2].split()[0].partition("-")[2])
        noise = crc32((context + letter).encode()) % 997 / 300
        return -4 + 2.0 * ("ABC"[number % 3] == letter) + 3.0 * (letter == "A") + noise

    def loglikelihood_rolling(self, requests: Any) -> Any:
        raise AssertionError

    def generate_until(self, requests: Any) -> Any:
        raise AssertionError


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two quizzes, and the demonstrations in the five orders that a run with five prompts would have."""
    folder = tmp_path_factory.mktemp("data")
    rows: dict[str, list[dict[str, Any]]] = {}
    for seed, (name, count) in enumerate({**TASKS, "dev": 6}.items()):
        rows[name] = [{**row, "label": i % 3} for i, row in enumerate(made_sentences(count, seed))]
        write_jsonl(folder / f"{name}.jsonl", rows[name])
    for k, order in enumerate(stratified_orders(SHOTS, PROMPTS, SEED)):
        write_jsonl(folder / f"dev{k}.jsonl", [*(rows["dev"][place] for place in order), *rows["dev"][SHOTS:]])
    return folder


@pytest.fixture(scope="module")
def evaluate(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., dict[str, Any]]]:
    """lm-eval's own `simple_evaluate`, and its own files."""
    import lm_eval
    from lm_eval.api.registry import model_registry, register_model

    register_model("biased-by-prompts")(Biased)

    def run(dev: str, output: Path, **settings: Any) -> dict[str, Any]:
        tasks = tmp_path_factory.mktemp("tasks")
        for name in TASKS:
            (tasks / f"{name}.yaml").write_text(QUIZ.format(name=name, data=data, dev=dev))
        (tasks / "quizzes.yaml").write_text(GROUP)
        metadata = {f"proca.{key}": value for key, value in settings.items()}
        manager = TaskManager(include_path=str(tasks), include_defaults=False, metadata=metadata)
        tracker = EvaluationTracker(output_path=str(output))
        found = lm_eval.simple_evaluate(
            model="biased-by-prompts", model_args={"pretrained": "made/model"}, tasks=["quizzes"], num_fewshot=SHOTS,
            task_manager=manager, evaluation_tracker=tracker, log_samples=True, bootstrap_iters=100,
        )  # fmt: skip
        samples = found.pop("samples")
        tracker.save_results_aggregated(results=found, samples=samples)
        for task in TASKS:
            tracker.save_results_samples(task_name=task, samples=samples[task])
        return found["results"]

    yield run
    model_registry._objs.pop("biased-by-prompts", None)


@pytest.fixture(scope="module")
def in_one_run(evaluate: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("one")
    settings = {"calibrate": True, "prompts": PROMPTS, "scores_dir": str(folder / "scores")}
    return folder, evaluate("dev0", folder / "out", **settings)


@pytest.fixture(scope="module")
def five_runs(evaluate: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("five")
    for k in range(PROMPTS):
        evaluate(f"dev{k}", folder / f"order{k}")
    return folder


def numbers(results: dict[str, Any], task: str) -> dict[str, float]:
    return {f"{metric},{name}": results[task][f"{metric},{name}"] for metric in METRICS for name in OURS}


def test_five_logged_runs_say_what_one_run_with_five_prompts_says(
    in_one_run: tuple[Path, dict], five_runs: Path, tmp_path: Path, capsys: Output
) -> None:
    output = tmp_path / "together"
    assert main(["calibrate", str(five_runs), "--together", "--output", str(output)]) == 0
    printed = capsys.readouterr().out
    [file] = output.rglob("results_*.json")
    document = json.loads(file.read_text())
    for task in TASKS:
        expected = numbers(in_one_run[1], task)
        assert numbers(document["results"], task) == pytest.approx(expected)
        assert expected["acc_sd,bc"] > 0.01  # the order of demonstrations matters to this model
        assert expected["acc_together,bc"] > expected["acc_prompts,bc"]
    for metric in ("acc", "acc_stderr", "acc_prompts", "acc_prompts_stderr", "acc_together", "acc_together_stderr"):
        for name in OURS:
            key = f"{metric},{name}"
            assert document["results"]["quizzes"][key] == pytest.approx(in_one_run[1]["quizzes"][key]), key
    assert "acc is that of the first of 5 prompts" in printed
    assert "acc_together" in printed


def test_logs_and_records_are_those_of_the_run(
    in_one_run: tuple[Path, dict], five_runs: Path, tmp_path: Path, capsys: Output
) -> None:
    output = tmp_path / "together"
    assert main(["calibrate", str(five_runs), "--together", "--output", str(output)]) == 0
    for task in TASKS:
        ours, theirs = ({}, {})
        for found, folder in ((ours, output), (theirs, in_one_run[0] / "out")):
            [log] = folder.rglob(f"samples_{task}_*.jsonl")
            for line in map(json.loads, log.read_text().splitlines()):
                found[line["doc_id"], line["filter"]] = [line[key] for key in ("acc", "acc_prompts", "acc_together")]
        assert ours == {key: value for key, value in theirs.items() if key in ours}
        assert {name for _, name in ours} >= set(OURS)
        [ours, theirs] = (
            json.loads(next(folder.rglob("results_*.json")).read_text())["configs"][task]["metadata"]["proca"]
            for folder in (output, in_one_run[0] / "out")
        )
        for key in ("prompts", "prompt", "prompt_hash", "documents_hash", "folds"):
            assert ours[key] == theirs[key], key
        for name, said in ours["together"].items():
            for key in ("accuracy", "agreement", "estimated_accuracy", "kappa"):
                assert said[key] == pytest.approx(theirs["together"][name][key])
    capsys.readouterr()
    compared = []
    for folder in (output, in_one_run[0] / "out"):
        assert main(["compare", str(folder), "--format", "json"]) == 0
        compared.append(json.loads(capsys.readouterr().out))
    assert compared[0] == compared[1]
    assert "bc x5" in compared[0]["methods"]


def test_runs_that_were_cross_fitted_themselves_can_be_put_together_too(
    evaluate: Callable[..., dict[str, Any]], five_runs: Path, tmp_path: Path, capsys: Output
) -> None:
    for k in (0, 1):
        evaluate(f"dev{k}", tmp_path / "runs" / str(k), calibrate=True)
    plain = [str(five_runs / f"order{k}") for k in (0, 1)]
    found = []
    for name, folders in (("plain", plain), ("calibrated", [str(tmp_path / "runs")])):
        assert main(["calibrate", *folders, "--together", "--output", str(tmp_path / name)]) == 0
        [file] = (tmp_path / name).rglob("results_*.json")
        [log] = (tmp_path / name).rglob("samples_quiz_few_*.jsonl")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        keys = [(line["doc_id"], line["filter"]) for line in lines]
        assert len(keys) == len(set(keys))
        answers = {key: (line["acc"], line["acc_prompts"]) for key, line in zip(keys, lines, strict=True)}
        found.append((numbers(json.loads(file.read_text())["results"], "quiz_few"), answers))
    assert found[0] == found[1]


def test_score_tables_say_the_same(in_one_run: tuple[Path, dict], tmp_path: Path) -> None:
    output = tmp_path / "together.json"
    assert main(["calibrate", str(in_one_run[0] / "scores"), "--together", "--output", str(output)]) == 0
    rows = {(row["task"], row["calibrator"]): row for row in json.loads(output.read_text())}
    for task in TASKS:
        for name in OURS:
            row, run = rows[task, name], in_one_run[1][task]
            assert row["accuracy_prompts"] == pytest.approx(run[f"acc_prompts,{name}"])
            assert row["accuracy_prompts_stderr"] == pytest.approx(run[f"acc_prompts_stderr,{name}"])
            assert row["accuracy_together"] == pytest.approx(run[f"acc_together,{name}"])


def test_runs_that_are_no_set_are_said_to_be_so(five_runs: Path, tmp_path: Path, capsys: Output) -> None:
    one, other = five_runs / "order0", five_runs / "order1"
    assert main(["calibrate", str(one), "--together", "--output", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert "There is nothing to put together." in said
    assert "no other results file has its model, tasks, shots and numbers of documents" in said
    assert not (tmp_path / "out").exists()
    files = [str(one), str(next(other.rglob("results_*.json")))]
    assert main(["calibrate", *files, "--together", "--calibrators", "bc"]) == 0
    assert "acc is that of the first of 2 prompts" in capsys.readouterr().out


def test_the_same_run_twice_is_no_second_prompt(
    evaluate: Callable[..., dict[str, Any]], five_runs: Path, tmp_path: Path, capsys: Output
) -> None:
    evaluate("dev0", tmp_path / "again")
    folders = [str(five_runs / "order0"), str(tmp_path / "again")]
    assert main(["calibrate", *folders, "--together"]) == 1
    said = capsys.readouterr().err
    assert "quiz_many of" in said
    assert "was skipped: its runs cannot be put together: " in said
    assert "has the same prompt as" in said
    assert main(["calibrate", *folders, str(five_runs / "order1"), "--together", "--calibrators", "bc"]) == 0
    assert "has the same prompt as" in capsys.readouterr().out
