"""Where the rows of a task come from, and which of them are evaluated."""

from __future__ import annotations

import random
from pathlib import Path

import datasets
from lm_eval.config.task import TaskConfig

from lm_eval_proca.errors import TaskError
from lm_eval_proca.harness.settings import DATA_DIR_VARIABLE, Settings
from lm_eval_proca.scores.identity import data_folder

EVAL_SEED = 0
"""Decides, once and for all, which evaluation documents `eval_size` and `--limit` keep."""


def local_folder(config: TaskConfig, settings: Settings) -> Path | None:
    """The folder of `proca.data_dir` that stands in for the hub's dataset, if one does."""
    folder = data_folder(vars(config), vars(settings))
    if folder is not None and not folder.is_dir():
        raise TaskError(
            f"{config.task}: there is no folder {folder}; proca.data_dir (or {DATA_DIR_VARIABLE}) must hold this "
            f"dataset as {folder.name}/<split>.jsonl, or be left out to read the hub."
        )
    return folder


def read_folder(folder: Path) -> datasets.DatasetDict:
    """`<split>.jsonl` files, whose columns may differ (an estimate split needs no label); or what `datasets` reads."""
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        return datasets.load_dataset(str(folder))
    return datasets.DatasetDict({file.stem: datasets.Dataset.from_json(str(file)) for file in files})


def check_dataset(dataset: datasets.DatasetDict, config: TaskConfig, settings: Settings) -> None:
    """The splits and text columns that the YAML names are there."""
    eval_split = config.test_split or config.validation_split
    needed = {eval_split, config.training_split, config.fewshot_config.split}
    if settings.estimate_file is None:
        needed.add(settings.estimate_split)
    for split in sorted(filter(None, needed)):
        if split not in dataset:
            raise TaskError(
                f"{config.task}: the dataset has no split '{split}', only {', '.join(sorted(dataset))}; name one of "
                f"these in the YAML (test_split, validation_split, fewshot_split, calibration.estimate_split)."
            )
    if config.process_docs is not None:  # which may make columns
        return
    for split in sorted({eval_split, settings.estimate_split} & set(dataset)):
        missing = [name for name in settings.text_fields if name not in dataset[split].column_names]
        if missing:
            raise TaskError(
                f"{config.task}: the split '{split}' has no column {', '.join(missing)}, only "
                f"{', '.join(dataset[split].column_names)}; correct calibration.text_fields."
            )


def fixed_part(total: int, size: int) -> list[int]:
    """Indices of `size` of `total` documents, mixed over the whole set, ascending; a larger part contains a smaller.

    Document 0 is always one of them, because `--write_out` shows that document or none.
    """
    order = list(range(1, total))
    random.Random(EVAL_SEED).shuffle(order)
    return sorted([0, *order][:size])
