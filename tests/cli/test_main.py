from __future__ import annotations

import argparse
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from lm_eval_proca import __version__
from lm_eval_proca.cli import COMMANDS, main
from lm_eval_proca.cli.options import WholeNumbers
from lm_eval_proca.errors import ModelError


def test_help_names_every_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    with pytest.raises(SystemExit) as exit_:
        main(["--help"])
    assert exit_.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    for name, what in COMMANDS.items():
        assert f"{name} {what}" in printed


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"lm-eval-proca {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["tasks-path", "--no-such-option"]])
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "usage: lm-eval-proca" in capsys.readouterr().err


def test_our_errors_are_one_sentence_without_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(args: object) -> int:
        raise ModelError("No model.")

    monkeypatch.setattr("lm_eval_proca.cli.tasks_path.run", run)
    assert main(["tasks-path"]) == 1
    assert capsys.readouterr().err == "lm-eval-proca tasks-path: No model.\n"


def test_tasks_path_is_the_folder_with_the_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tasks-path"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert (Path(line) / "proca_sst2.yaml").is_file()


def test_a_command_imports_only_its_own_module() -> None:
    code = (
        "import sys; from lm_eval_proca.cli import main; main(['tasks-path']);"
        "assert not {'lm_eval', 'torch', 'numpy', 'lm_eval_proca.cli.demo'} & set(sys.modules), sorted(sys.modules)"
    )
    root = str(Path(__file__).resolve().parents[2])
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True)


def test_help_of_commands_that_run_a_model_waits_for_none_of_its_libraries() -> None:
    code = (
        "import sys; from lm_eval_proca.cli import analyze, generate, sweep;"
        "assert not {'torch', 'transformers', 'matplotlib'} & set(sys.modules), sorted(sys.modules)"
    )
    root = str(Path(__file__).resolve().parents[2])
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("argv", "meant"),
    [
        (["calibrat", "x"], "calibrate"),
        (["analyze", "method", "x", "--output", "y"], "methods"),
        (["calibrate", "x.parquet", "--calibrators", "proca_g"], "proca"),
        (["calibrate", "x.parquet", "--calibrators", "proca", "--param", "proca.n_int=3"], "n_init"),
        (["generate", "--task", "proca_sst", "--model_args", "pretrained=x", "--output", "y"], "proca_sst"),
        (["tasks", "proca_sts2"], "proca_sst2"),
    ],
)
def test_a_name_that_is_nearly_right(
    argv: list[str], meant: str, capsys: pytest.CaptureFixture[str], only_our_tasks: None
) -> None:
    with suppress(SystemExit):  # of argparse
        assert main(argv) == 1
    assert f"Did you mean {meant}" in capsys.readouterr().err.splitlines()[-1]


def test_a_reader_that_leaves_before_anything_is_printed_ends_it_quietly() -> None:
    """Little is printed only when Python ends, which is when most programs fail to notice."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "lm_eval_proca.cli", "tasks-path"]
    root = Path(__file__).resolve().parents[2]
    with os.fdopen(write, "wb") as nobody:
        done = subprocess.run(command, cwd=root, stdout=nobody, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("given", [["0,4", "8"], ["0", "4", "8"], ["0,4,8"]])
def test_numbers_are_separated_by_spaces_or_commas(given: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", nargs="+", action=WholeNumbers)
    assert parser.parse_args(["--seeds", *given]).seeds == [0, 4, 8]


@pytest.mark.parametrize("given", ["0,x", "-1", ","])
def test_what_is_no_list_of_whole_numbers_is_refused(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", nargs="+", action=WholeNumbers)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--seeds={given}"])
    assert "argument --seeds: " in capsys.readouterr().err


@pytest.mark.parametrize("level", [None, "DEBUG"])
def test_progress_is_not_buried_but_models_that_score_otherwise_are_heard(level: str | None) -> None:
    script = """
import logging
from lm_eval_proca.cli.options import quiet_logging
quiet_logging()
quiet_logging()
logging.getLogger("lm_eval.proca").warning("another's warning")
logging.getLogger("lm_eval.proca.models").warning("model's warning")
logging.getLogger("lm_eval.proca.models").info("model's detail")
"""
    environment = {key: value for key, value in os.environ.items() if key != "LMEVAL_LOG_LEVEL"}
    environment |= {"LMEVAL_LOG_LEVEL": level} if level else {}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    said = done.stdout + done.stderr
    everything = {"another's warning", "model's warning", "model's detail"}
    assert {one for one in everything if one in said} == (everything if level else {"model's warning"})
