"""What users rely on: a run with `proca.calibrate=true`, `calibrate FOLDER` on its logs and `calibrate` on its score
table give the same calibrated rows, for a generated zoo of task variants; or one of them says in a sentence why not."""

from __future__ import annotations

import itertools
import json
import logging
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import lm_eval
import pytest
import yaml
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from lm_eval_proca.runs.finished import CALIBRATED_IN_RUN, CalibratedRun, calibrate_run
from lm_eval_proca.scores.fitting import accuracies, calibrators_of_documents, calibrators_of_run
from lm_eval_proca.scores.score_table import ScoreTable
from tests.conftest import write_jsonl

ROWS = (20, 24, 30)
TASKS = 216
NAMES = ("bc",)
"""The quickest: what is tested is how scores and labels come to a calibrator, not what it makes of them."""

WORDS = {
    "digits": ["1", "2", "3"],
    "zero-based digits": ["0", "1", "2"],
    "letters": ["A", "B", "C"],
    "words": ["no", "maybe", "yes"],
    "prefixes": ["a", "aa", "aaa"],
    "unicode": ["näher", "日本", "ﬁn"],
    "leading blanks": [" x", " y", " z"],
    "two": ["false", "true"],
}
TARGETS = ("index", "word", "bool", "index in a template", "word in a template", "index as text")
CHOICES = ("list", "dict", "column", "template")
METRICS = (["acc"], ["acc_norm"], ["acc", "acc_norm"], ["f1"], ["mcc"], ["acc", "f1"])
GOLD = ("all", "some", "none")


# As `dataset_path: json` gives them, which takes a fifth of a second for each task.
ROWS_OF_FILE = """
import datasets, json

def of_file(file, **kwargs):
    with open(file, encoding="utf-8") as lines:
        return {"test": datasets.Dataset.from_list([json.loads(line) for line in lines])}
"""


class Variant(NamedTuple):
    """One task of the zoo."""

    words: str
    target: str
    choices: str
    metrics: tuple[str, ...]
    gold: str

    @property
    def is_possible(self) -> bool:
        """A boolean names one of two labels; lm-eval's own f1 stops at more than two, no label among them; and lm-eval
        takes what a template makes of "3" for a position."""
        if self.words == "digits" and self.target == "word in a template":
            return False
        if self.target == "index as text" and "digits" not in self.words:
            return False
        if self.target == "bool" and (self.words != "two" or self.gold != "all"):
            return False
        fits_f1 = "f1" not in self.metrics or (self.words == "two" and self.gold == "all")
        return fits_f1

    def rows(self, seed: int) -> list[dict[str, Any]]:
        rnd, labels = random.Random(seed), WORDS[self.words]
        rows = []
        for i in range(ROWS[seed % len(ROWS)]):
            label = rnd.randrange(len(labels))
            if self.gold == "none" or (self.gold == "some" and i % 4 == 0):
                label = -1
            word = labels[label] if label >= 0 else ""
            target: Any = {"word": word, "bool": bool(label), "index as text": str(label)}.get(self.target, label)
            rows.append({"text": f"document {seed}-{i}", "label": label, "word": word, "y": target, "options": labels})
        return rows

    def config(self, name: str, data: Path) -> dict[str, Any]:
        labels = WORDS[self.words]
        templates = {"index in a template": "{{label}}", "word in a template": "{{word}}"}
        choices = {
            "list": labels,
            "dict": {f"key{k}": word for k, word in enumerate(labels)},
            "column": "options",
            "template": "{{options}}",
        }
        return {
            "task": name,
            "custom_dataset": "FUNCTION",
            "dataset_kwargs": {"file": str(data)},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_text": "{{text}}\nAnswer:",
            "doc_to_target": templates.get(self.target, "y"),
            "doc_to_choice": choices[self.choices],
            "metric_list": [{"metric": metric} for metric in self.metrics],
            "metadata": {"version": 1},
        }


def zoo() -> Iterator[Variant]:
    """Every pair of values of any two properties occurs, as far as a task can have both."""
    every = itertools.product(WORDS, TARGETS, CHOICES, map(tuple, METRICS), GOLD)
    possible = [variant for values in every if (variant := Variant(*values)).is_possible]
    random.Random(0).shuffle(possible)
    seen: set[tuple[Any, ...]] = set()
    rest = []
    for variant in possible:
        pairs = set(itertools.combinations(enumerate(variant), 2))
        if pairs <= seen:
            rest.append(variant)
            continue
        seen |= pairs
        yield variant
    yield from rest


class Hashed(LM):
    """Prefers the first label; otherwise at the mercy of a hash."""

    def loglikelihood(self, requests, **kwargs):
        return [(-1.0 - crc32("".join(request.args).encode()) % 997 / 200, False) for request in requests]

    def loglikelihood_rolling(self, requests):
        raise AssertionError

    def generate_until(self, requests):
        raise AssertionError


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Variant]]:
    """The YAML files of the zoo, and groups of its tasks with both weightings."""
    folder = tmp_path_factory.mktemp("zoo")
    (folder / "rows.py").write_text(ROWS_OF_FILE)
    chosen = {f"zoo{number:03}": variant for number, variant in zip(range(TASKS), zoo(), strict=False)}
    for number, (name, variant) in enumerate(chosen.items()):
        data = folder / f"{name}.jsonl"
        write_jsonl(data, variant.rows(number))
        text = yaml.safe_dump(variant.config(name, data), allow_unicode=True)
        (folder / f"{name}.yaml").write_text(text.replace("FUNCTION", "!function rows.of_file"), encoding="utf-8")
    names = sorted(chosen, key=lambda name: (chosen[name].gold != "all", "acc" not in chosen[name].metrics))
    for number, start in enumerate(range(0, len(names), 12)):
        entry = {"metric": "acc", "aggregation": "mean", "weight_by_size": bool(number % 2)}
        group = {"group": f"group{number:02}", "task": names[start : start + 12], "aggregate_metric_list": [entry]}
        (folder / f"group{number:02}.yaml").write_text(yaml.safe_dump(group))
    return folder, chosen


def evaluate(folder: Path, names: Iterable[str], output: Path, **settings: Any) -> tuple[Path, dict[str, Any]]:
    """A run of all groups, logged as the command does it: the results file, and what it holds."""
    metadata = {f"proca.{key}": value for key, value in settings.items()}
    manager = TaskManager(include_path=str(folder), include_defaults=False, metadata=metadata)
    groups = sorted(path.stem for path in folder.glob("group*.yaml"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lm_eval_proca.harness.stock_tasks.calibrators_of_documents", quick_calibrators)
        results = lm_eval.simple_evaluate(
            model=Hashed(), tasks=groups, task_manager=manager, bootstrap_iters=0, log_samples=True
        )
    tracker = EvaluationTracker(output_path=str(output / "results.json"))
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in names:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    (file,) = output.glob("results_*.json")
    return file, json.loads(file.read_text(encoding="utf-8"))


class Handler(logging.Handler):
    """Keeps what is logged; pytest's own fixture for that is one of each test, not of a module."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Runs(NamedTuple):
    """The zoo calibrated in a run, and the same run without us, calibrated after it."""

    in_run: dict[str, Any]
    file: Path
    tables: dict[str, ScoreTable]
    after: CalibratedRun
    said: str


@pytest.fixture(scope="module")
def runs(variants: tuple[Path, dict[str, Variant]], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder, chosen = variants
    output = tmp_path_factory.mktemp("runs")
    said = Handler()
    logging.getLogger("lm_eval.proca").addHandler(said)
    file, in_run = evaluate(folder, chosen, output / "run", calibrate=True, scores_dir=str(output / "scores"))
    logging.getLogger("lm_eval.proca").removeHandler(said)
    tables = [ScoreTable.load(path) for path in (output / "scores").glob("*")]
    plain, _ = evaluate(folder, chosen, output / "plain")
    after = calibrate_run(plain, quick_calibrators())
    return Runs(in_run, file, {table.record.task: table for table in tables}, after, "\n".join(said.lines))


def quick_calibrators(**options: Any) -> dict[str, Any]:
    found = calibrators_of_documents(representations=False)
    return {name: found[name] for name in NAMES}


def calibrated(metrics: dict[str, Any]) -> dict[str, float]:
    return {name: metrics[f"acc,{name}"] for name in NAMES if f"acc,{name}" in metrics}


def test_run_log_and_table_agree(variants: tuple[Path, dict[str, Variant]], runs: Runs):
    chosen = variants[1]
    assert len(chosen) >= 200
    skipped = {one.task: one.reason for one in runs.after.skipped}
    for name, variant in chosen.items():
        rows = calibrated(runs.in_run["results"][name])
        assert (rows.keys() == set(NAMES)) == (variant.gold != "none"), (variant, "no row without a single gold label")
        record = runs.in_run["configs"][name]["metadata"]["proca"]
        assert record["not_calibrated"] == {}, (variant, record["not_calibrated"])

        table = runs.tables[name]
        again = accuracies(table, calibrators_of_run(table)) if variant.gold != "none" else {}
        assert {key: again[key] for key in rows} == pytest.approx(rows), variant

        if name in skipped:
            assert "target" in skipped[name], (variant, skipped[name])
            continue
        assert calibrated(runs.after.document["results"][name]) == pytest.approx(rows), variant
        written = runs.after.document["configs"][name]["metadata"]["proca"]
        for key in ("documents_hash", "labels", "eval_rows", "estimate_source", "estimate_size", "folds"):
            assert written[key] == record[key], (variant, key)
        for method, counts in record["label_counts"].items():
            for key in ("predicted", "gold", "hits"):
                assert written["label_counts"][method][key] == counts[key], (variant, method)
    assert len(skipped) < 0.2 * len(chosen), "too many logs cannot be read"


def test_groups_agree_or_say_why_not(runs: Runs):
    notes = " ".join(runs.after.notes)
    agreed = 0
    for group in sorted(runs.in_run["groups"]):
        rows, logged = (calibrated(document["results"][group]) for document in (runs.in_run, runs.after.document))
        members = {name: runs.in_run["results"][name] for name in runs.in_run["group_subtasks"][group]}
        raw = {task for task, metrics in members.items() if "acc,none" in metrics}
        for name in NAMES if raw else ():
            ours = {task for task, metrics in members.items() if f"acc,{name}" in metrics}
            assert (name in rows) == (ours == raw), "a group averages the tasks of its raw row, or none"
            if name in rows and name in logged:
                assert logged[name] == pytest.approx(rows[name]), group
                agreed += 1
            elif name in rows:
                assert f"{group}: no" in notes, group
            else:
                assert not ours & raw or f"{group}: no row for {name}: it and the raw row" in runs.said, group
    assert agreed


def test_a_calibrated_run_is_not_calibrated_again(runs: Runs):
    again = calibrate_run(runs.file, quick_calibrators())
    assert CALIBRATED_IN_RUN in again.unchanged
    assert not again.calibrated
