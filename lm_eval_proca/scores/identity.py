"""One identity of a run: what makes two runs the same.

Folder names, names of score tables, resumed sweeps, the models of `compare` and the notes of `apply` all ask here. An
identity is known before a model or a dataset is loaded. It has one part per question (which model, which task, ...),
so that a difference can be named, and it is JSON-ready: every finished cell keeps its own as identity.json.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
from collections.abc import Iterator, Mapping
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any

import yaml

from lm_eval_proca.errors import TaskError
from lm_eval_proca.scores.record import FORMAT
from lm_eval_proca.scores.redaction import public
from lm_eval_proca.scores.score_table import ScoreTable

Part = dict[str, Any]
Identity = dict[str, Part]

IDENTITY_FILE = "identity.json"
"""Lies beside the results of every cell."""

PROCEDURE = 4
"""Raised whenever the same run would draw other rows, build other prompts or fit otherwise."""

PARTS = {
    "model": "model",
    "task": "task configuration",
    "settings": "setting",
    "files": "content of a file",
    "run": "run",
    "versions": "version",
}
"""The parts of an identity, in the words of a message."""

BACKEND = "--model"  # no argument can have this name, nor the next; HFLM has one called `backend`
LEFT_OUT = "left-out"
NAMES_OF_WEIGHTS = ("pretrained", "model", "path", "engine")
MAY_BE_FOLDERS = (*NAMES_OF_WEIGHTS, "peft", "delta", "tokenizer")
MODEL_FILES = frozenset({".safetensors", ".bin", ".gguf", ".pt", ".pth", ".json", ".model", ".txt", ".jinja", ".py"})
"""Weights, configuration, tokenizer, chat template, and the code that `trust_remote_code` runs."""

FILE_SETTINGS = ("estimate_file", "demonstration_file")
"""Settings that name a file: its content counts, not its place."""

BLOCK = 1 << 16
SAMPLED_BLOCKS = 16
"""Weights are too large to be read for a hash."""

SPEED_ARGUMENTS = frozenset({"batch_size", "max_batch_size", "device", "num_concurrent", "max_retries", "timeout"})
"""Arguments of a model that decide how fast it answers, not what."""

# ------------------------------------------------------------------ values


def _described(values: Mapping[str, Any]) -> Part:
    """JSON-ready and public; a hash stands for what was left out, so that it still tells two runs apart."""
    left_out: list[Any] = []
    shown: Part = _canonical(public(values, left_out))
    return {**shown, LEFT_OUT: digest(_canonical(left_out), 6)} if left_out else shown


def _canonical(value: Any) -> Any:
    """Typed and textual forms of one value are the same: True and "true", 4 and "4"."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(one) for one in value]
    text = str(value)
    return text.capitalize() if text.lower() in {"true", "false", "none"} else text


def digest(value: Any, digits: int = 12) -> str:
    """A short SHA-256 of anything JSON-ready."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:digits]


# ------------------------------------------------------------------ models


def model_identity(args: Mapping[str, Any], backend: str | None = None) -> Part:
    """Backend and arguments of a model; of arguments that may not be written down, a hash."""
    described = _described({key: value for key, value in args.items() if key not in SPEED_ARGUMENTS})
    for key in MAY_BE_FOLDERS:
        if key in described and os.path.isdir(folder := os.path.expanduser(str(described[key]))):
            described[key] = str(Path(folder).resolve())
    return {BACKEND: backend, **described} if backend else described


def weights_and_rest(model: Part) -> tuple[str | None, Part]:
    """What the arguments of a model call its weights, and the other arguments."""
    named = next((key for key in NAMES_OF_WEIGHTS if model.get(key, "None") not in ("", "None")), "")
    return model.get(named), {key: value for key, value in model.items() if key != named}


# ------------------------------------------------------------------ tasks


class _Function(str):
    """What `!function` names. It is not imported; lm-eval's own loader would give plain text for it."""


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    pass


_Loader.add_constructor("!function", lambda loader, node: _Function(loader.construct_scalar(node)))


def task_config(file: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A task's YAML after `include:`, as lm-eval resolves it; a function is its name and a hash of its file.

    `overrides` are what a group puts in place of some keys.
    """
    try:
        file = Path(file).resolve()
        return _resolved(file) | _with_functions(dict(overrides or {}), file.parent)
    except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise TaskError(f"The task file {file} cannot be read ({type(error).__name__}: {error}).") from error


def _resolved(file: Path) -> dict[str, Any]:
    config = dict(_parsed(file.read_bytes()))
    includes = config.pop("include", [])
    inherited: dict[str, Any] = {}
    for name in includes if isinstance(includes, list) else [includes]:
        inherited |= _resolved(file.parent / name)
        inherited.pop("task_list", None)
    return inherited | _with_functions(config, file.parent)


@cache
def _parsed(text: bytes) -> dict[str, Any]:
    return dict(yaml.load(text, Loader=_Loader))


def _with_functions(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {key: _with_functions(one, folder) for key, one in value.items()}
    if isinstance(value, list):
        return [_with_functions(one, folder) for one in value]
    if callable(value):
        return {"function": value.__qualname__, "content": content(inspect.getfile(value))}
    if not isinstance(value, _Function):
        return value
    file = _defining_file(value.rpartition(".")[0], folder)
    return {"function": str(value), "content": content(file) if file else None}


def _defining_file(module: str, folder: Path) -> str | Path | None:
    beside = folder / f"{module.replace('.', '/')}.py"
    if beside.exists() or module.startswith("lm_eval_proca"):  # whether ours still do the same, PROCEDURE says
        return beside
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # the task itself will say so
        return None
    return found.origin if found else None


def _files(model: Part, config: Mapping[str, Any], settings: Mapping[str, Any]) -> Part:
    """Local files that model and task read: hashes of their content."""
    hashes: Part = {}
    if (folder := data_folder(config, settings)) is not None:
        paths = sorted(folder.glob("*.jsonl")) or sorted(folder.rglob("*.*"))
        hashes["data_dir"] = [[path.name, content(path)] for path in paths]
    for name in texts_in([config.get("dataset_path"), config.get("dataset_kwargs")]):
        if paths := sorted(Path(name).rglob("*.*") if os.path.isdir(name) else map(Path, glob(name))):
            hashes[name] = [[path.name, content(path)] for path in paths]
    for key in FILE_SETTINGS:
        if (file := settings.get(key)) is not None:
            hashes[key] = content(file)
    for key in MAY_BE_FOLDERS:
        if files := _model_files(Path(model.get(key) or "None")):
            hashes[key] = [[name, content(path, SAMPLED_BLOCKS)] for name, path in files.items()]
    return hashes


def _model_files(place: Path) -> dict[str, Path]:
    """A file, or those of a model below a folder, by their relative paths; hidden files and folders do not count."""
    if place.is_file():
        return {place.name: place}
    below = {path.relative_to(place): path for path in sorted(place.rglob("*")) if path.suffix in MODEL_FILES}
    return {str(name): path for name, path in below.items() if not any(part.startswith(".") for part in name.parts)}


def data_folder(config: Mapping[str, Any], settings: Mapping[str, Any]) -> Path | None:
    """Where a task's rows lie in `proca.data_dir`; None if they come from elsewhere."""
    given, name = settings.get("data_dir"), settings.get("data_folder")
    names_its_files = "data_files" in (config.get("dataset_kwargs") or {}) and name is None
    if given is None or config.get("custom_dataset") is not None or names_its_files:
        return None
    return Path(given).expanduser() / (name or config.get("dataset_name") or Path(str(config.get("dataset_path"))).name)


def texts_in(value: Any) -> Iterator[str]:
    """A text, or those in lists and mappings of any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from texts_in(one)


def content(path: str | os.PathLike[str], blocks: int | None = None) -> str | None:
    """A hash of what a file holds, or None if there is none.

    Of a file with more than so many `blocks`, the hash covers size, modification time and these blocks, because a
    changed matrix may lie between them. A copy with a new time counts as another file, and the cell runs again.
    """
    path = Path(path).expanduser()
    try:
        stat = path.stat()
        return _content(path, stat.st_size, stat.st_mtime_ns, blocks)
    except OSError:
        return None


@cache
def _content(path: Path, size: int, mtime_ns: int, blocks: int | None) -> str:
    sampled = blocks is not None and size > blocks * BLOCK
    found = hashlib.sha256(f"{size} {mtime_ns if sampled else ''}".encode())
    with open(path, "rb") as file:
        for start in range(0, size, size // blocks if blocks and sampled else BLOCK):
            file.seek(start)
            found.update(file.read(BLOCK))
    return found.hexdigest()[:16]


# ------------------------------------------------------------------ runs


def run_identity(
    model: Part,
    task_file: str | os.PathLike[str] | None,
    settings: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    **run: Any,
) -> Identity:
    """What decides a run of a model on the task of a YAML file, if it has one.

    `settings` are the `calibration:` block as the run has changed it, `overrides` what a group changes in the YAML,
    `run` is shots, seed and limit. Of files the content counts, not the place (of weights, both). lm-eval's version
    is part of it because it builds prompts and requests; ours is as PROCEDURE. Those of torch and transformers are
    not: they change the last digits of a score. A choice of calibrators is, where somebody made one: it decides which
    inputs are scored and whether hidden states are kept.
    """
    settings = {key: value for key, value in settings.items() if (key, value) != ("calibrators", None)}
    config = task_config(task_file, overrides) if task_file else {}
    places = ("scores_dir", "data_dir", "data_folder", *FILE_SETTINGS)
    return {
        "model": model,
        "task": _described({key: value for key, value in config.items() if key != "calibration"}),
        "settings": _described({key: value for key, value in settings.items() if key not in places}),
        "files": _files(model, config, settings),
        "run": _described(run),
        "versions": {
            "lm-eval": importlib.metadata.version("lm-eval"),
            "procedure": str(PROCEDURE),
            "record": str(FORMAT),  # a finished cell that this version cannot read runs again
        },
    }


def identity_of_task(metadata: Mapping[str, Any], settings: Mapping[str, Any], run: Mapping[str, Any]) -> Part:
    """Name of the weights, identity and hash of the model, as a task knows them from inside a run: without the backend.

    `metadata` is the task's, to whose own keys lm-eval adds the model's arguments and `--metadata`. Nothing is known of
    a model that was handed over as a Python object.
    """
    given = str(metadata.get("config_source"))
    source = given if os.path.isfile(given) else None
    own = task_config(source).get("metadata") if source else None
    own = own if isinstance(own, dict) else {}
    ours = {"proca", "version", "config_source"}
    model = model_identity({key: value for key, value in metadata.items() if key not in ours and own.get(key) != value})
    identity = run_identity(model, source, settings, **run)
    who = [model, {key: identity["files"].get(key) for key in MAY_BE_FOLDERS}]
    return {"model": weights_and_rest(model)[0], "model_hash": digest(who) if model else None, "identity": identity}


def score_table_name(table: ScoreTable) -> str:
    """The file of a score table: the same run again replaces it, another never does.

    Chat templates, system prompts, `--samples` and what a group overrides are not in the identity, but in the hashes
    of what was scored and in the labels. With another representation, or none, it is another table: none must be lost.
    """
    record = table.record
    hashes = [record.model_hash, record.documents_hash, record.prompt_hash, record.unlabeled_hash]
    end = digest([record.identity, hashes, record.labels, record.representation])
    prompt = f"-prompt{record.prompt}" if record.prompts > 1 else ""
    return f"{record.task}-{record.num_fewshot}shot-seed{record.seed}{prompt}-{end}.parquet"


def differences(one: Mapping[str, Mapping[str, Any]], other: Mapping[str, Mapping[str, Any]]) -> str:
    """What tells two identities apart, e.g. "task configuration (doc_to_text)"; empty for the same."""
    differing = []
    for part, words in PARTS.items():
        ours, theirs = one.get(part, {}), other.get(part, {})
        keys = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
        if keys:
            differing.append(f"{words} ({', '.join(keys)})")
    return " and ".join(differing)
