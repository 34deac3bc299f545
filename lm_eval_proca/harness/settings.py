"""The `calibration:` block of a task and the `proca.*` settings that override it at run time."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lm_eval_proca.errors import TaskError

logger = logging.getLogger("lm_eval.proca")

DATA_DIR_VARIABLE = "PROCA_DATA_DIR"
PREFIX = "proca"


@dataclass(frozen=True)
class Settings:
    """How one task is calibrated; every field is a key of the YAML block and a `--metadata proca.<key>=…`."""

    estimate_split: str = "train"
    """Split that the estimate set is drawn from."""
    estimate_size: int = 500
    """Number of unlabeled documents that the calibrators are fitted on."""
    estimate_seed: int | None = None
    """Seed of the estimate set alone; by default the seed of the demonstrations decides both."""
    estimate_file: str | None = None
    """JSON Lines file of documents to use as the estimate set instead of the split."""
    text_fields: tuple[str, ...] = ()
    """Columns that carry the input; a content-free document replaces all of them together."""
    eval_size: int | None = None
    """Number of evaluation documents, a fixed random part of the split; by default all of it."""
    data_dir: str | None = None
    """Folder with local copies of the datasets, instead of the hub."""
    data_folder: str | None = None
    """Name of this dataset's folder in `data_dir`; by default the hub's name of the dataset."""
    demonstration_counts: tuple[int, ...] | None = None
    """Number of demonstrations per label id, e.g. 3/5; by default they are drawn regardless of their label."""
    order_seed: int | None = None
    """Seed of the order of the demonstrations alone; by default the order in which they were drawn."""
    layers: tuple[int | float, ...] = (0.5, 0.75, 1.0)
    """Layers whose hidden states are kept beside the scores: indices, or fractions of the depth; () keeps none."""
    scores_dir: str | None = None
    """Folder that gets the score table of the run."""


KNOWN = tuple(field.name for field in fields(Settings))

CALIBRATE = "calibrate"
"""`--metadata proca.calibrate=true` calibrates lm-eval's own tasks too: a word about a run, not about a task."""


def read_settings(task: str, block: Any, metadata: Mapping[str, Any]) -> Settings:
    """The YAML block of a task, overridden by the run's metadata, overridden by nothing."""
    if not isinstance(block, Mapping):
        raise TaskError(f"{task}: the `calibration:` block must be a mapping, got {block!r}.")
    if unknown := sorted(set(map(str, block)) - set(KNOWN)):
        raise TaskError(
            f"{task}: unknown setting {', '.join(unknown)} in the `calibration:` block; the known ones are "
            f"{', '.join(KNOWN)}."
        )
    if bare := sorted(set(metadata) & set(KNOWN)):
        logger.warning(f"{task}: {bare[0]} in --metadata is not read; did you mean {PREFIX}.{bare[0]}?")
    given = {key: _typed(task, key, value) for key, value in block.items()}
    if os.environ.get(DATA_DIR_VARIABLE):
        given["data_dir"] = os.environ[DATA_DIR_VARIABLE]
    of_run = settings_of_run(metadata, source=task)
    return Settings(**{**given, **{key: value for key, value in of_run.items() if key != CALIBRATE}})


def settings_of_run(metadata: Mapping[str, Any], *, source: str = "--metadata") -> dict[str, Any]:
    """The `proca.*` settings in a run's metadata, or a sentence that begins with their `source`.

    lm-eval hands over `--metadata` merged with `--model_args`: dotted keys stay flat, values come typed. Both
    `{"proca.estimate_size": 200}` and `{"proca": {"estimate_size": 200}}` are understood.
    """
    nested = metadata.get(PREFIX, {})
    if not isinstance(nested, Mapping):
        raise TaskError(f"{source}: the metadata key `{PREFIX}` must be a mapping, got {nested!r}.")
    flat = {key[len(PREFIX) + 1 :]: value for key, value in metadata.items() if key.startswith(f"{PREFIX}.")}
    given = {**nested, **flat}
    known = (*KNOWN, CALIBRATE)
    if unknown := sorted(f"{PREFIX}.{key}" for key in set(map(str, given)) - set(known)):
        raise TaskError(f"{source}: unknown setting {', '.join(unknown)}; the known ones are {', '.join(known)}.")
    return {key: _typed(source, key, value) for key, value in given.items()}


def without_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The run's metadata less our settings."""
    return {key: value for key, value in metadata.items() if key != PREFIX and not key.startswith(f"{PREFIX}.")}


def _typed(source: str, key: str, value: Any) -> Any:
    if key == CALIBRATE:
        if not isinstance(value, bool):
            raise TaskError(f"{source}: calibrate must be true or false, got {value!r}.")
        return value
    if value is None:
        if getattr(Settings, key) is not None:
            raise TaskError(f"{source}: {key} must have a value, got null; leave it out for its default.")
        return None
    if key in {"estimate_size", "eval_size"}:
        return _whole_number(source, key, value, least=1)
    if key in {"estimate_seed", "order_seed"}:
        return _whole_number(source, key, value, least=0)
    if key == "text_fields":
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)) or not parts:
            raise TaskError(f"{source}: text_fields must name the text columns, e.g. [sentence], got {value!r}.")
        return tuple(str(part) for part in parts)
    if key == "demonstration_counts":
        # Commas separate settings on lm-eval's command line, so counts are written with slashes there.
        parts = value.split("/") if isinstance(value, str) else value
        if not isinstance(parts, (list, tuple)):
            raise TaskError(f"{source}: demonstration_counts must be counts per label id such as 3/5, got {value!r}.")
        return tuple(_whole_number(source, key, part, least=0) for part in parts)
    if key == "layers":
        return _layers(source, value)
    return str(value)


def _layers(source: str, value: Any) -> tuple[int | float, ...]:
    """`0.5/1.0` or `20/30`: a number with a point is a fraction of the depth. `none` keeps no hidden states."""
    if value == "none" or value == []:
        return ()
    parts = value.split("/") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    try:
        return tuple(float(part) if "." in str(part) else int(part) for part in parts)
    except (TypeError, ValueError):
        raise TaskError(
            f"{source}: layers must be indices or fractions of the depth such as 20/30 or 0.5/1.0, or none, got "
            f"{value!r}."
        ) from None


def _whole_number(source: str, key: str, value: Any, *, least: int) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise TaskError(f"{source}: {key} must be a whole number of at least {least}, got {value!r}.")
    return number
