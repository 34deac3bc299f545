"""Loads the sentences of `proca_demo` from the files beside this module: no hub, no cache, no network."""

from __future__ import annotations

import json
from pathlib import Path

from datasets import Dataset, DatasetDict

SPLITS = ("train", "validation", "estimate")


def load(**metadata: object) -> DatasetDict:
    """What lm-eval calls for `custom_dataset`; it passes the task's metadata, of which nothing is needed here."""
    folder = Path(__file__).parent
    return DatasetDict({split: Dataset.from_list(_rows(folder / f"{split}.jsonl")) for split in SPLITS})


def _rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
