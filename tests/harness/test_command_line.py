"""The options of the `lm_eval` command that touch documents, prompts or filters, through its real entry point."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lm_eval_proca.errors import TaskError

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def scan_once():
    """lm-eval reads its ten thousand YAML files anew for every command: here they are read once."""
    from lm_eval.tasks._index import TaskIndex

    plain, known = TaskIndex.build, {}

    def build(paths, **kwargs):
        paths = tuple(paths)
        if paths not in known:
            known[paths] = plain(paths, **kwargs)
        return dict(known[paths])

    TaskIndex.build = staticmethod(build)
    yield
    TaskIndex.build = staticmethod(plain)


@pytest.fixture
def lm_eval(scan_once, tiny_gpt2: Path, data_dir: Path, monkeypatch, capsys, tmp_path: Path) -> Callable[..., tuple]:
    """Runs `lm_eval …` in this process; returns what it printed and the results file, if there is one."""
    from lm_eval.__main__ import cli_evaluate

    monkeypatch.setenv("PROCA_DATA_DIR", str(data_dir))
    monkeypatch.setenv("LM_HARNESS_CACHE_PATH", str(tmp_path / "requests"))

    def run(*arguments: str, tokenizer: Path | None = None) -> tuple[str, dict]:
        output = tmp_path / f"run{len(list(tmp_path.iterdir()))}"
        model_args = f"pretrained={tiny_gpt2}" + (f",tokenizer={tokenizer}" if tokenizer else "")
        line = ["lm_eval", "--model", "hf", "--model_args", model_args, "--device", "cpu", "--batch_size", "16"]
        line += ["--tasks", "proca_sst2", "--output_path", str(output), "--log_samples", *arguments]
        if "--metadata" not in arguments:
            line += ["--metadata", "proca.estimate_size=40"]
        monkeypatch.setattr(sys, "argv", line)
        cli_evaluate()
        (file,) = output.rglob("results_*.json")
        return capsys.readouterr().out, json.loads(file.read_text())

    return run


def accuracies(results: dict) -> dict[str, float]:
    return {key: value for key, value in results["results"]["proca_sst2"].items() if key.startswith("acc,")}


def test_the_table_has_a_row_per_filter_with_its_stderr(lm_eval):
    printed, results = lm_eval("--num_fewshot", "2", "--limit", "20")
    rows = [line.split("|") for line in printed.splitlines() if line.startswith("|") and "acc" in line]
    assert [row[3].strip() for row in rows] == ["bc", "conca", "none", "proca"]
    assert all(float(row[9]) >= 0 for row in rows)
    record = results["configs"]["proca_sst2"]["metadata"]["proca"]
    assert set(record["fits"]) == {"bc", "conca", "proca"}
    assert record["num_fewshot"] == 2


def test_caches_change_no_number(lm_eval, tmp_path: Path):
    """--use_cache answers from its file; --cache_requests is left aside because its key knows no seed."""
    plain = lm_eval("--num_fewshot", "2", "--limit", "20", "--seed", "1")[1]
    options = [
        "--use_cache",
        str(tmp_path / "cache"),
        "--cache_requests",
        "true",
        "--num_fewshot",
        "2",
        "--limit",
        "20",
    ]
    for _ in range(2):
        assert accuracies(lm_eval(*options, "--seed", "1")[1]) == accuracies(plain)
    other = lm_eval(*options, "--seed", "2")[1]
    assert (
        other["configs"]["proca_sst2"]["metadata"]["proca"]["prompt_hash"]
        != plain["configs"]["proca_sst2"]["metadata"]["proca"]["prompt_hash"]
    )


def test_predict_only_and_write_out(lm_eval, caplog):
    _, results = lm_eval("--predict_only", "--write_out", "--limit", "5")
    assert not accuracies(results)
    assert "document 0; context prompt" in caplog.text


def test_chat_template(lm_eval, tiny_gpt2: Path, tmp_path: Path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_gpt2)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(tmp_path / "chat")
    options = ["--num_fewshot", "2", "--limit", "8", "--apply_chat_template"]
    chat = lm_eval(*options, tokenizer=tmp_path / "chat")[1]
    plain = lm_eval("--num_fewshot", "2", "--limit", "8")[1]
    record, other = (run["configs"]["proca_sst2"]["metadata"]["proca"] for run in (chat, plain))
    assert record["prompt_hash"] != other["prompt_hash"]
    assert record["estimate_hash"] == other["estimate_hash"]
    assert len(accuracies(chat)) == 4


def test_seed_none_is_refused(lm_eval):
    with pytest.raises(TaskError, match="without a seed every process would draw another prompt"):
        lm_eval("--seed", "None", "--limit", "5")


def test_an_unknown_setting_is_refused(lm_eval):
    with pytest.raises(TaskError, match=r"unknown setting estimat_size .* the known ones are"):
        lm_eval("--limit", "5", "--metadata", "proca.estimat_size=3")
