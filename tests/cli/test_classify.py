"""`lm-eval-proca classify`: what a user types and reads; tests/classify has what is behind it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lm_eval_proca.classify.text_files import read_rows
from lm_eval_proca.cli import main
from tests.conftest import ROOT, made_sentences, write_jsonl

ASKED = ["--labels", "bad, good", "--template", r"Review: {body}\nSentiment:", "--device", "cpu"]
NOWHERE = ["--model_args", "pretrained=/no/such/model"]
"""Whoever loads it fails with another sentence."""


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    write_jsonl(tmp_path / "texts.jsonl", [{"body": row["sentence"], "id": 1} for row in made_sentences(40, seed=5)])
    return tmp_path / "texts.jsonl"


def test_a_saved_folder_labels_new_rows_elsewhere(texts: Path, tiny_llama: Path, tmp_path: Path, capsys):
    with open(texts, "a") as file:
        file.write('{"body": "  "}\n')
    arguments = ["classify", str(texts), *ASKED, "--text", "body", "--model_args", f"pretrained={tiny_llama}"]
    assert main([*arguments, "--output", str(tmp_path / "labeled.csv"), "--save", str(tmp_path / "saved")]) == 0
    said = capsys.readouterr()
    assert "40 of 41 rows labeled in" in said.out
    assert "by proca_h, fitted on 40 unlabeled rows." in said.out
    assert "estimated accuracy: 0." in said.out
    assert "label some rows yourself before you trust it" in said.out
    assert "1 without a label: row 41 is empty." in said.err
    prompt = json.loads((tmp_path / "saved" / "classifier.json").read_text())["params"]
    assert prompt["template"] == ["Review: {body}\nSentiment:"]
    assert prompt["labels"] == ["bad", "good"]

    assert (
        main(["classify", str(texts), "--load", str(tmp_path / "saved"), "--output", str(tmp_path / "here.csv")]) == 0
    )
    assert "estimated accuracy of the fit, not of these rows: 0." in capsys.readouterr().out
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(tmp_path / "saved", elsewhere / "saved")
    shutil.copy(texts, elsewhere / "new.jsonl")
    shutil.copytree(tiny_llama, elsewhere / "weights")
    command = ["classify", "--load", "saved", "new.jsonl", "--model_args", "pretrained=weights", "--output", "out.csv"]
    done = subprocess.run(
        [sys.executable, "-m", "lm_eval_proca.cli", *command],
        cwd=elsewhere, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    here, there = (list(read_rows(file)) for file in (tmp_path / "here.csv", elsewhere / "out.csv"))
    assert [row["label"] for row in there] == [row["label"] for row in here]
    assert {row["label"] for row in there} == {"", "bad", "good"}


def test_parameters_of_a_calibrator_and_several_templates(texts: Path, tiny_llama: Path, tmp_path: Path, capsys):
    arguments = ["classify", str(texts), *ASKED, "--template", "{body} All in all:", "--calibrator", "proca"]
    arguments += ["--param", "proca.n_init=3", "--model_args", f"pretrained={tiny_llama}"]
    assert main([*arguments, "--output", str(tmp_path / "out.parquet")]) == 0
    assert "by proca under 2 prompts, fitted on 40" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (NOWHERE, "--labels and --template must be given, or --load FOLDER"),
        (ASKED, "--model_args pretrained=NAME must be given, or --load FOLDER"),
        (["--load", "saved", "--labels", "a,b"], "--load brings its own question and fit; leave --labels out"),
        (["--load", "saved"], "saved holds no saved classifier"),
        ([*ASKED, *NOWHERE, "--param", "bc.x=1"], "--param needs --calibrator"),
        ([*ASKED, *NOWHERE, "--calibrator", "bcc"], "There is no calibrator named 'bcc'"),
        ([*ASKED, *NOWHERE, "--calibrator", "conca"], "is not fitted on texts"),
        ([*ASKED, *NOWHERE, "--template", "{boddy}:"], "has no column boddy; there are body, id. Did you mean body?"),
        ([*ASKED, *NOWHERE, "--text", "boddy"], "has no column boddy; there are body, id. Did you mean body?"),
        ([*ASKED, *NOWHERE, "--text", "id"], "No template shows the text column id"),
        ([*ASKED, *NOWHERE, "--labels", "a,b,c,d,e,f,g,h,i"], "40 usable texts are too few to calibrate on"),
    ],
)
def test_mistakes_are_told_before_a_model_is_loaded(arguments: list[str], sentence: str, texts: Path, tmp_path, capsys):
    assert main(["classify", str(texts), *arguments, "--output", str(tmp_path / "out.csv")]) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out.csv.partial").exists()


def test_files_are_checked_first(texts: Path, tmp_path: Path, capsys):
    assert main(["classify", str(texts), *ASKED, *NOWHERE, "--output", str(tmp_path / "out.txt")]) == 1
    assert "must end in .csv, .jsonl, .parquet" in capsys.readouterr().err
    assert main(["classify", str(texts), *ASKED, *NOWHERE, "--output", str(texts)]) == 1
    assert "is the file that is read" in capsys.readouterr().err
