from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from lm_eval.api.model import LM

from lm_eval_proca import TextClassifier
from lm_eval_proca.classify.labeling import label_file, report_file
from lm_eval_proca.classify.scoring import CHUNK
from lm_eval_proca.classify.text_files import read_rows
from lm_eval_proca.errors import TextsError
from tests.classify.conftest import LABELS, TEMPLATE
from tests.conftest import ROOT, made_sentences, write_jsonl
from tests.launch import SECONDS


class Hashing(LM):
    """Scores any text by a hash, and keeps how many requests it was asked at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def loglikelihood(self, requests):
        self.asked.append(len(requests))
        return [(-1 - crc32("".join(request.args).encode()) / 2**32, False) for request in requests]

    def generate_until(self, requests): ...
    def loglikelihood_rolling(self, requests): ...


def classifier(lm: Any, **params: Any) -> TextClassifier:
    return TextClassifier(**{"labels": LABELS, "template": TEMPLATE, "model": lm, **params})


def make_file(path: Path, n: int, seed: int = 9) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "body"])
        writer.writerows([i, row["sentence"]] for i, row in enumerate(made_sentences(n, seed)))
    return path


def test_rows_come_back_with_the_labels_of_the_classifier(lm, tmp_path: Path):
    source, output = make_file(tmp_path / "texts.csv", 90), tmp_path / "new" / "labeled.jsonl"
    outcome = label_file(classifier(lm), source, output, save=tmp_path / "saved", progress=False)
    given, found = list(read_rows(source)), list(read_rows(output))
    assert [{"id": row["id"], "body": row["body"]} for row in found] == given
    expected = classifier(lm).fit_predict([row["body"] for row in given])
    assert [row["label"] for row in found] == expected.tolist()
    report = json.loads(report_file(output).read_text())
    assert report["fit"] == outcome.fit
    assert report["fit"]["calibrator"] == "proca_h"
    assert 0 < report["fit"]["estimated_accuracy"] < 1
    assert sum(report["label_counts"].values()) == report["rows"] == report["labeled"] == 90
    assert sorted(path.name for path in output.parent.iterdir()) == ["labeled.jsonl", "labeled.jsonl.report.json"]

    loaded = TextClassifier.load(tmp_path / "saved", model=lm)
    label_file(loaded, source, tmp_path / "again.jsonl", progress=False)
    again = [row["label"] for row in read_rows(tmp_path / "again.jsonl")]
    assert again == loaded.predict([row["body"] for row in given]).tolist()


def test_more_rows_than_are_fitted_on(lm, tmp_path: Path):
    source = make_file(tmp_path / "texts.csv", 300)
    outcome = label_file(classifier(lm, fit_rows=50), source, tmp_path / "labeled.csv", progress=False)
    assert (outcome.labeled, outcome.fit["fitted_rows"]) == (300, 50)
    expected = classifier(lm, fit_rows=50).fit_predict([row["body"] for row in read_rows(source)])
    assert [row["label"] for row in read_rows(tmp_path / "labeled.csv")] == expected.tolist()


def test_bad_rows_are_named_and_do_not_end_the_run(lm, tmp_path: Path):
    good = [json.dumps({"body": row["sentence"]}) for row in made_sentences(60, seed=4)]
    long = json.dumps({"body": "word " * 2000})
    lines = [*good[:30], '{"body": ""}', '{"body": [1]}', "not JSON", long, "{}", *good[30:], '{"body": "\\ud800"}']
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    outcome = label_file(classifier(lm), tmp_path / "texts.jsonl", tmp_path / "labeled.csv", progress=False)
    rows = list(read_rows(tmp_path / "labeled.csv"))
    assert {i: row["note"] for i, row in enumerate(rows) if not row["label"]} == outcome.unusable
    assert outcome.unusable == {
        30: "is empty",
        31: "is not text: body holds a list",
        32: "is not JSON",
        33: "is too long for the model, which would lose the beginning of the prompt",
        34: "is empty",
        65: "is not text: body holds bytes that are not UTF-8",
    }
    fine = classifier(lm).fit_predict([json.loads(line)["body"] for line in good])
    assert [row["label"] for row in rows if row["label"]] == fine.tolist()


def test_a_chunk_of_bad_rows_only(tmp_path: Path):
    (tmp_path / "texts.csv").write_text("id,body\n" + "1,\n" * CHUNK + "2,fine\n" * 20)
    outcome = label_file(classifier(Hashing()), tmp_path / "texts.csv", tmp_path / "labeled.csv", progress=False)
    assert (outcome.labeled, len(outcome.unusable)) == (20, CHUNK)


def test_own_columns_are_never_overwritten(tmp_path: Path):
    (tmp_path / "texts.csv").write_text("label,body\n" + "mine,text\n" * 20)
    label_file(classifier(Hashing()), tmp_path / "texts.csv", tmp_path / "labeled.csv", progress=False)
    row = next(iter(read_rows(tmp_path / "labeled.csv")))
    assert row["label"] == "mine"
    assert row["predicted_label"] in LABELS
    with pytest.raises(TextsError, match="has columns such as label and predicted_label already"):
        label_file(classifier(Hashing()), tmp_path / "labeled.csv", tmp_path / "again.csv", progress=False)


# ------------------------------------------------------------------ memory


def test_memory_does_not_grow_with_the_rows(tmp_path: Path):
    def peak(rows: int) -> int:
        source = make_file(tmp_path / f"texts{rows}.csv", rows)
        made = classifier(lm := Hashing(), fit_rows=50)
        tracemalloc.start()
        try:
            label_file(made, source, tmp_path / f"labeled{rows}.csv", progress=False)
            assert max(lm.asked) <= CHUNK * len(LABELS)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(60)  # imports and caches
    assert peak(8 * CHUNK) < 1.5 * peak(2 * CHUNK)


# ------------------------------------------------------------------ resume


class Dying(Hashing):
    """Answers so many times, then breaks."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def loglikelihood(self, requests):
        if not self.left:
            raise RuntimeError("out of memory")
        self.left -= 1
        return super().loglikelihood(requests)

    def __repr__(self) -> str:
        return "the same model"


@pytest.mark.parametrize("calls", [1, 2, 4])
def test_a_broken_run_goes_on_and_pays_for_nothing_twice(calls: int, tmp_path: Path):
    source = make_file(tmp_path / "texts.csv", 5 * CHUNK)
    whole = Dying(99)
    label_file(classifier(whole, fit_rows=2 * CHUNK), source, tmp_path / "whole.csv", progress=False)
    with pytest.raises(RuntimeError, match="out of memory"):
        label_file(classifier(Dying(calls), fit_rows=2 * CHUNK), source, tmp_path / "out.csv", progress=False)
    assert not (tmp_path / "out.csv").exists()
    second = Dying(99)
    label_file(classifier(second, fit_rows=2 * CHUNK), source, tmp_path / "out.csv", progress=False)
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert len(second.asked) == len(whole.asked) - calls + (calls > 2)  # the blank document is one more
    assert not (tmp_path / "out.csv.partial").exists()


def test_an_error_of_the_model_is_not_one_of_the_file(tmp_path: Path):
    class Unreachable(Hashing):
        def loglikelihood(self, requests):
            if self.asked:
                raise ConnectionError("the server is gone")
            return super().loglikelihood(requests)

    source = make_file(tmp_path / "texts.csv", 2 * CHUNK)
    with pytest.raises(ConnectionError, match="the server is gone"):
        label_file(classifier(Unreachable()), source, tmp_path / "out.csv", progress=False)


def test_another_run_with_the_same_output_is_refused(tmp_path: Path):
    source = make_file(tmp_path / "texts.csv", 2 * CHUNK)
    with pytest.raises(RuntimeError):
        label_file(classifier(Dying(1)), source, tmp_path / "out.csv", progress=False)
    with pytest.raises(TextsError, match=r"differs in setting \(templates\)\. Delete the folder"):
        label_file(classifier(Dying(9), template="{body}!"), source, tmp_path / "out.csv", progress=False)
    with pytest.raises(TextsError, match=r"differs in run \(fit_rows\)"):
        label_file(classifier(Dying(9), fit_rows=99), source, tmp_path / "out.csv", progress=False)
    make_file(source, 2 * CHUNK, seed=1)
    with pytest.raises(TextsError, match=r"differs in run \(input\)"):
        label_file(classifier(Dying(9)), source, tmp_path / "out.csv", progress=False)


def test_what_cannot_be_fitted_is_not_in_the_way_of_another_run(lm, tmp_path: Path):
    """That texts are too long is known only after the model was asked."""
    long = [{"body": "word " * 2000} for _ in range(20)]
    write_jsonl(tmp_path / "long.jsonl", [*long, {"body": "short"}])
    with pytest.raises(TextsError, match="1 usable texts are too few"):
        label_file(classifier(lm), tmp_path / "long.jsonl", tmp_path / "out.csv", progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["long.jsonl"]
    source = make_file(tmp_path / "texts.csv", 20)
    assert label_file(classifier(lm), source, tmp_path / "out.csv", progress=False).labeled == 20


def test_a_second_run_at_the_same_time_is_refused(tmp_path: Path):
    source, refused = make_file(tmp_path / "texts.csv", 20), []

    class Impatient(Hashing):
        """Starts the same run again while it is asked."""

        def loglikelihood(self, requests):
            with pytest.raises(TextsError, match=f"Another run writes .*out.csv .*process {os.getpid()} on") as error:
                label_file(classifier(Hashing()), source, tmp_path / "out.csv", progress=False)
            refused.append(error)
            return super().loglikelihood(requests)

    assert label_file(classifier(Impatient()), source, tmp_path / "out.csv", progress=False).labeled == 20
    assert refused
    assert label_file(classifier(Hashing()), source, tmp_path / "out.csv", progress=False).labeled == 20
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_what_is_kept_may_be_damaged(tmp_path: Path):
    source = make_file(tmp_path / "texts.csv", 2 * CHUNK)
    with pytest.raises(RuntimeError):
        label_file(classifier(Dying(1)), source, tmp_path / "out.csv", progress=False)
    (tmp_path / "out.csv.partial" / "fit-000000-prompt0.parquet").write_text("x")
    with pytest.raises(TextsError, match=r"is damaged .* delete it and repeat the command"):
        label_file(classifier(Dying(9)), source, tmp_path / "out.csv", progress=False)


@pytest.mark.slow
def test_killed_and_started_again_it_writes_the_same_file(strong_model: Path, tmp_path: Path):
    source = make_file(tmp_path / "texts.csv", 6 * CHUNK)
    command = [sys.executable, "-m", "lm_eval_proca.cli", "classify", str(source), "--labels", ",".join(LABELS)]
    command += ["--template", TEMPLATE, "--fit_rows", str(CHUNK), "--device", "cpu"]
    command += ["--model_args", f"pretrained={strong_model}", "--output"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    subprocess.run([*command, str(tmp_path / "whole.csv")], check=True, timeout=SECONDS, **options)

    kept = tmp_path / "out.csv.partial" / "labels-000001.json"
    process = subprocess.Popen([*command, str(tmp_path / "out.csv")], **options)
    while not kept.exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it ended before it was killed"
    assert not (tmp_path / "out.csv").exists()
    before = kept.stat().st_mtime_ns

    process = subprocess.Popen([*command, str(tmp_path / "out.csv")], **options)
    while process.poll() is None and kept.exists():
        assert kept.stat().st_mtime_ns == before, "paid for twice"
        time.sleep(0.05)
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    whole, found = (list(read_rows(tmp_path / name)) for name in ("whole.csv", "out.csv"))
    assert [row["label"] for row in found] == [row["label"] for row in whole]
    assert [float(row["probability"]) for row in found] == pytest.approx([float(row["probability"]) for row in whole])
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith(".") or path.is_dir()]
