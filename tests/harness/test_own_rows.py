"""A user's own files: labels that are missing in some rows, unlabeled rows by themselves, and what is refused."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from lm_eval_proca.errors import TaskError
from lm_eval_proca.scores.record import fingerprint
from tests.conftest import ROOT, made_sentences

LABELED, HALF, NONE = made_sentences(40, seed=2), made_sentences(60, seed=1), made_sentences(50, seed=5)
HALF = [row if i < 20 else {**row, "label": ""} for i, row in enumerate(HALF)]


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def task_of_files(own_task: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """The folder of a task that names CSV files with these rows as its splits."""

    def write(train: Iterable[Mapping[str, Any]], validation: Iterable[Mapping[str, Any]] = LABELED) -> Path:
        files = {
            "train": str(write_csv(tmp_path / "train.csv", train)),
            "validation": str(write_csv(tmp_path / "validation.csv", validation)),
        }
        folder = own_task(more=f"dataset_kwargs: {json.dumps({'data_files': files})}", drop="data_folder")
        yaml = folder / "own_sentiment.yaml"
        yaml.write_text(yaml.read_text().replace("somebody/reviews", "csv"))
        return folder

    return write


def record_of(results: dict) -> dict:
    return results["configs"]["own_sentiment"]["metadata"]["proca"]


def test_rows_without_a_label_are_never_demonstrations(evaluate, task_of_files) -> None:
    """20 of 60 rows have one; every seed shows labeled rows, and the label that they have."""
    folder = task_of_files(HALF)
    words = {row["sentence"].strip(): ["bad", "good"][row["label"]] for row in HALF if row["label"] != ""}
    for seed in range(5):
        results = evaluate("own_sentiment", include=folder, num_fewshot=3, fewshot_random_seed=seed, limit=4)
        prompt = results["samples"]["own_sentiment"][0]["arguments"][0][0]
        shown = [part.split(" All in all it was ") for part in prompt.split("\n\n")[:-1]]
        assert len(shown) == 3
        assert all(words[sentence] == word for sentence, word in shown)
    with pytest.raises(TaskError, match=r"25 demonstrations were asked for, but only 20 rows .* have a label"):
        evaluate("own_sentiment", include=folder, num_fewshot=25, limit=4)


def test_evaluated_rows_without_a_label_are_not_counted(evaluate, task_of_files, caplog) -> None:
    results = evaluate("own_sentiment", include=task_of_files(LABELED, validation=HALF), num_fewshot=0)
    assert "40 of 60 evaluated documents have no gold label" in caplog.text
    assert all(sum(one["gold"]) == 20 for one in record_of(results)["label_counts"].values())


def test_a_split_without_a_label_column_is_an_estimate_set(evaluate, task_of_files) -> None:
    folder = task_of_files({"sentence": row["sentence"]} for row in NONE)
    results = evaluate("own_sentiment", include=folder, num_fewshot=0)
    assert record_of(results)["estimate_size"] == 50
    with pytest.raises(TaskError, match=r"1 demonstrations were asked for, but only 0 rows .* have a label"):
        evaluate("own_sentiment", include=folder, num_fewshot=1)


def test_a_file_that_cannot_be_read_says_why(evaluate, task_of_files, tmp_path: Path) -> None:
    folder = task_of_files(LABELED)
    (tmp_path / "train.csv").write_text('sentence,label\n"never closed,1\n')
    with pytest.raises(TaskError, match=r"own_sentiment: cannot load csv \(.*ParserError: .* EOF inside string"):
        evaluate("own_sentiment", include=folder)


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_unlabeled_rows_of_a_file(evaluate, own_task, tmp_path: Path, suffix: str, caplog) -> None:
    """The same rows in both formats: the same estimate set, which the model has not written."""
    rows = [{"id": str(i), "sentence": row["sentence"]} for i, row in enumerate(NONE)]
    rows[3]["sentence"] = 'two, "quoted"\nlines\u2028and more'
    file = tmp_path / f"rows{suffix}"
    if suffix == ".csv":
        write_csv(file, rows)
    else:
        file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    results = evaluate("own_sentiment", include=own_task(), settings={"estimate_file": str(file)}, num_fewshot=1)
    record = record_of(results)
    assert record["estimate_size"] == 50
    assert record["generated_by"] == {}
    assert record["unlabeled_hash"] == fingerprint([row["sentence"].strip()] for row in rows)
    assert "estimate_size" not in caplog.text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("text,other\nhello,1\n", r"line 2 of .* has no text in field sentence, its fields are text, other; "),
        ("sentence\nhello\n", r"rows.csv has 1 usable rows of 1, too few for 2 labels"),
        (b"sentence\n\xff\xfe\n", r"is not a text file in UTF-8"),
    ],
)
def test_files_that_are_refused(evaluate, own_task, tmp_path: Path, content: str | bytes, sentence: str) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TaskError, match=sentence):
        evaluate("own_sentiment", include=own_task(), settings={"estimate_file": str(file)})


def test_the_example_of_the_page(evaluate, monkeypatch) -> None:
    """docs/own-task.md: its files, its YAML and its counts."""
    docs = ROOT / "docs"
    page, yaml = (docs / "own-task.md").read_text(), (docs / "tickets" / "tickets.yaml").read_text()
    assert yaml in page
    monkeypatch.chdir(docs)
    settings = {"demonstration_counts": "1/1/1", "calibrators": "bc"}
    results = evaluate("tickets", include=docs / "tickets", settings=settings, num_fewshot=3, fewshot_random_seed=1)
    record = results["configs"]["tickets"]["metadata"]["proca"]
    assert f"{record['eval_rows']} eval + {record['estimate_size']} estimate documents x 3 labels" in page
    assert {key for key in results["results"]["tickets"] if key.startswith("acc,")} == {"acc,none", "acc,bc"}
