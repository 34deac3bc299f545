"""Documents that are scored only to fit a calibrator: the estimate set and the content-free inputs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from lm_eval_proca.errors import TaskError

CONTENT_FREE_TEXTS = ("N/A", "", "[MASK]")
"""The three content-free inputs of contextual calibration (Zhao et al. 2021), which the paper compares with."""

ESTIMATE_FILE_KEY = "lm_eval_proca"
"""The first line of a generated estimate set is {ESTIMATE_FILE_KEY: provenance}; every other line is a document."""


class UnlabeledDoc(dict[str, Any]):
    """A document that is scored under the prompt and has no target: its label column, if any, was left out."""


def without_label(row: Mapping[str, Any], label_column: str | None) -> UnlabeledDoc:
    return UnlabeledDoc({key: value for key, value in row.items() if key != label_column})


def content_free_docs(
    example: Mapping[str, Any], text_fields: Sequence[str], label_column: str | None
) -> list[UnlabeledDoc]:
    """One document per content-free text, which stands in for all text fields together."""
    blank = without_label(example, label_column)
    return [UnlabeledDoc({**blank, **dict.fromkeys(text_fields, text)}) for text in CONTENT_FREE_TEXTS]


def draw_rows(
    pool: Sequence[dict[str, Any]], size: int, seed: int | None, *, allowed: Callable[[Any], bool]
) -> list[dict[str, Any]]:
    """A seeded random sample of the allowed rows of `pool`: `size` of them, or as many as there are.

    The seed is mixed with a word, so that demonstrations and estimate rows drawn with the same seed from the same
    split are independent draws. A larger set contains a smaller one of the same seed.
    """
    order = list(range(len(pool)))
    Random(f"estimate-{seed}").shuffle(order)
    return list(islice(filter(allowed, (pool[i] for i in order)), size))


def read_estimate_file(
    path: str, *, task: str, text_fields: Sequence[str]
) -> tuple[dict[str, Any], list[UnlabeledDoc]]:
    """Provenance and documents of a JSON Lines file, as `lm-eval-proca generate` writes it.

    A file without the provenance line is somebody's own rows and as good.
    """
    try:
        # Not splitlines(): a text may hold U+2028 and other characters that end a line there, but not in JSON Lines.
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise TaskError(f"{task}: cannot read proca.estimate_file={path} ({error.strerror}).") from error
    provenance: dict[str, Any] = {}
    docs: list[UnlabeledDoc] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise TaskError(f"{task}: line {number} of {path} is not JSON; the file is damaged.") from error
        if not isinstance(row, dict):
            raise TaskError(f"{task}: line {number} of {path} is not a JSON object.")
        if number == 1 and ESTIMATE_FILE_KEY in row:
            provenance = dict(row[ESTIMATE_FILE_KEY])
            continue
        missing = [name for name in text_fields if not isinstance(row.get(name), str)]
        if missing:
            raise TaskError(
                f"{task}: line {number} of {path} has no text in field {', '.join(missing)}; this task needs "
                f"{', '.join(text_fields)} in every row."
            )
        docs.append(UnlabeledDoc({name: row[name] for name in text_fields}))
    made_for = provenance.get("task")
    if made_for is not None and made_for != task:
        raise TaskError(f"{task}: {path} was generated for the task {made_for}; generate one for {task}.")
    return provenance, docs


def fingerprint(parts: Iterable[Any]) -> str:
    """Short SHA-256 of a sequence of JSON-ready parts: equal rows, equal hash."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(json.dumps(part, sort_keys=True, ensure_ascii=False, default=str).encode())
        digest.update(b"\n")
    return digest.hexdigest()[:16]
