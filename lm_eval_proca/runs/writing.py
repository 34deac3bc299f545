"""Calibrated runs as files: results and sample logs as lm-eval writes them, each whole or not at all."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.files import replacing
from lm_eval_proca.runs.finished import CalibratedRun, FittedTask
from lm_eval_proca.runs.output_folder import ACCURACY, samples_file
from lm_eval_proca.runs.sample_logs import Fields, first_lines, lines
from lm_eval_proca.scores.fitting import RAW
from lm_eval_proca.scores.gold import NO_GOLD


class CannotWrite(ResultsError):
    """A folder that takes no files, or not these: no other result could be written there either."""


def check_folder(folder: Path) -> None:
    """Fail early if files cannot be written into the folder."""
    with _sentence_about(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()


def write_samples(task: FittedTask, folder: Path) -> None:
    """lm-eval's sample log, and then one line per document for every calibrator."""
    gold = task.table.gold_of("eval")
    rows = {index: row for row, index in enumerate(task.table.index_of("eval").tolist())}
    with _written(folder / task.log.path.name) as unfinished, unfinished.open("wb") as written:
        if task.prompts or task.replaced:
            for _, fields in lines(task.log.path):
                name, row = fields.get("filter", RAW), rows[int(fields["doc_id"])]
                if name not in task.fits and name not in task.replaced:  # else it comes below, or not any more
                    over = {} if name in CALIBRATORS else _over_prompts(task, RAW, row, gold[row])
                    names = list(dict.fromkeys([*fields.get("metrics", ()), *over]))
                    written.write(_line({**fields, "metrics": names, **over}))
        else:
            with task.log.path.open("rb") as logged:
                shutil.copyfileobj(logged, written)
        for name, fit in task.fits.items():
            right = np.argmax(fit.log_proba, axis=1) == gold
            for _, fields in first_lines(task.log.path):
                row = rows[int(fields["doc_id"])]
                metrics = {ACCURACY: float(right[row])} if gold[row] != NO_GOLD else {}
                metrics |= _over_prompts(task, name, row, gold[row])
                written.write(_line(_with_filter(fields, name, fit.log_proba[row], metrics)))


def write_results(run: CalibratedRun, target: Path) -> None:
    """The logs of tasks without calibrated rows as they are, and the results file: whoever finds it finds all logs."""
    for task in run.document["configs"]:
        source = samples_file(run.file, task)
        if source.is_file() and task not in run.calibrated:
            with _written(target.parent / source.name) as unfinished:
                shutil.copyfile(source, unfinished)
    with _written(target) as unfinished:
        unfinished.write_text(json.dumps(run.document, indent=2, ensure_ascii=False), encoding="utf-8")


def _over_prompts(task: FittedTask, name: str, row: int, gold: int) -> dict[str, Any]:
    """Right or wrong under every prompt and under all together; nothing for one prompt, or without a gold label."""
    if not task.prompts or gold == NO_GOLD:
        return {}
    found = task.prompts[name]
    by_prompt = [float(label == gold) for label in found.predicted[:, row]]
    return {"acc_prompts": by_prompt, "acc_together": float(found.predicted_together[row] == gold)}


def _with_filter(fields: Fields, name: str, log_proba: np.ndarray, metrics: Mapping[str, Any]) -> Fields:
    """The same document as lm-eval would log it under a calibrator's filter, whose metrics are those of accuracy."""
    greedy = [response[0][1] for response in fields["resps"]][: len(log_proba)]
    kept, hashes = ("doc_id", "doc", "target", "arguments", "resps"), ("doc_hash", "prompt_hash", "target_hash")
    return {
        **{key: fields[key] for key in kept if key in fields},
        "filtered_resps": [[str(score), flag] for score, flag in zip(log_proba.tolist(), greedy, strict=True)],
        "filter": name,
        "metrics": list(metrics),
        **{key: fields[key] for key in hashes if key in fields},
        **metrics,
    }


def _line(fields: Fields) -> bytes:
    return f"{json.dumps(fields, ensure_ascii=False)}\n".encode()


@contextmanager
def _written(path: Path) -> Iterator[Path]:
    """A file to write, which takes its place once it is whole."""
    with _sentence_about(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            yield unfinished


@contextmanager
def _sentence_about(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotWrite(
            f"Cannot write {path} ({error.strerror}); what was written before is whole. Make room or name another "
            f"--output, and run the command again."
        ) from error
