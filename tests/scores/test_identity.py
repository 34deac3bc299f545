"""What makes two runs the same, and what never does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lm_eval_proca.errors import TaskError
from lm_eval_proca.scores.identity import differences, model_identity, run_identity, task_config
from lm_eval_proca.scores.redaction import public
from tests.conftest import ROOT, write_jsonl

# ------------------------------------------------------------------ models


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"add_bos_token": True}, {"add_bos_token": False}),
        ({"add_bos_token": True}, {}),
        ({"prefix_token_id": 0}, {"prefix_token_id": 1}),
        ({"custom_prefix_token_id": 0}, {"custom_prefix_token_id": 1}),
        ({"revision": "12e4567"}, {"revision": "13e4567"}),
        ({"api_key": "one"}, {"api_key": "other"}),
        ({"headers": {"X-Deployment": "a"}}, {"headers": {"X-Deployment": "b"}}),
        ({"base_url": "https://a:pw@host/v1"}, {"base_url": "https://b:pw@host/v1"}),
    ],
)
def test_arguments_that_differ_make_two_models(one: dict, other: dict):
    assert model_identity(one, "hf") != model_identity(other, "hf")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"add_bos_token": True}, {"add_bos_token": "true"}),
        ({"max_length": 4, "peft": None}, {"peft": "None", "max_length": "4"}),
        ({"api_key": "k"}, {"api_key": "k"}),
        ({"batch_size": 1, "device": "cpu", "num_concurrent": 2}, {"batch_size": "auto"}),
    ],
)
def test_arguments_that_say_the_same_make_one_model(one: dict, other: dict):
    assert model_identity(one, "hf") == model_identity(other, "hf")


def test_backend_and_weights_are_part_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert model_identity({}, "hf") != model_identity({}, "vllm")
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_identity({"pretrained": "weights"}) == model_identity({"pretrained": str(tmp_path / "weights")})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model: configuration, tokenizer, a small and a large file of weights, the large one in a subfolder."""
    (tmp_path / "main").mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "merges.txt").write_text("a b")
    (tmp_path / "adapter.safetensors").write_bytes(b"before" * 1000)
    (tmp_path / "main" / "model.safetensors").write_bytes(b"before" * 3_000_000)
    return tmp_path


def change(file: Path, place: int) -> None:
    """Write a few other bytes into a file, which keeps its length."""
    with file.open("r+b") as opened:
        opened.seek(place)
        opened.write(b"after")


@pytest.mark.parametrize(
    ("file", "place"),
    [
        ("config.json", 0),
        ("merges.txt", 0),
        ("adapter.safetensors", 3000),
        ("main/model.safetensors", 0),
        ("main/model.safetensors", 17_000_001),
        ("main/model.safetensors", 200_000),  # between the blocks that are read
    ],
)
def test_weights_that_were_changed_are_another_run(folder: Path, file: str, place: int):
    model = model_identity({"pretrained": str(folder), "subfolder": "main"}, "hf")
    before = run_identity(model, None, {})
    change(folder / file, place)
    after = run_identity(model, None, {})
    assert differences(before, after) == "content of a file (pretrained)"
    assert before["model"] == after["model"]  # one model to `compare`


def test_what_is_no_part_of_a_model_does_not_count(folder: Path):
    model = model_identity({"pretrained": str(folder)}, "hf")
    before = run_identity(model, None, {})
    (folder / "training.log").write_text("no part of the model")
    (folder / ".cache" / "huggingface").mkdir(parents=True)
    (folder / ".cache" / "huggingface" / "state.json").write_text("{}")
    (folder / "config.json").touch()  # small files are read whole
    assert run_identity(model, None, {}) == before


def test_weights_in_one_file_count(tmp_path: Path):
    weights = tmp_path / "model.gguf"
    weights.write_bytes(b"before")
    before = run_identity(model_identity({"model": str(weights)}, "gguf"), None, {})
    weights.write_bytes(b"after!")
    after = run_identity(model_identity({"model": str(weights)}, "gguf"), None, {})
    assert differences(before, after) == "content of a file (model)"


SECRET_ARGS = {
    "model": "gpt-x",
    "api_key": "S3CRET",
    "Hf-Token": "S3CRET",
    "use_auth_token": "S3CRET",
    "bearer": "S3CRET",
    "credentials": {"user": "S3CRET"},
    "header": {"Authorization": "S3CRET"},
    "base_url": "https://S3CRET:S3@CRET@host:8000/v1?api-key=S3CRET&version=2",
    "nested": {"deep": [{"password": "S3CRET"}]},
}


def test_secrets_are_written_nowhere():
    assert "CRET" not in json.dumps(model_identity(SECRET_ARGS, "local-completions"))
    shown = public(SECRET_ARGS)
    assert shown == {
        "model": "gpt-x",
        "base_url": "https://host:8000/v1?api-key=&version=2",
        "nested": {"deep": [{}]},
    }


# ------------------------------------------------------------------ tasks

BASE = """
output_type: multiple_choice
doc_to_text: "{{text}}"
doc_to_target: !function rows.target
task_list: [other]
"""
TASK = """
include: base_yaml
task: mine
dataset_path: json
dataset_kwargs: {data_files: {train: DATA}}
metadata: {version: 1}
calibration: {estimate_size: 10}
"""
SETTINGS = {"estimate_size": 10, "estimate_file": None, "data_dir": None, "scores_dir": None}


@pytest.fixture
def write_task(tmp_path: Path) -> Callable[..., Path]:
    """Writes the files of a task into a folder; each may be given another content."""

    def write(name: str = "one", **contents: str) -> Path:
        folder = tmp_path / name
        data = folder / "rows.jsonl"
        write_jsonl(data, [{"text": "a", "label": 0}])
        (folder / "rows.py").write_text(contents.get("rows", "def target(doc): return doc['label']\n"))
        (folder / "base_yaml").write_text(contents.get("base", BASE))
        (folder / "mine.yaml").write_text(contents.get("task", TASK).replace("DATA", str(data)))
        return folder

    return write


def identity(folder: Path, settings: dict[str, Any] | None = None, **run: Any) -> dict:
    run = {"num_fewshot": 4, "seed": 0, "limit": None} | run
    return run_identity(model_identity({}, "hf"), folder / "mine.yaml", {**SETTINGS, **(settings or {})}, **run)


@pytest.mark.parametrize("file", sorted((ROOT / "task_configs").rglob("*.yaml")), ids=lambda file: file.stem)
def test_configuration_is_resolved_as_lm_eval_does(file: Path):
    from lm_eval.tasks._yaml_loader import load_yaml

    theirs = load_yaml(file, resolve_func=False)
    ours = task_config(file)
    assert ours.keys() == theirs.keys()
    for key in theirs:
        function = isinstance(ours[key], dict) and ours[key].get("function")
        assert str(theirs[key]).endswith(f"/{function}") if function else ours[key] == theirs[key]


@pytest.mark.parametrize(
    ("edited", "difference"),
    [
        ({"base": BASE.replace("{{text}}", "Text: {{text}}")}, "task configuration (doc_to_text)"),
        ({"rows": "def target(doc): return 1 - doc['label']\n"}, "task configuration (doc_to_target)"),
        ({"task": TASK.replace("version: 1", "version: 2")}, "task configuration (metadata)"),
        ({"task": TASK + "# a comment\n"}, ""),
        ({"base": BASE.replace("task_list: [other]\n", "")}, ""),
    ],
)
def test_an_edited_task_is_another_and_the_difference_is_named(write_task, edited: dict, difference: str):
    before = identity(write_task())
    assert differences(before, identity(write_task(**edited))) == difference


def test_content_of_files_counts_and_their_place_does_not(write_task, tmp_path: Path):
    folder = write_task(task=TASK.replace("dataset_kwargs: {data_files: {train: DATA}}", "dataset_name: rows"))
    for place, rows in (("a", "one"), ("b", "one"), ("c", "other")):
        write_jsonl(tmp_path / place / "rows" / "train.jsonl", [{"text": rows}])
        write_jsonl(tmp_path / place / "estimate.jsonl", [{"text": rows}])
    a, b, c, none = (identity(folder, {"data_dir": str(tmp_path / place)}) for place in ("a", "b", "c", "nowhere"))
    assert a == b
    assert differences(a, c) == differences(a, none) == "content of a file (data_dir)"
    a, b, c, none = (
        identity(folder, {"estimate_file": str(tmp_path / place / "estimate.jsonl")})
        for place in ("a", "b", "c", "nowhere")
    )
    assert a == b
    assert differences(a, c) == differences(a, none) == "content of a file (estimate_file)"
    assert identity(folder, {"scores_dir": "x"}) == identity(folder, {"scores_dir": "y"})


def test_edited_data_files_of_the_yaml_count(write_task):
    folder = write_task()
    before = identity(folder)
    write_jsonl(folder / "rows.jsonl", [{"text": "b", "label": 1}])
    assert differences(before, identity(folder)) == f"content of a file ({folder / 'rows.jsonl'})"


def test_shots_seed_limit_settings_and_versions(write_task, monkeypatch: pytest.MonkeyPatch):
    folder = write_task()
    one = identity(folder)
    assert differences(one, identity(folder, seed=1, limit=5)) == "run (seed, limit)"
    assert differences(one, identity(folder, {"estimate_size": 11})) == "setting (estimate_size)"
    assert one == identity(folder, {"estimate_size": "10"}, seed="0")
    monkeypatch.setattr("importlib.metadata.version", lambda name: "0.4.99")
    assert differences(one, identity(folder)) == "version (lm-eval)"
    assert json.loads(json.dumps(one)) == one


@pytest.mark.parametrize("text", ["[a list]", "include: mine.yaml", "a: [", "include: nowhere"])
def test_a_file_that_is_no_task_is_one_sentence(tmp_path: Path, text: str):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(TaskError, match=r"The task file .*mine.yaml cannot be read"):
        task_config(tmp_path / "mine.yaml")


def test_a_choice_of_calibrators_is_part_of_a_run_and_its_absence_is_as_before(write_task):
    """It decides what is scored; runs that choose none keep the identity that they had before there was a choice."""
    folder = write_task()
    plain = identity(folder)
    assert identity(folder, {"calibrators": None}) == plain
    assert differences(plain, identity(folder, {"calibrators": ("bc",)})) == "setting (calibrators)"
