"""Settings of a task and of a run: the `calibration:` block, the `proca.*` settings that override it, and the YAML.

All of it is checked before anything is downloaded or scored.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import Any

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS, default_names
from lm_eval_proca.errors import CalibrationError, TaskError, did_you_mean
from lm_eval_proca.harness.prompts import KINDS, read_templates, template_of
from lm_eval_proca.representations import Layer
from lm_eval_proca.scores.fitting import RAW, calibrator_of_step
from lm_eval_proca.scores.identity import FILE_SETTINGS, data_folder, texts_in

logger = logging.getLogger("lm_eval.proca")

DATA_DIR_VARIABLE = "PROCA_DATA_DIR"
PREFIX = "proca"
FILE_FORMATS = ("csv", "json", "parquet")
"""What a `dataset_path` calls files of one's own."""
PLAIN_PATH = re.compile(r"[^*?\[{:~]+")
"""Neither a pattern nor an address."""
REPRESENTATIONS = ("auto", "layers", "probes", "none")


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
    """JSON Lines or CSV file of documents to use as the estimate set instead of the split."""
    text_fields: tuple[str, ...] = ()
    """Columns that carry the input; a content-free document replaces all of them together."""
    eval_size: int | None = None
    """Number of evaluation documents, a fixed random part of the split; by default all of it."""
    data_dir: str | None = None
    """Folder with local copies of the datasets, instead of the hub."""
    data_folder: str | None = None
    """Name of this dataset's folder in `data_dir`; by default the hub's name of the dataset."""
    demonstration_file: str | None = None
    """JSON Lines file of demonstrations that the model has labeled itself, for one prompt or several."""
    demonstration_counts: tuple[int, ...] | None = None
    """Number of demonstrations per label id, e.g. 3/5; by default they are drawn regardless of their label."""
    order_seed: int | None = None
    """Seed of the order of the demonstrations alone; by default the order in which they were drawn."""
    prompts: int = 1
    """Number of prompts; all of them ask for the same documents and are calibrated on the same rows."""
    vary: str | None = None
    """What differs between prompts: demonstrations, orders or templates; by default the first that can."""
    templates: tuple[dict[str, Any], ...] = ()
    """Further templates of the task: each a `doc_to_text`, a `doc_to_choice`, or both."""
    template: int | None = None
    """Which template a run with one prompt uses, counted from 1, the task's own."""
    representation: str = "auto"
    """What a model hands over beside the scores: hidden states (layers), log-probabilities of probe tokens (probes),
    nothing (none), or the first of these that it can give (auto)."""
    layers: tuple[Layer, ...] = (0.5, 0.75, -1)
    """Layers whose hidden states are kept: whole numbers count layers, -1 is the last; numbers between 0 and 1 are
    fractions of the depth."""
    calibrators: tuple[str, ...] | None = None
    """Names of the calibrators that get a row; by default those of the task's filters."""
    scores_dir: str | None = None
    """Folder that gets the score table of the run."""


KNOWN = tuple(field.name for field in fields(Settings))

CALIBRATE = "calibrate"
"""`--metadata proca.calibrate=true` calibrates lm-eval's own tasks too; it is about a run, not about a task."""


def read_settings(task: str, block: Any, metadata: Mapping[str, Any]) -> Settings:
    """The YAML block of a task, overridden by the run's metadata."""
    if not isinstance(block, Mapping):
        raise TaskError(f"{task}: the `calibration:` block must be a mapping, got {block!r}.")
    if unknown := sorted(set(map(str, block)) - set(KNOWN)):
        raise TaskError(
            f"{task}: unknown setting {', '.join(unknown)} in the `calibration:` block."
            f"{did_you_mean(unknown[0], KNOWN)} The known ones are {', '.join(KNOWN)}."
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
    if unknown := sorted(set(map(str, given)) - set(known)):
        named, near = ", ".join(f"{PREFIX}.{key}" for key in unknown), did_you_mean(unknown[0], known)
        raise TaskError(f"{source}: unknown setting {named}.{near} The known ones are {', '.join(known)}.")
    return {key: _typed(source, key, value) for key, value in given.items()}


def without_settings(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The run's metadata less our settings."""
    return {key: value for key, value in metadata.items() if key != PREFIX and not key.startswith(f"{PREFIX}.")}


def _typed(source: str, key: str, value: Any) -> Any:
    if value is None and key not in (CALIBRATE, "representation"):
        if getattr(Settings, key) is not None:
            raise TaskError(f"{source}: {key} must have a value, got null; leave it out for its default.")
        return None
    return READERS[key](source, key, value)


def _text(source: str, key: str, value: Any) -> str:
    return str(value)


def _truth(source: str, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TaskError(f"{source}: {key} must be true or false, got {value!r}.")
    return value


def _columns(source: str, key: str, value: Any) -> tuple[str, ...]:
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not parts:
        raise TaskError(f"{source}: {key} must name the text columns, e.g. [sentence], got {value!r}.")
    return tuple(str(part) for part in parts)


def _counts(source: str, key: str, value: Any) -> tuple[int, ...]:
    # Commas separate settings on lm-eval's command line, so counts are written with slashes there.
    parts = value.split("/") if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)):
        raise TaskError(f"{source}: {key} must be counts per label id such as 3/5, got {value!r}.")
    return tuple(_whole_number(source, key, part) for part in parts)


def _calibrators(source: str, key: str, value: Any) -> tuple[str, ...]:
    """`bc/proca_h` on lm-eval's command line, which splits at commas, or a list; `none` is the raw row."""
    parts = re.split("[/,]", value.strip("[]")) if isinstance(value, str) else value
    if not isinstance(parts, (list, tuple)) or not parts:
        raise TaskError(f"{source}: {key} must be names of calibrators such as bc/proca_h, got {value!r}.")
    names = tuple(dict.fromkeys(str(part).strip() for part in parts))
    known = [RAW, *CALIBRATORS]
    if unknown := [name for name in names if name not in known]:
        near = did_you_mean(unknown[0], known)
        raise TaskError(f"{source}: there is no calibrator {unknown[0]}; there are {', '.join(known)}.{near}")
    return names


def _layers(source: str, key: str, value: Any) -> tuple[Layer, ...]:
    """`0.5/-1` or `20/30`."""
    parts = value.split("/") if isinstance(value, str) else value if isinstance(value, (list, tuple)) else [value]
    try:
        layers = tuple(float(part) if "." in str(part) else int(part) for part in parts)
    except (TypeError, ValueError):
        layers = ()
    ends = [layer for layer in layers if isinstance(layer, float) and not 0 < layer < 1]
    if not layers or ends or len(set(layers)) < len(layers):
        raise TaskError(
            f"{source}: {key} must be different whole numbers (-1 is the last layer) or fractions of the depth "
            f"between 0 and 1, such as 20/-1 or 0.5/0.75, got {value!r}; to keep none, set proca.representation=none."
        )
    return layers


def _whole_number(source: str, key: str, value: Any, *, least: int = 0) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if isinstance(value, bool) or number < least:
        raise TaskError(f"{source}: {key} must be a whole number of at least {least}, got {value!r}.")
    return number


_size = partial(_whole_number, least=1)


def _one_of(words: Sequence[str], source: str, key: str, value: Any) -> str:
    value = "none" if value is None else value  # as lm-eval's command line reads the word
    if value not in words:
        raise TaskError(f"{source}: {key} must be one of {', '.join(words)}, got {value!r}.")
    return str(value)


def _templates(source: str, key: str, value: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(value, (list, tuple)):
        raise TaskError(f"{source}: {key} must be a list in the `calibration:` block, got {value!r}.")
    return read_templates(source, value)


READERS: dict[str, Callable[[str, str, Any], Any]] = {
    CALIBRATE: _truth,
    "estimate_split": _text,
    "estimate_size": _size,
    "estimate_seed": _whole_number,
    "estimate_file": _text,
    "text_fields": _columns,
    "eval_size": _size,
    "data_dir": _text,
    "data_folder": _text,
    "demonstration_file": _text,
    "demonstration_counts": _counts,
    "order_seed": _whole_number,
    "prompts": _size,
    "vary": partial(_one_of, KINDS),
    "templates": _templates,
    "template": _size,
    "representation": partial(_one_of, REPRESENTATIONS),
    "layers": _layers,
    "calibrators": _calibrators,
    "scores_dir": _text,
}
"""How the value of each setting is read; a wrong one is refused in a sentence."""


# ------------------------------------------------------------------ the YAML of a task

MEANINGLESS_METRICS = {
    "acc_norm": "it divides scores by label length",
    "acc_bytes": "it divides scores by label length",
    "acc_mutual_info": "it needs unconditional scores, which are not calibrated",
    "exact_match": "it looks at the model's greedy token, not at scores",
    "likelihood": "it is a likelihood of the model",
}


def filters_of(names: Iterable[str]) -> list[dict[str, Any]]:
    """Raw scores, and calibrators with their usual parameters."""
    calibrated = [{"name": name, "filter": [{"function": name}]} for name in names if name != RAW]
    return [{"name": RAW, "filter": [{"function": "take_first"}]}, *calibrated]


def chosen_filters(filters: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Those filters of a task that calibrate by one of these names, or not at all; default ones for other names."""
    used = {id(entry): {step["function"] for step in entry["filter"]} & set(CALIBRATORS) for entry in filters}
    missing = [name for name in names if not any(name in calibrators for calibrators in used.values())]
    kept = [entry for entry in filters if used[id(entry)] <= set(names)]
    return [*kept, *filters_of(missing)[1:]]


@dataclass(frozen=True)
class TaskSetup:
    """What the YAML of a task and the run's metadata say together, checked; lm-eval knows nothing of our keys."""

    settings: Settings
    config: dict[str, Any]
    """For lm-eval."""
    calibrators: dict[str, Calibrator]
    chosen: bool
    """Whether somebody named the calibrators, in the YAML or for this run."""


def set_up(given: Mapping[str, Any]) -> TaskSetup:
    """Read and check the whole configuration of a task, before its dataset is loaded."""
    config = {key: value for key, value in given.items() if key not in ("class", "calibration")}
    name, metadata = str(config.get("task")), config.get("metadata") or {}
    settings = read_settings(name, given.get("calibration", {}), metadata)
    config |= template_of(name, settings.templates, settings.template)
    config["metadata"] = without_settings(metadata)
    config.setdefault("metric_list", [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}])
    chosen = "filter_list" in config or settings.calibrators is not None
    config.setdefault("filter_list", filters_of(default_names()))
    if settings.calibrators is not None:
        config["filter_list"] = chosen_filters(config["filter_list"], settings.calibrators)
    check_config(name, config, settings.text_fields)
    if isinstance(labels := config["doc_to_choice"], (list, tuple)):
        check_labels(name, list(map(str, labels)), settings)
    return TaskSetup(settings, config, calibrators_of(name, config["filter_list"]), chosen)


def check_tasks(specs: Sequence[Any], index: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
    """Check calibrated tasks as `lm_eval --tasks` names them, with lm-eval's index of tasks, groups and tags."""
    for config in _configs(specs, index, {}, set()):
        if "CalibratedTask" in str(config.get("class")):  # the class, or what lm-eval's index has for it: a path
            own = config.get("metadata")
            check_files(set_up({**config, "metadata": {**(own if isinstance(own, dict) else {}), **metadata}}))


def check_files(setup: TaskSetup) -> None:
    """The files that a task names are there; addresses and patterns are left to `datasets`."""
    settings, config = asdict(setup.settings), setup.config
    named = [(key, file) for key in FILE_SETTINGS for file in texts_in(settings[key])]
    options = config.get("dataset_kwargs") or {}
    if config.get("dataset_path") in FILE_FORMATS and "data_dir" not in options and not data_folder(config, settings):
        named += [("data_files", file) for file in texts_in(options.get("data_files")) if PLAIN_PATH.fullmatch(file)]
    for key, file in named:
        if not os.path.exists(file):
            raise TaskError(
                f"{config.get('task')}: {key} names {file}, which does not exist; a path is relative to the folder "
                f"where lm_eval starts, here {os.getcwd()}."
            )


def _configs(
    specs: Any, index: Mapping[str, Any], changed: Mapping[str, Any], seen: set[str]
) -> Iterator[Mapping[str, Any]]:
    """The YAMLs behind names, with what groups change in them; each once, and paths are left to lm-eval."""
    for spec in specs if isinstance(specs, (list, tuple)) else [specs]:
        own = {**changed, **spec} if isinstance(spec, Mapping) else changed
        name = spec if isinstance(spec, str) else own.get("group", own.get("task"))
        if isinstance(spec, Mapping) and name not in index:
            yield own
        elif isinstance(name, str) and name in index and name not in seen:
            seen.add(name)
            entry = index[name]
            if entry.kind.name == "TAG":
                yield from _configs(sorted(entry.tags), index, own, seen)
            elif entry.kind.name == "GROUP":
                of_group = {key: value for key, value in entry.cfg.items() if key not in ("group", "task", "metadata")}
                of_members = {key: value for key, value in own.items() if key not in ("group", "task")}
                yield from _configs(entry.cfg.get("task", ()), index, {**of_group, **of_members}, seen)
            else:
                yield {**entry.cfg, **own}


def check_config(task: str, config: Mapping[str, Any], text_fields: Sequence[str]) -> None:
    if config.get("output_type") != "multiple_choice":
        raise TaskError(
            f"{task}: output_type is {config.get('output_type')!r}, but only multiple_choice tasks with a fixed list "
            f"of labels can be calibrated."
        )
    if config.get("doc_to_choice") is None:
        raise TaskError(f"{task}: doc_to_choice is missing; give the fixed list of label words.")
    if not text_fields:
        raise TaskError(
            f"{task}: calibration.text_fields is missing; name the columns that a content-free document replaces, "
            f"e.g. `text_fields: [sentence]`."
        )
    for entry in config["metric_list"]:
        if entry.get("metric") in MEANINGLESS_METRICS:
            raise TaskError(
                f"{task}: the metric {entry['metric']} means nothing for calibrated scores "
                f"({MEANINGLESS_METRICS[entry['metric']]}); remove it from metric_list, acc is the one to keep."
            )
    sampler = (config.get("fewshot_config") or {}).get("sampler", "default")
    if sampler not in {"default", "first_n"}:
        raise TaskError(
            f"{task}: fewshot_config.sampler must be default or first_n, got {sampler!r}; a calibrated task has the "
            f"same demonstrations for every document."
        )


def calibrators_of(task: str, filter_list: Sequence[Mapping[str, Any]]) -> dict[str, Calibrator]:
    """The calibrators behind the filters of a task, by the filter's name."""
    made = {}
    for entry in filter_list:
        functions = [step["function"] for step in entry["filter"]]
        if not set(functions) & set(CALIBRATORS):
            continue
        if len(functions) > 1:
            raise TaskError(
                f"{task}: the filter {entry['name']} is a chain of {', '.join(functions)}; a calibrator is fitted on "
                f"scores as the model gave them, so make it the only function of its filter."
            )
        try:
            made[entry["name"]] = calibrator_of_step(entry["filter"][0])
        except CalibrationError as error:
            raise TaskError(f"{task}: the filter {entry['name']} cannot be used: {error}") from error
    return made


def check_labels(task: str, labels: Sequence[str], settings: Settings) -> None:
    words = [label.strip() for label in labels]
    if len(words) < 2:
        raise TaskError(f"{task}: calibration needs at least two labels, doc_to_choice gives {list(labels)}.")
    twice = sorted({word for word in words if words.count(word) > 1})
    if twice:
        raise TaskError(
            f"{task}: the label word {twice[0]!r} stands for two labels in {list(labels)}; make them differ."
        )
    size = settings.estimate_size
    if size < len(words):
        raise TaskError(
            f"{task}: an estimate set of {size} documents is too small for {len(words)} labels; set "
            f"proca.estimate_size to at least {len(words)}, better a hundred per label."
        )
