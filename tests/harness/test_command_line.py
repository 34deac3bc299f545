"""The `lm_eval` command: its options that touch documents, prompts or filters, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT, write_jsonl

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture
def lm_eval(
    only_our_tasks: None, tiny_gpt2: Path, data_dir: Path, monkeypatch, capsys, tmp_path: Path
) -> Callable[..., tuple]:
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
    assert record["unlabeled_hash"] == other["unlabeled_hash"]
    assert len(accuracies(chat)) == 4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--seed", "None"], r"proca_sst2: without a seed every process would draw another prompt"),
        (["--metadata", "proca.data_dir=/nowhere"], r"proca_sst2: there is no folder /nowhere/sst2"),
    ],
)
def test_a_mistake_ends_the_command_with_its_sentence(lm_eval, arguments, sentence):
    with pytest.raises(SystemExit, match=f"^lm_eval: {sentence}"):
        lm_eval("--limit", "5", *arguments)


def test_a_task_of_ours_that_is_nearly_right(lm_eval):
    with pytest.raises(SystemExit, match=r"^lm_eval: there is no task proca_dmo; .*\. Did you mean proca_demo\?$"):
        lm_eval("--tasks", "proca_dmo")
    for others in ("proca_dmo,nobodys_task", "nobodys_task"):
        with pytest.raises(ValueError, match=f"^Tasks not found: {others.replace(',', ', ')}$"):  # as lm-eval says it
            lm_eval("--tasks", others)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("proca.estimat_size=3", r"unknown setting proca.estimat_size\. Did you mean estimate_size\? The known"),
        ("proca.calibrators=bc/proc", r"there is no calibrator proc; there are none, bc, .*\. Did you mean proca\?"),
        ("proca.estimate_size=many", r"estimate_size must be a whole number of at least 1, got 'many'"),
        ("proca.calibrate=yes", r"calibrate must be true or false, got 'yes'"),
        ("proca=3", r"the metadata key `proca` must be a mapping, got 3"),
    ],
)
def test_a_wrong_setting_is_told_before_the_model_is_loaded(lm_eval, monkeypatch, setting, sentence):
    from lm_eval.models.huggingface import HFLM

    def never(*args, **kwargs):
        raise AssertionError("the model was loaded")

    monkeypatch.setattr(HFLM, "create_from_arg_obj", never)
    with pytest.raises(SystemExit, match=f"^lm_eval: --metadata: {sentence}"):
        lm_eval("--limit", "5", "--metadata", setting)


@pytest.mark.parametrize(
    ("named", "changed", "sentence"),
    [
        ("own_sentiment", {"estimate_size": 1}, "an estimate set of 1 documents is too small for 2 labels"),
        ("own_group", {"estimate_size": "many"}, "estimate_size must be a whole number of at least 1, got 'many'"),
        ("own_tag", {"more": "metric_list: [{metric: acc_norm}]"}, "the metric acc_norm means nothing for calibrated"),
        ("own_*", {"drop": "text_fields"}, "calibration.text_fields is missing"),
        ("own_sentiment", {"text_fields": "[sentence]\n  estimat_seed: 3"}, "unknown setting estimat_seed in the `cal"),
        (
            "own_sentiment",
            {"text_fields": "[sentence]\n  estimate_file: mine/rows.csv"},
            "estimate_file names mine/rows.csv, which does not exist; a path is relative to the folder where lm_eval",
        ),
        (
            "own_sentiment",
            {"drop": "data_folder", "more": "dataset_path: csv\ndataset_kwargs: {data_files: {test: [mine.csv]}}"},
            "data_files names mine.csv, which does not exist; a path is relative to the folder where lm_eval starts",
        ),
    ],
)
def test_a_mistake_in_the_yaml_is_told_before_the_model_is_loaded(lm_eval, own_task, named, changed, sentence):
    """The model does not exist: whoever loads it fails with another message."""
    folder = own_task(**{**changed, "more": changed.get("more", "") + "\ntag: own_tag"})
    (folder / "own_group.yaml").write_text("group: own_group\ntask: [own_sentiment]\n")
    arguments = ["--include_path", str(folder), "--tasks", named, "--metadata", "proca.eval_size=20"]
    arguments += ["--model_args", "pretrained=/no/such/model"]
    with pytest.raises(SystemExit, match=f"^lm_eval: own_sentiment: {sentence}"):
        lm_eval(*arguments)


def test_what_a_group_says_counts_before_the_model_is_loaded(lm_eval, own_task):
    """A YAML that is whole only inside its group is no mistake; one that the group spoils is."""
    folder = own_task(drop="text_fields")
    whole = "calibration: {text_fields: [sentence], estimate_size: SIZE, data_folder: sst2}"
    arguments = ["--include_path", str(folder), "--tasks", "own_group", "--limit", "6", "--metadata", "proca.prompts=1"]
    group = folder / "own_group.yaml"
    for members in (f"task: [own_sentiment]\n{whole}\n", f"task:\n  - task: own_sentiment\n    {whole}\n"):
        group.write_text(f"group: own_group\n{members.replace('SIZE', '20')}")
        assert lm_eval(*arguments)[1]["configs"]["own_sentiment"]["metadata"]["proca"]["estimate_size"] == 20
        group.write_text(f"group: own_group\n{members.replace('SIZE', '1')}")
        with pytest.raises(SystemExit, match=r"^lm_eval: own_sentiment: an estimate set of 1 documents is too small"):
            lm_eval(*arguments, "--model_args", "pretrained=/no/such/model")


@pytest.fixture(scope="module")
def failing_model(tiny_gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny GPT-2 with a hole: whatever comes after a "þ" in its input is NaN."""
    import torch
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    folder = tmp_path_factory.mktemp("failing_model")
    tokenizer = AutoTokenizer.from_pretrained(tiny_gpt2)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(**{**GPT2Config.from_pretrained(tiny_gpt2).to_dict(), "tie_word_embeddings": False})
    )
    with torch.no_grad():
        model.transformer.wte.weight[tokenizer("þ")["input_ids"][-1]] = float("nan")
    model.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_task_whose_scores_cannot_be_calibrated(
    failing_model: Path, lm_eval_project: Path, data_dir: Path, tmp_path: Path, processes: int
):
    """Its raw row, all rows of the other task, both score tables, exit status 0, one sentence in log and results."""
    rows = [json.loads(line) for line in (data_dir / "sst2" / "validation.jsonl").read_text().splitlines()][:40]
    rows[33]["sentence"] += "þ"
    write_jsonl(tmp_path / "data" / "sst2" / "validation.jsonl", rows)
    (tmp_path / "data" / "sst2" / "train.jsonl").symlink_to(data_dir / "sst2" / "train.jsonl")
    several = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    command = [sys.executable, *several, "-m", "lm_eval", "--model", "hf-shared-prefix" if several else "hf"]
    command += ["--model_args", f"pretrained={failing_model}", "--device", "cpu", "--batch_size", "1"]
    command += ["--tasks", "proca_sst2,proca_demo", "--limit", "40", "--output_path", str(tmp_path / "results")]
    command += ["--metadata", f"proca.estimate_size=40,proca.scores_dir={tmp_path / 'scores'}"]
    path = os.pathsep.join([str(lm_eval_project), str(ROOT)])
    environment = {**os.environ, "PROCA_DATA_DIR": str(tmp_path / "data"), "PYTHONPATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]

    (file,) = (tmp_path / "results").rglob("results_*.json")
    results = json.loads(file.read_text())
    rows_of = {
        task: {key.removeprefix("acc,") for key in results["results"][task] if key.startswith("acc,")}
        for task in ("proca_sst2", "proca_demo")
    }
    everything = {"none", "bc", "conca", "proca"} | ({"proca_h"} if processes == 2 else set())
    assert rows_of == {"proca_sst2": {"none"}, "proca_demo": everything}
    record = results["configs"]["proca_sst2"]["metadata"]["proca"]
    assert record["not_calibrated"].keys() == {"bc", "conca", "proca", "proca_h"}
    (sentence,) = set(record["not_calibrated"].values())
    assert sentence.startswith("The model gave nan as the score of label 'Negative' for eval document 33; calibration")
    assert done.stderr.count(f"proca_sst2: no row for bc, conca, proca, proca_h: {sentence}") == 1
    tables = [pq.read_table(path) for path in sorted((tmp_path / "scores").glob("*.parquet"))]
    assert [table.num_rows for table in tables] == [40 + 40 + 3] * 2


PLAIN = """
task: plain
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{sentence}}}} It was"
doc_to_target: label
doc_to_choice: ["bad", "good"]
"""


def test_a_calibrated_and_a_plain_logged_run_of_a_task_are_one_column(lm_eval, data_dir: Path, tmp_path: Path, capsys):
    """They meet by the hashes of their documents, which the one has recorded and the other logged."""
    from lm_eval_proca.cli import main

    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "plain.yaml").write_text(PLAIN.format(rows=data_dir / "sst2" / "validation.jsonl"))
    common = ["--include_path", str(tmp_path / "tasks"), "--tasks", "plain", "--limit", "0.5", "--metadata"]
    lm_eval(*common, "proca.estimate_size=40", "proca.calibrate=true")
    lm_eval(*common, "proca.estimate_size=40")
    runs = [str(folder) for folder in tmp_path.glob("run*")]
    assert len(runs) == 2
    assert main(["compare", *runs, "--tasks", "plain", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {one["dataset"] for one in report["accuracies"]} == {"plain"}
    assert [one["kind"] for one in report["notices"]] == ["calibrated", "duplicate"]
    assert "different" not in report["notices"][1]["text"]
    assert "unknow" not in json.dumps(report)
