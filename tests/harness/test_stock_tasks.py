"""`proca.calibrate=true` on lm-eval's own kind of tasks: plain YAMLs without a line of ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager
from scipy.special import log_softmax

from lm_eval_proca.runs.sample_logs import read_samples
from lm_eval_proca.scores.fitting import accuracies, calibrators_of_run, fold_of_rows
from lm_eval_proca.scores.score_table import ScoreTable
from tests.conftest import ROOT, made_sentences, write_jsonl

OURS = ("bc", "proca")

QUIZ = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}/{rows}.jsonl
    dev: {data}/dev.jsonl
    train: {data}/train.jsonl
test_split: test
fewshot_split: {fewshot_split}
output_type: {output_type}
doc_to_text: "{{{{sentence}}}}\\nAnswer:"
doc_to_target: {target}
doc_to_choice: {choices}
{more}
"""
ACCURACY = "metric_list: [{metric: acc}, {metric: acc_norm}]"
FUNCTIONS = """
def letters(doc):
    return ["A", "B", "C"]

def two_or_three(doc):
    return ["A", "B", "C"][: 2 + doc["label"] % 2]
"""


class Biased(LM):
    """Prefers A, likes the gold letter, and is otherwise at the mercy of a hash; counts what it is asked."""

    def __init__(self):
        super().__init__()
        self.asked = 0

    def loglikelihood(self, requests, **kwargs):
        self.asked += len(requests)
        return [(self.answer(*request.args), False) for request in requests]

    @staticmethod
    def answer(context: str, continuation: str) -> float:
        letter = continuation.strip()
        number = int(context.rpartition("number ")[2].split()[0].partition("-")[2]) if "number" in context else 0
        gold = "ABCD"[number % 3] == letter
        return -4 + 2.0 * gold + 3.0 * (letter == "A") + crc32((context + letter).encode()) % 1000 / 250

    def loglikelihood_rolling(self, requests):
        raise AssertionError

    def generate_until(self, requests):
        return ["A"] * len(requests)


@pytest.fixture(scope="module")
def quizzes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder of tasks: two quizzes in two groups, and others that can and cannot be calibrated."""
    folder = tmp_path_factory.mktemp("quizzes")
    for name, count in {"many": 120, "few": 45, "handful": 9, "dev": 20}.items():
        rows = [{**row, "label": i % 3, "options": ["A", "B", "C"]} for i, row in enumerate(made_sentences(count, 7))]
        write_jsonl(folder / f"{name}.jsonl", rows)
    options = [["A", "B", "C"], ["C", "B", "A"], ["A", "B", "C", "D"], []]
    rows = [{**row, "label": i % 3, "options": options[i % 4]} for i, row in enumerate(made_sentences(200, 8))]
    write_jsonl(folder / "train.jsonl", rows)
    write_jsonl(
        folder / "mixed.jsonl", [{**row, "options": [["A", "B"], ["B", "A"]][i % 2]} for i, row in enumerate(rows)]
    )
    (folder / "functions.py").write_text(FUNCTIONS)
    usual = {"data": folder, "rows": "few", "fewshot_split": "dev", "output_type": "multiple_choice", "target": "label"}
    usual |= {"choices": '["A", "B", "C"]', "more": ACCURACY}

    def write(name: str, **changed: str) -> None:
        (folder / f"{name}.yaml").write_text(QUIZ.format(**{**usual, **changed, "name": name}))

    write("quiz_many", rows="many")
    write("quiz_few")
    write("quiz_handful", rows="handful")
    write("quiz_template", choices="\"{{['A', 'B', 'C']}}\"")
    write("quiz_column", choices="options")
    write("quiz_function", choices="!function functions.letters")
    write("quiz_words", target="\"{{['A', 'B', 'C'][label]}}\"")
    write("quiz_first", more=f"{ACCURACY}\nfewshot_config: {{sampler: first_n}}")
    write("quiz_information", more="metric_list: [{metric: acc}, {metric: acc_mutual_info}, {metric: brier_score}]")
    write("quiz_train", fewshot_split="train")
    write("quiz_train_first", fewshot_split="train", more=f"{ACCURACY}\nfewshot_config: {{sampler: first_n}}")
    write("quiz_lengths", more="metric_list: [{metric: acc_norm}]")
    write("no_mixed", rows="mixed", choices="options")
    write("no_lengths", choices="!function functions.two_or_three")
    write("no_targets", target="[0, 1]")
    write("no_generation", output_type="generate_until", more="metric_list: [{metric: exact_match}]")
    group = "group: {}\ntask: [quiz_many, quiz_few]\naggregate_metric_list: [{{metric: acc, weight_by_size: {}{}}}]\n"
    (folder / "weighted.yaml").write_text(group.format("weighted", "true", ""))
    (folder / "unweighted.yaml").write_text(group.format("unweighted", "false", ", filter_list: [none]"))
    return folder


@pytest.fixture(scope="module")
def evaluate(quizzes: Path) -> Callable[..., dict]:
    """lm-eval's own `simple_evaluate`; `calibrate=False` is the same command without our word."""
    import lm_eval

    def run(*tasks: str, calibrate: bool = True, lm: LM | None = None, settings: dict | None = None, **kwargs) -> dict:
        metadata = {f"proca.{key}": value for key, value in (settings or {}).items()}
        if calibrate:
            metadata["proca.calibrate"] = True
        manager = TaskManager(include_path=str(quizzes), include_defaults=False, metadata=metadata)
        kwargs.setdefault("bootstrap_iters", 100)
        return lm_eval.simple_evaluate(model=lm or Biased(), tasks=list(tasks), task_manager=manager, **kwargs)

    return run


@pytest.fixture(scope="module")
def few(evaluate) -> dict:
    return evaluate("quiz_few")["results"]["quiz_few"]


def rows_of(results: dict, task: str) -> set[str]:
    return {key for key in results["results"][task] if "," in key and "stderr" not in key}


def raw_of(results: dict, task: str) -> dict:
    return {key: value for key, value in results["results"][task].items() if not key.endswith(tuple(OURS))}


def cross_fitted_by_hand(scores: np.ndarray) -> np.ndarray:
    """Batch calibration of each document by the mean log-probability of the other folds' documents."""
    folds = fold_of_rows(*scores.shape)
    log_proba = log_softmax(scores, axis=1)
    means = np.stack([log_proba[folds != fold].mean(axis=0) for fold in range(folds.max() + 1)])
    return np.argmax(log_proba - means[folds], axis=1)


def raw_scores(results: dict, task: str) -> tuple[np.ndarray, np.ndarray]:
    samples = sorted(
        (one for one in results["samples"][task] if one["filter"] == "none"), key=lambda one: one["doc_id"]
    )
    scores = np.array([[resps[0][0] for resps in one["resps"]] for one in samples])
    return scores, np.array([one["doc"]["label"] for one in samples])


class TestRows:
    def test_the_raw_row_and_the_requests_are_those_without_the_word(self, evaluate):
        plain_lm, lm = Biased(), Biased()
        plain = evaluate("quiz_many", calibrate=False, lm=plain_lm, num_fewshot=2)
        ours = evaluate("quiz_many", lm=lm, num_fewshot=2)
        assert raw_of(ours, "quiz_many") == plain["results"]["quiz_many"]
        assert lm.asked == plain_lm.asked == 120 * 3
        raw = [one for one in ours["samples"]["quiz_many"] if one["filter"] == "none"]
        assert raw == plain["samples"]["quiz_many"]

    def test_batch_calibration_by_hand(self, evaluate):
        results = evaluate("quiz_many")
        scores, gold = raw_scores(results, "quiz_many")
        expected = np.mean(cross_fitted_by_hand(scores) == gold)
        assert results["results"]["quiz_many"]["acc,bc"] == expected
        assert expected > results["results"]["quiz_many"]["acc,none"] + 0.1

    def test_metrics_that_mean_nothing_are_on_the_raw_row_only(self, evaluate, few):
        assert {key for key in few if "," in key and "stderr" not in key} == {
            *("acc,none", "acc_norm,none"),
            *(f"acc,{name}" for name in OURS),
        }
        lm = Biased()
        information = evaluate("quiz_information", lm=lm)
        assert rows_of(information, "quiz_information") == {
            *("acc,none", "acc_mutual_info,none", "brier_score,none"),
            *(f"{metric},{name}" for metric in ("acc", "brier_score") for name in OURS),
        }
        assert lm.asked == 45 * 3 * 2
        assert raw_of(information, "quiz_information") == raw_of(
            evaluate("quiz_information", calibrate=False), "quiz_information"
        )
        assert information["results"]["quiz_information"]["acc,proca"] == few["acc,proca"]

    def test_a_task_with_no_other_metric_gets_accuracy_on_the_calibrated_rows(self, evaluate, few):
        results = evaluate("quiz_lengths")
        assert rows_of(results, "quiz_lengths") == {"acc_norm,none", *(f"acc,{name}" for name in OURS)}
        assert {key: results["results"]["quiz_lengths"][key] for key in few if key.endswith(OURS)} == {
            key: value for key, value in few.items() if key.endswith(OURS)
        }

    @pytest.mark.parametrize("task", ["quiz_template", "quiz_column", "quiz_function", "quiz_words"])
    def test_the_requests_decide_whether_labels_are_fixed(self, evaluate, few, task):
        """However the same three labels are written: the numbers are those of the plain list."""
        other = evaluate(task)["results"][task]
        assert {key: few[key] for key in few if key not in ("alias", "name")} == {
            key: other[key] for key in other if key not in ("alias", "name")
        }

    def test_limit_and_samples_choose_the_rows_to_fit_on(self, evaluate, few):
        limited = evaluate("quiz_many", limit=45)
        chosen = evaluate("quiz_many", samples={"quiz_many": list(range(45))})
        for key in ("acc,none", "acc,bc", "acc,proca"):
            assert limited["results"]["quiz_many"][key] == few[key]
            assert chosen["results"]["quiz_many"][key] == few[key]

    def test_groups_average_every_row_like_the_raw_one(self, evaluate):
        for group, weights in {"weighted": (120, 45), "unweighted": (1, 1)}.items():
            results = evaluate(group)
            for name in ("none", *OURS):
                tasks = [results["results"][task][f"acc,{name}"] for task in ("quiz_many", "quiz_few")]
                assert results["groups"][group][f"acc,{name}"] == pytest.approx(np.average(tasks, weights=weights))
                assert results["groups"][group][f"acc_stderr,{name}"] > 0
            assert raw_of(results, group) == raw_of(evaluate(group, calibrate=False), group) | {
                "sample_count": results["results"][group]["sample_count"]
            }

    def test_the_record_and_the_score_table(self, evaluate, tmp_path: Path):
        results = evaluate("quiz_few", settings={"scores_dir": str(tmp_path)}, num_fewshot=1)
        record = results["configs"]["quiz_few"]["metadata"]["proca"]
        assert record["labels"] == ["A", "B", "C"]
        assert (record["eval_rows"], record["estimate_size"], record["num_fewshot"]) == (45, 0, 1)
        assert record["fits"].keys() == set(OURS)
        assert record["not_calibrated"].keys() == {"proca_h"}
        (file,) = tmp_path.glob("quiz_few-1shot-seed1234-*.parquet")
        table = ScoreTable.load(file)
        scores, gold = raw_scores(results, "quiz_few")
        np.testing.assert_array_equal(table.scores_of("eval"), scores)
        np.testing.assert_array_equal(table.gold_of("eval"), gold)
        assert accuracies(table, calibrators_of_run(table)) == {
            name: results["results"]["quiz_few"][f"acc,{name}"] for name in ("none", *OURS)
        }


class TestWhatIsSaid:
    def test_tasks_that_cannot_be_calibrated_run_unchanged_and_are_counted_in_one_line(self, evaluate, caplog):
        caplog.set_level("INFO")
        names = ("no_mixed", "no_lengths", "no_targets", "no_generation")
        results = evaluate("quiz_few", *names)
        plain = evaluate(*names, calibrate=False)
        for name in names:
            assert results["results"][name] == plain["results"][name]
        (line,) = [text for text in caplog.messages if "cannot be calibrated" in text]
        assert line.startswith("proca.calibrate: 4 of the tasks cannot be calibrated and run unchanged (")
        for part in (
            "several gold labels per document: 1 task (no_targets)",
            "generates text: 1 task (no_generation)",
            "choices differ between documents: 2 tasks (no_mixed, no_lengths)",
        ):
            assert part in line
        assert sum("calibrated rows for 1 task (quiz_few)" in text for text in caplog.messages) == 1

    def test_too_few_rows_cost_the_calibrated_rows_and_a_sentence(self, evaluate, caplog):
        results = evaluate("quiz_handful", "quiz_few")
        assert rows_of(results, "quiz_handful") == {"acc,none", "acc_norm,none"}
        assert f"acc,{OURS[0]}" in rows_of(results, "quiz_few")
        (sentence,) = set(results["configs"]["quiz_handful"]["metadata"]["proca"]["not_calibrated"].values())
        assert sentence.startswith("9 evaluation documents are too few to calibrate 3 labels on themselves")
        assert f"quiz_handful: no row for bc, proca, proca_h: {sentence}" in caplog.messages

    def test_demonstrations_that_change_with_the_document_are_told_once(self, evaluate, caplog):
        caplog.set_level("INFO")
        evaluate("quiz_many", "quiz_few", "quiz_first", num_fewshot=2)
        (line,) = [text for text in caplog.messages if "every document has its own demonstrations" in text]
        assert "in 2 tasks (quiz_many, quiz_few), so" in line
        caplog.clear()
        evaluate("quiz_many", num_fewshot=0)
        assert "its own demonstrations" not in caplog.text

    def test_settings_that_lm_evals_tasks_do_not_read(self, evaluate, caplog):
        evaluate("quiz_few", settings={"eval_size": 5})
        assert "proca.calibrate: proca.eval_size has no effect on lm-eval's own tasks" in caplog.text

    def test_scores_that_are_no_numbers_cost_the_calibrated_rows_only(self, evaluate, caplog):
        class Broken(Biased):
            def loglikelihood(self, requests, **kwargs):
                return [(float("nan"), False), *super().loglikelihood(requests)[1:]]

        results = evaluate("quiz_few", lm=Broken())
        assert rows_of(results, "quiz_few") == {"acc,none", "acc_norm,none"}
        assert "The model gave nan as the score of label 'A' for eval document 0" in caplog.text


@pytest.mark.slow
def test_one_and_two_processes_and_the_logged_samples_agree(
    tiny_gpt2: Path, lm_eval_project: Path, quizzes: Path, tmp_path: Path
):
    """By the command, with a real model; `calibrate` on the sample log makes the same rows without one."""
    numbers = {}
    for processes in (1, 2):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"] if processes > 1 else []
        command = [sys.executable, *launcher, "-m", "lm_eval", "--model", "hf", "--model_args"]
        command += [f"pretrained={tiny_gpt2}", "--device", "cpu", "--batch_size", "1", "--tasks", "weighted"]
        command += ["--include_path", str(quizzes), "--log_samples", "--output_path", str(tmp_path / str(processes))]
        command += ["--metadata", "proca.calibrate=true"]
        path = os.pathsep.join([str(lm_eval_project), str(ROOT)])
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stderr.count("calibrated rows for 2 tasks (quiz_many, quiz_few)") == 1
        (file,) = (tmp_path / str(processes)).rglob("results_*.json")
        numbers[processes] = json.loads(file.read_text())["results"]
        for task in ("quiz_many", "quiz_few"):
            (log,) = (tmp_path / str(processes)).rglob(f"samples_{task}_*.jsonl")
            table = read_samples(log)
            calibrators = {name: one for name, one in calibrators_of_run(table).items() if name in OURS}
            again = accuracies(table, calibrators)
            assert again == {name: numbers[processes][task][f"acc,{name}"] for name in ("none", *OURS)}
    assert {key for key in numbers[1]["weighted"] if key.startswith("acc,")} == {
        "acc,none",
        "acc,bc",
        "acc,proca",
    }
    for task, values in numbers[1].items():
        for key, value in values.items():
            if key.startswith("acc"):  # lm-eval adds up the documents of one process after the other's
                assert numbers[2][task][key] == pytest.approx(value), (task, key)


class TestRowsOfAnotherSplit:
    """`proca.estimate_split`: unlabeled rows are scored too, as for the nine tasks."""

    def test_they_are_what_calibrators_are_fitted_on(self, evaluate, tmp_path: Path, caplog):
        caplog.set_level("INFO")
        plain_lm, lm = Biased(), Biased()
        plain = evaluate("quiz_train", calibrate=False, lm=plain_lm)
        settings = {"estimate_split": "train", "estimate_size": 60, "scores_dir": str(tmp_path)}
        ours = evaluate("quiz_train", lm=lm, settings=settings)
        assert raw_of(ours, "quiz_train") == plain["results"]["quiz_train"]
        assert (plain_lm.asked, lm.asked) == (45 * 3, (45 + 60) * 3)
        (file,) = tmp_path.glob("*.parquet")
        table = ScoreTable.load(file)
        evaluated, unlabeled = (log_softmax(table.scores_of(role), axis=1) for role in ("eval", "estimate"))
        predicted = np.argmax(evaluated - unlabeled.mean(axis=0), axis=1)
        assert ours["results"]["quiz_train"]["acc,bc"] == np.mean(predicted == table.gold_of("eval"))
        assert "calibrated rows for 1 task (quiz_train), fitted on unlabeled rows of the split train" in caplog.text
        assert "proca.calibrate: the rows of proca.estimate_split add 180 requests" in caplog.text

    def test_only_rows_with_the_labels_of_the_task_are_drawn(self, evaluate):
        """Of the 200, every fourth has them; the others have another order, a further choice or none."""
        lm = Biased()
        results = evaluate("quiz_column", lm=lm, settings={"estimate_split": "train", "estimate_size": 200})
        assert results["configs"]["quiz_column"]["metadata"]["proca"]["estimate_size"] == 50
        assert lm.asked == (45 + 50) * 3

    @pytest.mark.parametrize("more", ["", "fewshot_config: {sampler: first_n}"])
    def test_no_row_is_evaluated_or_a_demonstration(self, quizzes, more):
        """Demonstrations come from the same split; the raw requests stay as they are, also in a second evaluation."""
        name = "quiz_train_first" if more else "quiz_train"
        requests = []
        for settings in ({}, {"proca.calibrate": True, "proca.estimate_split": "train", "proca.estimate_size": 60}):
            manager = TaskManager(include_path=str(quizzes), include_defaults=False, metadata=settings)
            task = manager.load(name)["tasks"][name]
            task.set_config("num_fewshot", 3)
            task.set_fewshot_seed(1)
            task.build_all_requests()
            requests.append([one.args for one in task.instances])
        plain, ours = requests
        assert ours[: len(plain)] == plain
        further = {context for context, _ in ours[len(plain) :]}
        assert len(further) == 60
        scored = {context.split("\n\n")[-1] for context in further}
        shown = {part.rpartition("\n")[0] for context in further for part in context.split("\n\n")[:-1]}
        assert not {text.rpartition("\n")[0] for text in scored} & shown
        assert not scored & {context.split("\n\n")[-1] for context, _ in plain}
        assert len(shown) == 3 if more else len(shown) > 20

    @pytest.mark.parametrize(
        ("split", "reason"),
        [
            ("unlabeled", "no split unlabeled"),
            ("test", "the split test is the evaluated one"),
            ("dev", "the split dev has only 0 usable rows"),
        ],
    )
    def test_without_such_rows_evaluation_rows_are_cross_fitted(self, evaluate, few, caplog, split, reason):
        caplog.set_level("INFO")
        lm = Biased()
        results = evaluate("quiz_few", lm=lm, settings={"estimate_split": split})
        assert results["results"]["quiz_few"] == few
        assert lm.asked == 45 * 3
        assert f"fitted on their own evaluation rows with no further request ({reason})" in caplog.text


class TestPrompts:
    def test_five_orders_of_fixed_demonstrations(self, evaluate, tmp_path: Path):
        """As for MMLU: the raw row stays lm-eval's, the others stand behind orders of the same demonstrations."""
        plain = evaluate("quiz_first", calibrate=False, num_fewshot=4)
        settings = {"prompts": 5, "scores_dir": str(tmp_path)}
        ours = evaluate("quiz_first", num_fewshot=4, settings=settings)
        values = ours["results"]["quiz_first"]
        assert plain["results"]["quiz_first"].items() <= values.items()
        tables = sorted(map(ScoreTable.load, tmp_path.iterdir()), key=lambda table: table.record.prompt)
        assert [table.record.vary for table in tables] == ["orders"] * 5
        assert len({table.record.prompt_hash for table in tables}) == 5
        right = [np.argmax(table.scores, axis=1) == table.gold for table in tables]
        assert values["acc_prompts,none"] == pytest.approx(np.mean(right))
        by_prompt = np.stack([cross_fitted_by_hand(table.scores) == table.gold for table in tables])
        assert values["acc_prompts,bc"] == pytest.approx(by_prompt.mean())
        assert values["acc_worst,bc"] == pytest.approx(by_prompt.mean(axis=1).min())

    def test_requests_are_those_of_the_demonstrations_in_another_order(self, evaluate):
        class Listening(Biased):
            def loglikelihood(self, requests, **kwargs):
                self.contexts = [request.args[0] for request in requests if request.idx == 0]
                return super().loglikelihood(requests, **kwargs)

        lm = Listening()
        evaluate("quiz_first", lm=lm, num_fewshot=3, settings={"prompts": 4})
        assert len(lm.contexts) == 4 * 45
        heads = {context.rpartition("\n\n")[0] for context in lm.contexts}
        assert len(heads) == 4
        assert len({tuple(sorted(head.split("\n\n"))) for head in heads}) == 1

    def test_further_draws_where_every_document_has_its_own(self, evaluate, tmp_path: Path):
        folders = [tmp_path / name for name in ("one", "two", "other")]
        for folder, seed in zip(folders, (1, 1, 2), strict=True):
            settings = {"prompts": 3, "scores_dir": str(folder)}
            evaluate("quiz_few", num_fewshot=2, settings=settings, fewshot_random_seed=seed)
        once, again, other = (
            sorted(map(ScoreTable.load, folder.iterdir()), key=lambda table: table.record.prompt) for folder in folders
        )
        assert [table.record.vary for table in once] == ["demonstrations"] * 3
        assert once == again
        assert all(not np.array_equal(one.scores, its.scores) for one, its in zip(once, other, strict=True))
        assert not np.array_equal(once[1].scores, once[2].scores)

    def test_a_task_that_has_only_one_prompt_says_so(self, evaluate, caplog):
        with caplog.at_level("INFO", "lm_eval"):
            results = evaluate("quiz_few", settings={"prompts": 3})
        assert "one prompt only for 1 task (quiz_few): without demonstrations" in caplog.text
        assert "acc_prompts,bc" not in results["results"]["quiz_few"]
        assert record_of(results, "quiz_few")["prompts"] == 1

    def test_unlabeled_rows_of_another_split_stand_behind_every_prompt(self, evaluate, tmp_path: Path):
        settings = {"prompts": 3, "estimate_split": "train", "estimate_size": 60, "scores_dir": str(tmp_path)}
        evaluate("quiz_train_first", num_fewshot=3, settings=settings)
        tables = list(map(ScoreTable.load, tmp_path.iterdir()))
        assert [int((table.role == "estimate").sum()) for table in tables] == [60] * 3
        assert len({table.record.unlabeled_hash for table in tables}) == 1


def record_of(results: dict, task: str) -> dict:
    return results["configs"][task]["metadata"]["proca"]


def test_a_run_chooses_its_calibrators(evaluate, few: dict, caplog) -> None:
    results = evaluate("quiz_few", settings={"calibrators": "bc/conca"})
    assert rows_of(results, "quiz_few") == {"acc,none", "acc_norm,none", "acc,bc"}
    assert results["results"]["quiz_few"]["acc,bc"] == few["acc,bc"]
    assert "proca.calibrators: conca needs content-free inputs" in caplog.text
    results = evaluate("quiz_few", settings={"calibrators": "bc/bc_prob/domain/ucpa"})
    assert rows_of(results, "quiz_few") == {"acc,none", "acc_norm,none", "acc,bc", "acc,bc_prob", "acc,ucpa"}
    assert "proca.calibrators: domain needs content-free inputs or random words" in caplog.text
