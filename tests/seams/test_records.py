"""A run and its later reading: what is evaluated, who the model is, and which files belong to which run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import lm_eval
import numpy as np
import pytest
import yaml
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_eval_proca.compare.comparison import compare
from lm_eval_proca.errors import DistributedError, ModelError, TaskError
from lm_eval_proca.harness.settings import read_settings
from lm_eval_proca.runs.finished import calibrate_run
from lm_eval_proca.scores.fitting import make_calibrators
from lm_eval_proca.scores.score_table import ScoreTable
from tests.conftest import ROOT, made_sentences, write_jsonl

LABELS = ["bad", "good"]


class Opinion(LM):
    """Answers by a hash of the request and of its own name, and prefers good."""

    def __init__(self, name: str = "one") -> None:
        super().__init__()
        self.name = name

    def loglikelihood(self, requests, **kwargs):
        return [(self.answer(*request.args), False) for request in requests]

    def answer(self, context: str, continuation: str) -> float:
        return 2.0 * ("good" in continuation) - 3 - crc32(f"{self.name}{context}{continuation}".encode()) % 997 / 300

    def loglikelihood_rolling(self, requests):
        raise AssertionError

    def generate_until(self, requests):
        raise AssertionError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two plain tasks of lm-eval, one of which has rows without gold, and a group that overrides label words."""
    folder = tmp_path / "tasks"
    rows = made_sentences(60, seed=5)
    write_jsonl(folder / "rows.jsonl", rows)
    write_jsonl(folder / "train.jsonl", made_sentences(80, seed=6))
    write_jsonl(
        folder / "partly.jsonl", [{**row, "label": -1 if i < 15 else row["label"]} for i, row in enumerate(rows)]
    )
    write_jsonl(folder / "hidden.jsonl", [{**row, "label": -1} for row in rows])
    for name in ("rows", "partly", "hidden"):
        files = {"test": str(folder / f"{name}.jsonl"), "train": str(folder / "train.jsonl")}
        config = {
            "task": f"plain_{name}",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": files},
            "test_split": "test",
            "fewshot_split": "train",
            "output_type": "multiple_choice",
            "doc_to_text": "{{sentence}} It was",
            "doc_to_target": "label",
            "doc_to_choice": LABELS,
            "metric_list": [{"metric": "acc"}],
        }
        (folder / f"plain_{name}.yaml").write_text(yaml.safe_dump(config))
    override = {"task": "plain_rows", "doc_to_choice": ["terrible", "good"]}
    group = {"group": "overriding", "task": [override], "aggregate_metric_list": [{"metric": "acc"}]}
    (folder / "overriding.yaml").write_text(yaml.safe_dump(group))
    return folder


@pytest.fixture
def evaluate(folder: Path, data_dir: Path) -> Callable[..., dict]:
    def run(*tasks: str, lm: Any = None, output: Path | None = None, settings: dict | None = None, **options) -> dict:
        metadata = {"proca.calibrate": True, **{f"proca.{key}": value for key, value in (settings or {}).items()}}
        metadata = {} if settings is None else metadata
        if tasks[0].startswith("proca"):
            metadata |= {"proca.data_dir": str(data_dir)}
        paths = [str(folder), str(ROOT / "task_configs")]
        manager = TaskManager(include_path=paths, include_defaults=False, metadata=metadata)
        results = lm_eval.simple_evaluate(
            model=lm or Opinion(), tasks=list(tasks), task_manager=manager, bootstrap_iters=0, **options
        )
        if output is not None:
            tracker = EvaluationTracker(output_path=str(output / "results.json"))
            samples = results.pop("samples")
            results["config"]["model_args"] = {"pretrained": "org/model"}
            tracker.save_results_aggregated(results=results, samples=samples)
            for name in results["configs"]:
                tracker.save_results_samples(task_name=name, samples=samples[name])
        return results

    return run


def record_of(results: dict, task: str = "plain_rows") -> dict:
    return results["configs"][task]["metadata"]["proca"]


class TestWhatWasEvaluated:
    def test_prompts_differ_and_documents_do_not(self, evaluate):
        first, second = (
            record_of(evaluate("plain_rows", settings={}, num_fewshot=2, fewshot_random_seed=seed)) for seed in (0, 1)
        )
        assert first["prompt_hash"] != second["prompt_hash"]
        assert first["documents_hash"] == second["documents_hash"]
        other = record_of(evaluate("plain_partly", settings={}), "plain_partly")
        assert other["documents_hash"] != first["documents_hash"], "other gold labels"

    def test_seeds_and_plain_logged_runs_share_a_column(self, evaluate, tmp_path: Path):
        """In the run under two seeds, and after a run without us under a third: one dataset, three seeds."""
        for seed in (0, 1):
            options = {"num_fewshot": 2, "fewshot_random_seed": seed, "output": tmp_path / f"out/{seed}"}
            evaluate("plain_rows", settings={}, **options)
        evaluate("plain_rows", num_fewshot=2, fewshot_random_seed=2, output=tmp_path / "out/2")
        (plain,) = (tmp_path / "out/2").glob("results_*.json")
        run = calibrate_run(plain, make_calibrators(["bc"]))
        plain.write_text(json.dumps(run.document))
        report = compare([tmp_path / "out"])
        assert {dataset.name for block in report.blocks for dataset in block.datasets} == {"plain_rows"}
        assert not [notice for notice in report.notices if notice.kind == "differing"]
        (found,) = [block.accuracies["bc", dataset] for block in report.blocks for dataset in block.datasets]
        assert sorted(found.by_seed) == [0, 1, 2]

    def test_prompts_of_a_run_are_compared_one_by_one_and_together(self, evaluate, tmp_path: Path):
        """What lm-eval writes of a run with three prompts, and what `compare` reads of it, are the same numbers."""
        options = {"num_fewshot": 2, "fewshot_random_seed": 0, "output": tmp_path / "out"}
        written = evaluate("plain_rows", settings={"prompts": 3}, **options)["results"]["plain_rows"]
        report = compare([tmp_path / "out"])
        assert not report.damaged
        [block] = report.blocks
        [dataset] = block.datasets
        for method, name in (("raw", "none"), ("bc", "bc")):
            found = block.accuracies[method, dataset]
            assert found.values[0, 0] == written[f"acc,{name}"]
            assert found.mean == pytest.approx(written[f"acc_prompts,{name}"])
            assert found.sd == pytest.approx(written[f"acc_sd,{name}"])
            assert found.worst == pytest.approx(written[f"acc_worst,{name}"])
            assert block.accuracies[f"{method} x3", dataset].mean == pytest.approx(written[f"acc_together,{name}"])
        [standing] = [one for one in report.leaderboards[0].standings if one.method == "bc"]
        [against_raw] = standing.against_raw
        assert (against_raw.test.prompts, against_raw.test.documents) == (3, 60)
        assert against_raw.test.difference == pytest.approx(written["acc_prompts,bc"] - written["acc_prompts,none"])


class TestRowsWithoutGold:
    """They are calibrated and predicted, and no measure counts them."""

    def test_some(self, evaluate, caplog):
        partly = evaluate("plain_partly", settings={}, log_samples=True)
        metrics, samples = partly["results"]["plain_partly"], partly["samples"]["plain_partly"]
        known = [one for one in samples if one["filter"] == "bc" and one["doc"]["label"] >= 0]
        assert len([one for one in samples if one["filter"] == "bc"]) == 60
        right = [np.argmax([score for score, _ in one["filtered_resps"]]) == one["doc"]["label"] for one in known]
        assert len(right) == 45
        assert metrics["acc,bc"] == pytest.approx(np.mean(right))
        counts = record_of(partly, "plain_partly")["label_counts"]["bc"]
        assert sum(counts["gold"]) == sum(counts["predicted"]) == 45
        assert "15 of 60 evaluated documents have no gold label" in caplog.text

    @pytest.mark.parametrize("predict_only", [False, True])
    def test_all_of_one_task_and_none_of_the_next(self, evaluate, predict_only: bool):
        results = evaluate("plain_hidden", "plain_rows", settings={}, log_samples=True, predict_only=predict_only)
        assert not [key for key in results["results"]["plain_hidden"] if key.startswith("acc,")]
        assert ("acc,bc" in results["results"]["plain_rows"]) is not predict_only
        assert len([one for one in results["samples"]["plain_hidden"] if one["filter"] == "bc"]) == 60

    def test_a_calibrated_task(self, evaluate, data_dir: Path, tmp_path: Path):
        rows = made_sentences(40, seed=8)
        write_jsonl(tmp_path / "data/sst2/train.jsonl", made_sentences(120, seed=9))
        write_jsonl(
            tmp_path / "data/sst2/validation.jsonl",
            [{**row, "label": -1} if i % 4 == 0 else row for i, row in enumerate(rows)],
        )
        settings = {"data_dir": str(tmp_path / "data"), "estimate_size": 50, "scores_dir": str(tmp_path / "scores")}
        metadata = {f"proca.{key}": value for key, value in settings.items()}
        manager = TaskManager(include_path=str(ROOT / "task_configs"), include_defaults=False, metadata=metadata)
        results = lm_eval.simple_evaluate(Opinion(), tasks=["proca_sst2"], task_manager=manager, bootstrap_iters=0)
        assert results["n-samples"]["proca_sst2"]["effective"] == 30
        (file,) = (tmp_path / "scores").glob("*.parquet")
        table = ScoreTable.load(file)
        known = table.gold_of("eval") >= 0
        right = table.scores_of("eval").argmax(axis=1)[known] == table.gold_of("eval")[known]
        assert results["results"]["proca_sst2"]["acc,none"] == pytest.approx(right.mean())

    def test_a_process_that_could_measure_nothing(self, folder: Path):
        from lm_eval_proca.harness.documents import Document
        from lm_eval_proca.harness.task import Calibrated

        class Task(Calibrated):
            def __init__(self) -> None:
                self._config = type("Config", (), {"task": "t"})()

            asking = gold = None

        documents = {i: Document("eval", i, -1 if i % 2 else 0) for i in range(6)}
        with pytest.raises(DistributedError, match="one of 2 processes would evaluate only documents without a gold"):
            Task().check_shares(documents, 2)
        Task().check_shares(documents, 3)


class TestScoreTables:
    """The same run again replaces its table, another never does."""

    def test_models_that_are_python_objects(self, evaluate, tmp_path: Path):
        settings = {"scores_dir": str(tmp_path / "scores")}
        for name in ("one", "two", "one", "two"):
            evaluate("plain_rows", lm=Opinion(name), settings=settings)
        tables = [ScoreTable.load(path) for path in (tmp_path / "scores").glob("*.parquet")]
        assert len(tables) == 2
        assert len({table.scores[0, 0] for table in tables}) == 2

    def test_hidden_states_are_not_lost_to_a_model_without(self, evaluate, tmp_path: Path, tiny_gpt2: Path):
        from lm_eval.models.huggingface import HFLM

        from lm_eval_proca.models.shared_prefix import SharedPrefixLM

        settings = {"scores_dir": str(tmp_path / "scores"), "layers": "1/-1"}
        for model in (SharedPrefixLM, HFLM, SharedPrefixLM):
            evaluate("plain_rows", lm=model(str(tiny_gpt2), device="cpu"), settings=settings)
        tables = [ScoreTable.load(path) for path in (tmp_path / "scores").glob("*.parquet")]
        assert sorted(len(table.representation.views) for table in tables) == [0, 2]

    def test_label_words_that_a_group_overrides(self, evaluate, tmp_path: Path):
        settings = {"scores_dir": str(tmp_path / "scores")}
        evaluate("plain_rows", settings=settings)
        evaluate("overriding", settings=settings)
        tables = [ScoreTable.load(path) for path in (tmp_path / "scores").glob("*.parquet")]
        assert sorted(table.labels for table in tables) == [["bad", "good"], ["terrible", "good"]]

    @pytest.mark.slow
    def test_a_cache_file_keeps_representations(self, evaluate, tmp_path: Path, tiny_gpt2: Path):
        settings = {"scores_dir": str(tmp_path / "scores"), "layers": "1/-1"}
        options = {"lm": "hf-shared-prefix", "model_args": f"pretrained={tiny_gpt2},device=cpu"}
        options["use_cache"] = str(tmp_path / "cache")
        first = evaluate("plain_rows", settings=settings, **options)
        [path] = (tmp_path / "scores").glob("*.parquet")
        written = ScoreTable.load(path)
        second = evaluate("plain_rows", settings=settings, **options)
        assert ScoreTable.load(path) == written
        for row in ("acc,bc", "acc,proca_h"):
            assert second["results"]["plain_rows"][row] == first["results"]["plain_rows"][row]

    @pytest.mark.slow
    def test_a_cache_file_without_representations_says_so(self, evaluate, tmp_path: Path, tiny_gpt2: Path):
        options = {"lm": "hf-shared-prefix", "model_args": f"pretrained={tiny_gpt2},device=cpu"}
        options["use_cache"] = str(tmp_path / "cache")
        evaluate("plain_rows", settings={"representation": "none"}, **options)
        reason = record_of(evaluate("plain_rows", settings={}, **options))["not_calibrated"]["proca_h"]
        assert reason == "60 of 60 documents have no representation: the file of --use_cache has none."


class TestLayers:
    @pytest.mark.parametrize("value", ["1.0", "0.0", "1/1.0", "0.5/0.5", "1/1", "0.5/2.0", "", "one"])
    def test_no_layer_has_two_notations(self, value: str):
        with pytest.raises(TaskError, match="layers must be different whole numbers"):
            read_settings("t", {}, {"proca.layers": value})

    def test_first_and_last_layer(self):
        assert read_settings("t", {}, {"proca.layers": "1/0.5/-1"}).layers == (1, 0.5, -1)
        assert read_settings("t", {}, {"proca.layers": -1}).layers == (-1,)

    def test_two_names_of_one_layer_of_a_model(self, evaluate, tiny_gpt2: Path):
        from lm_eval_proca.models.shared_prefix import SharedPrefixLM

        lm = SharedPrefixLM(str(tiny_gpt2), device="cpu")
        depth = lm.model.config.num_hidden_layers
        with pytest.raises(ModelError, match=r"names a layer of this model of .* layers twice"):
            evaluate("plain_rows", lm=lm, settings={"layers": f"{depth}/-1"})


def test_a_group_with_a_member_that_cannot_be_calibrated(evaluate, folder: Path, caplog):
    text = yaml.safe_load((folder / "plain_rows.yaml").read_text())
    text |= {"task": "several", "doc_to_choice": "{{['bad', 'good'] if label else ['good', 'bad']}}"}
    (folder / "several.yaml").write_text(yaml.safe_dump(text))
    group = {"group": "pair", "task": ["plain_rows", "several"], "aggregate_metric_list": [{"metric": "acc"}]}
    (folder / "pair.yaml").write_text(yaml.safe_dump(group))
    results = evaluate("pair", settings={})
    assert "acc,bc" in results["results"]["plain_rows"]
    assert {key for key in results["groups"]["pair"] if key.startswith("acc,")} == {"acc,none"}
    assert "pair: no row for bc: it and the raw row would average different tasks (several)" in caplog.messages


def test_a_fit_that_fails_costs_its_own_row_only(evaluate, monkeypatch, caplog):
    from lm_eval_proca import BatchCalibrator

    def fail(self, scores):
        raise ZeroDivisionError("of a library\nbelow")

    monkeypatch.setattr(BatchCalibrator, "_fit", fail)
    results = evaluate("plain_rows", settings={})
    assert {key for key in results["results"]["plain_rows"] if key.startswith("acc,")} == {"acc,none", "acc,proca"}
    reason = "its fit failed with ZeroDivisionError: of a library below"
    assert record_of(results)["not_calibrated"]["bc"] == reason
    assert f"plain_rows: no row for bc: {reason}" in caplog.messages
