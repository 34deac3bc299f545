"""CalibratedTask through lm-eval's own evaluator, with a tiny real language model."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow.parquet as pq
import pytest
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager

from lm_eval_proca.calibration.registry import get_calibrator
from lm_eval_proca.errors import TaskError
from lm_eval_proca.scores.score_table import ScoreTable
from tests.conftest import ROOT, made_sentences, write_jsonl

FILTERS = {"none", "bc", "conca", "proca"}  # and proca_h, where a model gives hidden states


def record_of(results: dict, task: str = "proca_sst2") -> dict:
    return results["configs"][task]["metadata"]["proca"]


def samples_of(results: dict, filter_name: str, task: str = "proca_sst2") -> dict[int, dict]:
    return {sample["doc_id"]: sample for sample in results["samples"][task] if sample["filter"] == filter_name}


@pytest.fixture(scope="module")
def small():
    return {"estimate_size": 60}


class TestScores:
    def test_four_rows_and_raw_scores_of_the_stock_task(self, evaluate, tiny_lm, data_dir, small):
        """Raw scores are those of the same YAML run as a stock task with the same demonstrations."""
        import lm_eval
        from lm_eval.api.task import ConfigurableTask
        from lm_eval.tasks._yaml_loader import load_yaml

        tiny_lm.batch_size_per_gpu, before = 1, tiny_lm.batch_size_per_gpu
        try:
            chosen = {"proca_sst2": list(range(0, 120, 8))}
            ours = evaluate("proca_sst2", settings=small, num_fewshot=3, fewshot_random_seed=5, samples=chosen)
            pool = [json.loads(line) for line in (data_dir / "sst2" / "train.jsonl").read_text().splitlines()]
            config = load_yaml(ROOT / "task_configs" / "proca_sst2.yaml")
            for key in ("class", "calibration", "dataset_name", "training_split", "fewshot_split"):
                config.pop(key, None)
            config["dataset_path"] = str(data_dir / "sst2")
            config["metric_list"] = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
            shown = [pool[i] for i in record_of(ours)["demonstrations"]]
            config["fewshot_config"] = {"sampler": "first_n", "samples": shown}
            stock = lm_eval.simple_evaluate(
                model=tiny_lm,
                tasks=[ConfigurableTask(config=config)],
                task_manager=TaskManager(include_defaults=False),
                num_fewshot=3,
                samples=chosen,
                bootstrap_iters=0,
            )
        finally:
            tiny_lm.batch_size_per_gpu = before
        assert {key.split(",")[1] for key in ours["results"]["proca_sst2"] if key.startswith("acc,")} == FILTERS
        assert ours["results"]["proca_sst2"]["acc,none"] == stock["results"]["proca_sst2"]["acc,none"]
        raw, expected = samples_of(ours, "none"), samples_of(stock, "none")
        assert raw.keys() == expected.keys()
        for doc_id, sample in raw.items():
            scores, greedy = zip(*(resps[0] for resps in sample["resps"]), strict=True)
            stock_scores, stock_greedy = zip(*(resps[0] for resps in expected[doc_id]["resps"]), strict=True)
            assert scores == pytest.approx(stock_scores, abs=1e-5)
            assert greedy == stock_greedy
            assert sample["arguments"] == expected[doc_id]["arguments"]
            assert sample["doc_hash"] == expected[doc_id]["doc_hash"]

    def test_filters_are_the_calibrators_on_the_score_table(self, evaluate, small, tmp_path: Path):
        results = evaluate("proca_sst2", settings={**small, "scores_dir": str(tmp_path)}, num_fewshot=2)
        (file,) = tmp_path.glob("*.parquet")
        table = ScoreTable.load(file)
        assert {role: len(table.scores_of(role)) for role in ("eval", "estimate", "content_free")} == {
            "eval": 120,
            "estimate": 60,
            "content_free": 3,
        }
        gold = table.gold_of("eval")
        assert results["results"]["proca_sst2"]["acc,none"] == np.mean(table.scores_of("eval").argmax(1) == gold)
        for name in ("bc", "conca", "proca"):
            calibrator = get_calibrator(name)()
            calibrator.fit(table.scores_of(calibrator.fits_on))
            predicted = calibrator.predict(table.scores_of("eval"))
            assert results["results"]["proca_sst2"][f"acc,{name}"] == np.mean(predicted == gold), name
            logged = samples_of(results, name)
            assert [int(np.argmax([score for score, _ in logged[i]["filtered_resps"]])) for i in range(120)] == list(
                predicted
            )

    def test_no_label_of_the_estimate_set_reaches_the_numbers(self, evaluate, data_dir, small, tmp_path: Path):
        """Another labeling of the same rows changes nothing at 0 shots, where no demonstration shows a label."""
        rows = [json.loads(line) for line in (data_dir / "sst2" / "train.jsonl").read_text().splitlines()]
        write_jsonl(tmp_path / "sst2" / "train.jsonl", [{**row, "label": 0} for row in rows])
        write_jsonl(
            tmp_path / "sst2" / "validation.jsonl",
            [json.loads(line) for line in (data_dir / "sst2" / "validation.jsonl").read_text().splitlines()],
        )
        with_labels = evaluate("proca_sst2", settings=small, num_fewshot=0)
        relabeled = evaluate("proca_sst2", settings={**small, "data_dir": str(tmp_path)}, num_fewshot=0)
        assert with_labels["results"] == relabeled["results"]

    def test_a_split_without_labels_can_be_the_estimate_set(self, evaluate, data_dir, small, tmp_path: Path):
        rows = [{"sentence": row["sentence"]} for row in made_sentences(80, seed=9)]
        for split in ("train", "validation"):
            text = (data_dir / "sst2" / f"{split}.jsonl").read_text()
            write_jsonl(tmp_path / "sst2" / f"{split}.jsonl", [json.loads(line) for line in text.splitlines()])
        write_jsonl(tmp_path / "sst2" / "unlabeled.jsonl", rows)
        results = evaluate(
            "proca_sst2",
            settings={**small, "data_dir": str(tmp_path), "estimate_split": "unlabeled"},
            num_fewshot=2,
        )
        assert record_of(results)["estimate_source"] == "split:unlabeled"

    def test_the_embedded_demo_has_an_estimate_set_without_labels(self, evaluate):
        results = evaluate("proca_demo", settings={"estimate_size": 40}, num_fewshot=2, limit=12)
        assert results["results"]["proca_demo"]["sample_len"] == 12
        assert record_of(results, "proca_demo")["estimate_source"] == "split:estimate"


class TestSeedsAndSets:
    def test_the_same_command_twice_and_another_seed(self, evaluate, small):
        once, again = (evaluate("proca_sst2", settings=small, num_fewshot=2, fewshot_random_seed=3) for _ in range(2))
        other = evaluate("proca_sst2", settings=small, num_fewshot=2, fewshot_random_seed=4)
        assert once["results"] == again["results"]
        assert record_of(once) == record_of(again)
        for key in ("demonstrations", "prompt_hash", "unlabeled_hash"):
            assert record_of(once)[key] != record_of(other)[key], key
        assert record_of(once)["documents_hash"] == record_of(other)["documents_hash"]

    def test_estimate_seed_alone(self, evaluate, small):
        first = evaluate("proca_sst2", settings={**small, "estimate_seed": 1}, num_fewshot=2, limit=10)
        second = evaluate("proca_sst2", settings={**small, "estimate_seed": 2}, num_fewshot=2, limit=10)
        assert record_of(first)["prompt_hash"] == record_of(second)["prompt_hash"]
        assert record_of(first)["unlabeled_hash"] != record_of(second)["unlabeled_hash"]

    def test_one_prompt_and_disjoint_sets(self, evaluate, small, tiny_lm, data_dir):
        """Evaluated, estimate and demonstrated sentences never meet, although the train file repeats some of them."""
        shown: list[tuple[str, str]] = []
        stock = tiny_lm.loglikelihood

        def listen(requests, **kwargs):
            shown.extend(request.args for request in requests)
            return stock(requests, **kwargs)

        tiny_lm.loglikelihood = listen
        try:
            results = evaluate("proca_sst2", settings={"estimate_size": 200}, num_fewshot=4)
        finally:
            del tiny_lm.loglikelihood
        contexts = list(dict.fromkeys(context for context, _ in shown))
        assert len(contexts) == 120 + 200 + 3
        heads = {context.rpartition("\n\n")[0] for context in contexts}
        assert len(heads) == 1, "all documents stand behind one prompt"
        tails = [context.rpartition("\n\n")[2] for context in contexts]
        assert len(set(tails)) == len(tails), "no estimate row is evaluated"
        demonstrations = [part.partition("\nSentiment:")[0] for part in heads.pop().split("\n\n")]
        assert len(demonstrations) == 4
        assert not {tail.partition("\nSentiment:")[0] for tail in tails} & set(demonstrations)
        assert tails[-3:] == ["Review: N/A\nSentiment:", "Review: \nSentiment:", "Review: [MASK]\nSentiment:"]
        assert record_of(results)["estimate_size"] == 200

    def test_estimate_rows_that_are_evaluated_or_demonstrated_are_left_out(self, evaluate, tmp_path: Path, caplog):
        evaluated = made_sentences(20, seed=2)
        write_jsonl(tmp_path / "sst2" / "train.jsonl", evaluated + made_sentences(30, seed=1))
        write_jsonl(tmp_path / "sst2" / "validation.jsonl", evaluated)
        settings = {"data_dir": str(tmp_path), "estimate_size": 27}
        results = evaluate("proca_sst2", settings=settings, num_fewshot=4)
        assert record_of(results)["estimate_size"] == 26
        assert (
            "proca_sst2: estimate_size is 27, but the split train has 50 rows, and 20 of them have the text of an "
            "evaluated row, 4 that of a demonstration; the other 26 are all taken"
        ) in caplog.messages
        caplog.clear()
        evaluate("proca_sst2", settings={**settings, "estimate_size": 26}, num_fewshot=4)
        assert "estimate_size" not in caplog.text

    def test_limit_keeps_the_estimate_set_and_mixes_the_classes(self, evaluate, small):
        results = evaluate("proca_sst2", settings=small, num_fewshot=0, limit=50)
        labels = [sample["doc"]["label"] for sample in samples_of(results, "none").values()]
        assert len(labels) == 50
        assert 10 < sum(labels) < 40, "the validation file is sorted by class"
        assert record_of(results)["estimate_size"] == 60
        assert record_of(results)["limit"] == 50
        smaller = evaluate("proca_sst2", settings=small, num_fewshot=0, limit=20)
        assert samples_of(smaller, "none").keys() < samples_of(results, "none").keys()

    def test_samples_picks_documents(self, evaluate, small, tmp_path: Path):
        results = evaluate(
            "proca_sst2",
            settings={**small, "scores_dir": str(tmp_path)},
            num_fewshot=0,
            samples={"proca_sst2": [3, 70, 110]},
        )
        assert results["results"]["proca_sst2"]["sample_len"] == 3
        (file,) = tmp_path.glob("*.parquet")
        assert ScoreTable.load(file).index_of("eval").tolist() == [3, 70, 110]
        everything = samples_of(evaluate("proca_sst2", settings=small, num_fewshot=0), "proca")
        for doc_id, sample in samples_of(results, "proca").items():
            scores, same = ([score for score, _ in one["filtered_resps"]] for one in (sample, everything[doc_id]))
            assert scores == pytest.approx(same, abs=1e-3)

    def test_eval_size_is_a_fixed_part(self, evaluate, small):
        first = evaluate("proca_sst2", settings={**small, "eval_size": 30}, num_fewshot=0, fewshot_random_seed=1)
        second = evaluate("proca_sst2", settings={**small, "eval_size": 30}, num_fewshot=0, fewshot_random_seed=2)
        assert first["results"]["proca_sst2"]["sample_len"] == 30
        assert record_of(first)["documents_hash"] == record_of(second)["documents_hash"]

    def test_demonstration_counts_and_order(self, evaluate, small):
        settings = {**small, "demonstration_counts": "1/3"}
        first = evaluate("proca_sst2", settings=settings, num_fewshot=4, limit=8)
        second = evaluate("proca_sst2", settings={**settings, "order_seed": 1}, num_fewshot=4, limit=8)
        assert sorted(record_of(first)["demonstrations"]) == sorted(record_of(second)["demonstrations"])
        assert record_of(first)["demonstrations"] != record_of(second)["demonstrations"]


class TestOwnTask:
    def test_a_users_own_yaml_gets_the_default_filters(self, evaluate, own_task):
        results = evaluate("own_sentiment", include=own_task(), num_fewshot=1)
        assert {key.split(",")[1] for key in results["results"]["own_sentiment"] if key.startswith("acc,")} == FILTERS

    def test_a_task_that_names_its_files_reads_them_whatever_the_data_dir(self, evaluate, own_task, data_dir, tmp_path):
        files = {split: str(data_dir / "sst2" / f"{split}.jsonl") for split in ("train", "validation")}
        more = f"dataset_kwargs: {json.dumps({'data_files': files})}"
        folder = own_task(more=more, drop="data_folder")
        yaml = folder / "own_sentiment.yaml"
        yaml.write_text(yaml.read_text().replace("somebody/reviews", "json"))
        results = evaluate("own_sentiment", include=folder, settings={"data_dir": str(tmp_path)}, num_fewshot=0)
        assert set(results["results"]["own_sentiment"]) >= {"acc,none", "acc,proca"}

    def test_filter_parameters_come_from_the_yaml(self, evaluate, own_task):
        more = """
filter_list:
  - name: none
    filter: [{function: take_first}]
  - name: by_likelihood
    filter: [{function: proca, selection: likelihood, n_init: 3}]
"""
        results = evaluate("own_sentiment", include=own_task(more=more), num_fewshot=0)
        fit = record_of(results, "own_sentiment")["fits"]["by_likelihood"]
        assert fit["params"]["selection"] == "likelihood"
        assert fit["params"]["n_init"] == 3

    def test_only_what_the_filters_need_is_scored(self, evaluate, own_task, tmp_path: Path):
        more = (
            "filter_list: [{name: none, filter: [{function: take_first}]}, {name: conca, filter: [{function: conca}]}]"
        )
        settings = {"scores_dir": str(tmp_path / "scores")}
        evaluate("own_sentiment", include=own_task(more=more), settings=settings, num_fewshot=0)
        (file,) = (tmp_path / "scores").glob("*.parquet")
        assert set(ScoreTable.load(file).role) == {"eval", "content_free"}

    @pytest.mark.parametrize(
        ("given", "rows", "scored"),
        [
            ("bc", {"none", "bc"}, {"eval", "estimate"}),
            ("proca/none", {"none", "by_likelihood"}, {"eval", "estimate"}),
            ("none", {"none"}, {"eval"}),
            ("bc,conca", {"none", "bc", "conca"}, {"eval", "estimate", "content_free"}),
        ],
    )
    def test_a_run_chooses_its_calibrators(self, evaluate, own_task, tmp_path: Path, given, rows, scored):
        """Those of the YAML with their parameters, others with the usual ones; only what they need is scored."""
        more = """
filter_list:
  - {name: none, filter: [{function: take_first}]}
  - {name: by_likelihood, filter: [{function: proca, selection: likelihood, n_init: 3}]}
"""
        settings = {"calibrators": given, "scores_dir": str(tmp_path / "scores")}
        results = evaluate("own_sentiment", include=own_task(more=more), settings=settings, num_fewshot=0)
        metrics = results["results"]["own_sentiment"]
        assert {key.split(",")[1] for key in metrics if key.startswith("acc,")} == rows
        (file,) = (tmp_path / "scores").glob("*.parquet")
        assert set(ScoreTable.load(file).role) == scored

    def test_estimate_file(self, evaluate, own_task, tmp_path: Path):
        file = tmp_path / "made.jsonl"
        header = {"lm_eval_proca": {"task": "own_sentiment", "model": "somebody"}}
        rows = [{"sentence": row["sentence"], "generated_label": "good"} for row in made_sentences(40, seed=8)]
        write_jsonl(file, [header, *rows])
        results = evaluate("own_sentiment", include=own_task(), settings={"estimate_file": str(file)}, num_fewshot=1)
        record = record_of(results, "own_sentiment")
        assert record["estimate_size"] == 40
        assert record["estimate_source"] == f"file:{file}"
        assert record["generated_by"]["model"] == "somebody"

        write_jsonl(file, [{"lm_eval_proca": {"task": "other"}}, *rows])
        with pytest.raises(TaskError, match="was generated for the task other"):
            evaluate("own_sentiment", include=own_task(), settings={"estimate_file": str(file)})
        write_jsonl(file, [*rows, {"text": "no such field"}])
        with pytest.raises(TaskError, match=r"line 41 of .* has no text in field sentence"):
            evaluate("own_sentiment", include=own_task(), settings={"estimate_file": str(file)})


class Judge(LM):
    """Answers with a given function of (context, continuation); for scores that no real model gives."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def loglikelihood(self, requests, **kwargs):
        return [(self.answer(*request.args), False) for request in requests]

    def loglikelihood_rolling(self, requests):
        raise AssertionError

    def generate_until(self, requests):
        raise AssertionError


class TestScoresThatCannotBeCalibrated:
    """Paid scores are never lost: raw accuracy and the score table stay, and so do all other rows and tasks."""

    @pytest.mark.parametrize("bad", [float("nan"), float("-inf")])
    @pytest.mark.parametrize(
        ("where", "document", "lost"),
        [
            ("number 2-14 ", "eval document 7", {"bc", "conca", "proca", "proca_h"}),
            ("number 1-", "estimate document 0", {"bc", "proca", "proca_h"}),
            ("[MASK]", "content-free document 2", {"conca"}),
        ],
    )
    def test_not_a_number(self, evaluate, small, tmp_path: Path, caplog, bad, where, document, lost):
        def answer(context: str, continuation: str) -> float:
            return bad if where in context and "Positive" in continuation else -1.0 - crc32(context.encode()) % 7

        settings = {**small, "scores_dir": str(tmp_path)}
        results = evaluate("proca_sst2", settings=settings, lm=Judge(answer), num_fewshot=0)
        record = record_of(results)
        assert {
            key.split(",")[1] for key in results["results"]["proca_sst2"] if key.startswith("acc,")
        } == FILTERS - lost
        assert record["fits"].keys() == FILTERS - lost - {"none"}
        assert record["not_calibrated"].keys() == lost | {"proca_h"}
        (sentence,) = {record["not_calibrated"][name] for name in lost}
        assert f"gave {bad} as the score of label 'Positive' for {document}" in sentence
        (logged,) = [text for text in caplog.messages if "finite" in text]
        assert logged == f"proca_sst2: no row for {', '.join(sorted(lost))}: {sentence}"
        (file,) = tmp_path.glob("*.parquet")
        table = pq.read_table(file)
        assert not np.isfinite(table["score_1"].to_numpy()).all(), "what was paid for is kept as it is"

    def test_a_score_table_that_cannot_be_written(self, evaluate, small, tmp_path: Path, monkeypatch, caplog):
        def full(*args, **kwargs):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(ScoreTable, "save", full)
        results = evaluate("proca_sst2", settings={**small, "scores_dir": str(tmp_path)}, limit=10)
        assert "acc,proca" in results["results"]["proca_sst2"]
        assert f"cannot be written to {tmp_path} ([Errno 28] No space left on device)" in caplog.text

    def test_an_end_in_the_middle_of_the_fits_costs_no_score(self, evaluate, small, tmp_path: Path, monkeypatch):
        def interrupted(*args, **kwargs):
            raise KeyboardInterrupt

        monkeypatch.setattr(get_calibrator("proca"), "fit", interrupted)
        settings = {**small, "scores_dir": str(tmp_path)}
        with pytest.raises(KeyboardInterrupt):
            evaluate("proca_sst2", settings=settings, lm=Judge(lambda *request: -1.0), num_fewshot=0)
        (file,) = tmp_path.glob("*.parquet")
        assert len(ScoreTable.load(file).scores) == 120 + 60 + 3

    def test_one_calibrator_that_cannot_be_fitted(self, evaluate, own_task):
        more = "filter_list: [{name: raw, filter: [{function: take_first}]}, {name: bc, filter: [{function: bc}]}, "
        more += "{name: strict, filter: [{function: proca, reg_covar: 0, n_init: 2}]}]"
        results = evaluate("own_sentiment", include=own_task(more=more), lm=Judge(lambda *request: -1.0))
        assert set(results["results"]["own_sentiment"]) >= {"acc,raw", "acc,bc"}
        assert "acc,strict" not in results["results"]["own_sentiment"]
        assert "not positive definite" in record_of(results, "own_sentiment")["not_calibrated"]["strict"]

    def test_a_group_averages_no_row_that_one_of_its_tasks_lacks(self, evaluate, small, tmp_path: Path, caplog):
        (tmp_path / "both.yaml").write_text(
            "group: both\ntask: [proca_sst2, proca_demo]\n"
            "aggregate_metric_list: [{metric: acc, aggregation: mean, weight_by_size: false}]\n"
        )

        def answer(context: str, continuation: str) -> float:
            return float("nan") if "number 2-14 " in context else -1.0 - crc32((context + continuation).encode()) % 7

        results = evaluate(
            "both", include=[ROOT / "task_configs", tmp_path], settings=small, lm=Judge(answer), limit=60
        )
        group, tasks = results["groups"]["both"], results["results"]
        raw = [tasks[name]["acc,none"] for name in ("proca_sst2", "proca_demo")]
        assert group["acc,none"] == pytest.approx(sum(raw) / 2)
        assert "acc,bc" not in tasks["proca_sst2"]
        assert "acc,bc" in tasks["proca_demo"]
        assert {key for key in group if key.startswith("acc,")} == {"acc,none"}, (
            "no average beside another set of tasks"
        )
        assert "both: no row for bc: it and the raw row would average different tasks (proca_sst2)" in caplog.messages


class TestSentences:
    """Bad input ends in one clear sentence of our own exception type."""

    @pytest.mark.parametrize(
        ("yaml", "settings", "sentence"),
        [
            ({}, {"data_dir": "/nowhere"}, r"no folder /nowhere/sst2; proca.data_dir \(or PROCA_DATA_DIR\)"),
            ({"more": "test_split: exam"}, {}, r"no split 'exam', only train, validation"),
            ({}, {"estimate_split": "spare"}, r"no split 'spare'"),
            ({"text_fields": "[title]"}, {}, r"no column title, only sentence, label; correct calibration.text_fields"),
            ({"drop": "text_fields"}, {}, r"calibration.text_fields is missing"),
            ({"more": "doc_to_target: lable"}, {}, r"doc_to_target: no column lable; there are .*Did you mean label\?"),
            ({"more": "doc_to_target: '{{lable}}'"}, {}, r"doc_to_target: no column lable; there are sentence, label"),
            ({"more": "doc_to_text: '{{sentense}} It was'"}, {}, r"doc_to_text: no column sentense; .*mean sentence\?"),
            ({"more": "doc_to_text: sentense"}, {}, r"doc_to_text: no column sentense; there are sentence, label"),
            ({"more": "doc_to_text: '{{sentence'"}, {}, r"doc_to_text is not a template that Jinja can read"),
            ({"choices": '["bad"]'}, {}, r"at least two labels"),
            ({"choices": '["good", " good"]'}, {}, r"the label word 'good' stands for two labels"),
            ({"drop": "doc_to_choice"}, {}, r"doc_to_choice is missing"),
            ({"choices": '["a", "b", "c"]', "estimate_size": 2}, {}, r"2 documents is too small for 3 labels"),
            ({"estimate_size": "null"}, {}, r"estimate_size must have a value, got null"),
            (
                {"more": "filter_list: [{name: twice, filter: [{function: bc}, {function: bc}]}]"},
                {},
                r"the filter twice is a chain of bc, bc; a calibrator is fitted on scores as the model gave them",
            ),
            (
                {"more": "filter_list: [{name: late, filter: [{function: take_first}, {function: conca}]}]"},
                {},
                r"the filter late is a chain of take_first, conca",
            ),
            ({}, {"scores_dir": __file__}, r"test_task.py cannot be a folder for score tables \(File exists\)"),
            ({"more": "metric_list: [{metric: acc_norm}]"}, {}, r"acc_norm means nothing for calibrated scores"),
            (
                {"more": "filter_list: [{name: p, filter: [{function: proca, restarts: 3}]}]"},
                {},
                r"the filter p cannot be used: The calibrator proca has no parameter restarts; it has .*n_init",
            ),
            (
                {"more": "filter_list: [{name: p, filter: [{function: proca, selection: luck}]}]"},
                {},
                r"the filter p cannot be used: The 'selection' parameter .* must be one of assignment, likeli",
            ),
            ({"more": "fewshot_config: {sampler: balanced}"}, {}, r"sampler must be default or first_n"),
            ({}, {"demonstration_counts": "1/1/1"}, r"makes 3 demonstrations, but --num_fewshot is 2"),
        ],
    )
    def test_before_anything_is_scored(self, evaluate, own_task, yaml, settings, sentence):
        def never(context, continuation):
            raise AssertionError("scored in spite of bad input")

        with pytest.raises(TaskError, match=sentence) as error:
            evaluate("own_sentiment", include=own_task(**yaml), settings=settings, num_fewshot=2, lm=Judge(never))
        assert str(error.value).startswith("own_sentiment: ")
        assert "\n" not in str(error.value)

    def test_generate_until_tasks_are_refused(self, evaluate, own_task):
        folder = own_task()
        file = folder / "own_sentiment.yaml"
        file.write_text(file.read_text().replace("multiple_choice", "generate_until"))
        with pytest.raises(TaskError, match="output_type is 'generate_until', but only multiple_choice"):
            evaluate("own_sentiment", include=folder)

    @pytest.mark.parametrize("label", [2, -2])
    def test_a_label_id_out_of_range(self, evaluate, tmp_path: Path, data_dir: Path, label: int):
        write_jsonl(tmp_path / "sst2" / "train.jsonl", made_sentences(80, seed=1))
        write_jsonl(
            tmp_path / "sst2" / "validation.jsonl", [*made_sentences(5, seed=2), {"sentence": "odd", "label": label}]
        )
        with pytest.raises(TaskError, match=f"the label {label} of a row is none of the 2 labels"):
            evaluate("proca_sst2", settings={"data_dir": str(tmp_path), "estimate_size": 50})

    def test_labels_that_vary_over_documents(self, evaluate, own_task):
        folder = own_task(choices="\"{{['bad', 'good'] if 'film' in sentence else ['no', 'yes']}}\"")
        with pytest.raises(TaskError, match="only tasks with one fixed list of labels"):
            evaluate("own_sentiment", include=folder)

    def test_seed_none(self, evaluate):
        with pytest.raises(TaskError, match="without a seed every process would draw another prompt"):
            evaluate("proca_sst2", fewshot_random_seed=None)

    @pytest.mark.parametrize(
        ("choices_of_estimate_rows", "sentence"),
        [
            (["good", "bad"], r"estimate document 0 has the labels \['good', 'bad'\], the first evaluated one"),
            (["bad", "good", "so-so"], r"estimate document 0 has the labels \['bad', 'good', 'so-so'\]"),
            (None, r"doc_to_choice fails on estimate document 0 \(TypeError: .*\); a calibrated task has one fixed"),
        ],
    )
    def test_choices_of_estimate_rows(self, evaluate, own_task, tmp_path: Path, choices_of_estimate_rows, sentence):
        rows = [{**row, "options": choices_of_estimate_rows} for row in made_sentences(80, seed=1)]
        write_jsonl(tmp_path / "sst2" / "train.jsonl", rows)
        rows = [{**row, "options": ["bad", "good"]} for row in made_sentences(20, seed=2)]
        write_jsonl(tmp_path / "sst2" / "validation.jsonl", rows)
        with pytest.raises(TaskError, match=sentence):
            evaluate("own_sentiment", include=own_task(choices="options"), settings={"data_dir": str(tmp_path)})

    def test_an_estimate_row_that_makes_no_prompt(self, evaluate, own_task, tmp_path: Path):
        """lm-eval takes a prompt of digits alone for the number of a choice."""
        write_jsonl(tmp_path / "sst2" / "train.jsonl", [{"sentence": "2024", "label": 0}] * 80)
        write_jsonl(tmp_path / "sst2" / "validation.jsonl", made_sentences(20, seed=2))
        folder = own_task()
        file = folder / "own_sentiment.yaml"
        file.write_text(file.read_text().replace("{{sentence.strip()}} All in all it was", "{{sentence}}"))
        with pytest.raises(TaskError, match=r"estimate document 0 cannot be put into the prompt \(AssertionError: Con"):
            evaluate("own_sentiment", include=folder, settings={"data_dir": str(tmp_path)})

    @pytest.mark.parametrize("more", ["", "filter_list: [{name: bc, filter: [{function: bc}]}]"])
    def test_a_column_in_the_prompt_that_content_free_inputs_would_keep(self, evaluate, own_task, tmp_path, more):
        for split, seed in (("train", 1), ("validation", 2)):
            rows = [{**row, "title": f"Title {i}", "idx": i} for i, row in enumerate(made_sentences(80, seed=seed))]
            write_jsonl(tmp_path / "sst2" / f"{split}.jsonl", rows)
        folder = own_task(more=more)
        file = folder / "own_sentiment.yaml"
        file.write_text(file.read_text().replace("{{sentence.strip()}}", "{{title}}: {{sentence.strip()}}"))
        settings = {"data_dir": str(tmp_path)}
        if more:  # without contextual calibration there is no content-free input
            evaluate("own_sentiment", include=folder, settings=settings)
            return
        with pytest.raises(TaskError, match=r"the prompt shows the column title, .* add title to text_fields"):
            evaluate("own_sentiment", include=folder, settings=settings)
        file.write_text(file.read_text().replace("text_fields: [sentence]", "text_fields: [sentence, title]"))
        evaluate("own_sentiment", include=folder, settings=settings)

    def test_a_column_in_the_prompt_that_inputs_of_a_file_would_keep(self, evaluate, own_task, tmp_path: Path):
        for split, seed in (("train", 1), ("validation", 2)):
            rows = [{**row, "title": f"Title {i}"} for i, row in enumerate(made_sentences(80, seed=seed))]
            write_jsonl(tmp_path / "sst2" / f"{split}.jsonl", rows)
        write_jsonl(tmp_path / "made.jsonl", [{"sentence": row["sentence"]} for row in made_sentences(40, seed=8)])
        folder = own_task(more="filter_list: [{name: bc, filter: [{function: bc}]}]")
        settings = {"data_dir": str(tmp_path), "estimate_file": str(tmp_path / "made.jsonl")}
        evaluate("own_sentiment", include=folder, settings=settings)
        file = folder / "own_sentiment.yaml"
        file.write_text(file.read_text().replace("{{sentence.strip()}}", "{{title}}: {{sentence.strip()}}"))
        with pytest.raises(TaskError, match=r"the prompt shows the column title, .* add title to text_fields"):
            evaluate("own_sentiment", include=folder, settings=settings)

    def test_demonstrations_that_miss_a_label(self, evaluate, small, caplog):
        evaluate("proca_sst2", settings=small, num_fewshot=1, limit=5)
        (warning,) = [text for text in caplog.messages if "demonstrations of seed 1234 shows" in text]
        assert warning.startswith("proca_sst2: none of the 1 demonstrations of seed 1234 shows ")
        caplog.clear()
        evaluate("proca_sst2", settings={**small, "demonstration_counts": "2/0"}, num_fewshot=2, limit=5)
        evaluate("proca_sst2", settings=small, num_fewshot=0, limit=5)
        assert "shows" not in caplog.text

    def test_a_calibration_filter_without_the_class(self, data_dir: Path, tiny_lm):
        import lm_eval
        from lm_eval.api.task import ConfigurableTask

        config = {
            "task": "plain",
            "dataset_path": str(data_dir / "sst2"),
            "validation_split": "validation",
            "output_type": "multiple_choice",
            "doc_to_text": "{{sentence}}",
            "doc_to_target": "label",
            "doc_to_choice": ["bad", "good"],
            "filter_list": [{"name": "proca", "filter": [{"function": "proca"}]}],
        }
        with pytest.raises(
            TaskError,
            match="calibrate only tasks with `class: !function",
        ):
            lm_eval.simple_evaluate(
                model=tiny_lm,
                tasks=[ConfigurableTask(config=config)],
                task_manager=TaskManager(include_defaults=False),
                limit=4,
            )

    def test_no_secret_reaches_the_score_table(self, tiny_lm, data_dir: Path, tmp_path: Path):
        import lm_eval

        metadata = {
            "pretrained": "somebody/model",
            "api_key": "s3cret",
            "hf_token": "s3cret",
            "proca": {"data_dir": str(data_dir), "estimate_size": 20, "scores_dir": str(tmp_path)},
        }
        manager = TaskManager(include_path=ROOT / "task_configs", include_defaults=False, metadata=metadata)
        lm_eval.simple_evaluate(model=tiny_lm, tasks=["proca_sst2"], task_manager=manager, limit=5, bootstrap_iters=0)
        (file,) = tmp_path.glob("*.parquet")
        table = ScoreTable.load(file)
        assert table.record.model == "somebody/model"
        assert "s3cret" not in json.dumps(table.record.as_json())
