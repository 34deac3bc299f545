"""The files that one run of `lm_eval --output_path` leaves: their names, which belong together, and results files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_eval_proca.errors import ResultsError
from lm_eval_proca.scores.record import RunRecord

# lm-eval writes results_<date>.json into a folder, or <stem>_<date>.json where --output_path is a JSON file.
RESULT_FILE = re.compile(r"(results|.+_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(\.\d+)?))\.json", re.DOTALL)
SAMPLES_FILE = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT[\d.-]+)\.jsonl", re.DOTALL)

ACCURACY = "acc"
BY_PROMPT, TOGETHER = "acc_prompts", "acc_together"
"""What only runs with several prompts have."""


def result_files(folders: Iterable[str | Path]) -> list[Path]:
    """The files named, and every results file inside the folders named; each once."""
    files: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if folder.is_file():
            found = [folder]
        elif folder.is_dir():
            found = [path for path in visible_files(folder, "*.json") if RESULT_FILE.fullmatch(path.name)]
        else:
            raise ResultsError(f"There is no folder {folder}; give folders that `lm_eval --output_path` wrote.")
        if not found:
            raise ResultsError(
                f"{folder} holds no results_DATE.json with a date as in results_2026-01-31T12-00-00.json; give folders "
                f"that `lm_eval --output_path` wrote, or renamed files themselves.{_score_tables_in(folder)}"
            )
        for path in found:
            files.setdefault(path.resolve(), path)
    return list(files.values())


def _score_tables_in(folder: Path) -> str:
    """The end of a sentence about a folder without results: what takes the score tables that it holds."""
    calibrate = f"`lm-eval-proca calibrate {folder}` takes them, and --output FILE.json keeps their numbers"
    return f" It holds score tables: {calibrate}." if visible_files(folder, "*.parquet") else ""


def visible_files(folder: Path, pattern: str) -> list[Path]:
    """By name, without hidden ones: a hidden file or folder is unfinished work."""
    return [
        path
        for path in sorted(folder.rglob(pattern))
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def samples_file(results: Path, task: str) -> Path:
    """Where `--log_samples` put the documents of one task of a results file."""
    match = RESULT_FILE.fullmatch(results.name)
    return results.parent / f"samples_{task}_{match['date'] if match else None}.jsonl"


def samples_without_results(folders: Iterable[str | Path]) -> list[Path]:
    """Sample logs inside the folders without a results file beside them: what an interrupted run leaves."""
    logs = [path for folder in folders for path in visible_files(Path(folder), "samples_*.jsonl")]
    dated = [(path, match["date"]) for path in logs if (match := SAMPLES_FILE.fullmatch(path.name))]
    return [path for path, date in dated if not any(path.parent.glob(f"*_{date}.json"))]


def leaves(group_subtasks: Mapping[str, Sequence[str]], name: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """The tasks of a group and of its subgroups, as the results file lists them; a task yields itself."""
    children = group_subtasks.get(name) or []
    if not children:
        yield name
    for child in children:
        if child not in above:
            yield from leaves(group_subtasks, child, (*above, name))


def read_document(file: Path) -> dict[str, Any]:
    """A results file of lm-eval, or a sentence."""
    with or_skipped(file):
        document = json.loads(file.read_text(encoding="utf-8"))
        for key in ("results", "configs"):
            if not isinstance(document, dict) or not _all_objects(document.get(key)):
                raise ResultsError(f"it has no object '{key}', so it is not a result of lm-eval")
        for key in ("groups", "n-samples", "higher_is_better", "group_subtasks", "n-shot"):
            value, of_objects = document.get(key) or {}, key not in ("group_subtasks", "n-shot")
            if not (_all_objects(value) if of_objects else isinstance(value, dict)):
                raise ResultsError(f"its '{key}' is not what lm-eval writes")
    return document


def _all_objects(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(one, dict) for one in value.values())


@contextmanager
def or_skipped(file: Path) -> Iterator[None]:
    """Turn what is wrong with a results file into a sentence that names the file."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise ResultsError(f"{file} was skipped: it is not valid JSON ({error}).") from error
    except RecursionError as error:
        raise ResultsError(f"{file} was skipped: it is nested too deeply to be a result.") from error
    except (OSError, ValueError) as error:
        raise ResultsError(f"{file} was skipped: {printable(error).rstrip('.')}.") from error


def printable(text: Any) -> str:
    """No control or direction-changing characters, which could rewrite a terminal or a table."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(text))


def mapping(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object of a document; empty where it has none of that name."""
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def about_task(document: Mapping[str, Any], task: str) -> dict[str, Any]:
    """A results file as it would be if this had been its only task."""
    of_tasks = ("results", "configs", "n-shot", "n-samples")
    parts = {key: {task: found[task]} for key in of_tasks if task in (found := mapping(document, key))}
    return {"model_name": document.get("model_name"), **parts}


def record_of(task_config: Mapping[str, Any], task: str) -> RunRecord:
    """What a calibrated run has written about itself; nothing is known of other runs."""
    written = mapping(task_config, "metadata").get("proca")
    return RunRecord() if written is None else RunRecord.of_json(written, task)


def evaluated(document: Mapping[str, Any], task: str) -> Any:
    """How many documents lm-eval says it has evaluated."""
    return mapping(mapping(document, "n-samples"), task).get("effective")
