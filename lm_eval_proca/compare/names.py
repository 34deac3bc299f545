"""What the tables call tasks, models and methods: as short as keeps them apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.runs.output_folder import mapping, printable
from lm_eval_proca.scores.fitting import RAW
from lm_eval_proca.scores.identity import BACKEND, Part, digest, model_identity, weights_and_rest

if TYPE_CHECKING:
    from lm_eval_proca.compare.results import Run


def short_task_name(task: str) -> str:
    """What the tables call a task."""
    return task.removeprefix("proca_")


def matches(task: str, patterns: Iterable[str]) -> bool:
    """Whether one of the patterns is for this task, by its long or its short name."""
    return any(fnmatchcase(task, pattern) or fnmatchcase(short_task_name(task), pattern) for pattern in patterns)


def method_name(filter_name: str, task_config: Mapping[str, Any], generated: bool) -> str:
    """`none` is raw; what was fitted on rows that the model wrote is the paper's `-g`."""
    if filter_name == RAW:
        return "raw"
    functions = {str(step.get("function")) for step in _steps(filter_name, task_config)}
    fitted_on = {get_calibrator(name).fits_on for name in functions & set(CALIBRATORS)}
    return f"{filter_name}-g" if generated and fitted_on & {"estimate", "domain"} else filter_name


def ensemble_name(method: str, prompts: int) -> str:
    """A method over all prompts of a run together, e.g. `proca x5`, which is a method like others."""
    return f"{method} x{prompts}"


def without_ensemble(method: str) -> str:
    """The method that an ensemble is made of."""
    return re.sub(r" x\d+$", "", method)


def filter_parameters(filter_name: str, task_config: Mapping[str, Any]) -> str:
    steps = _steps(filter_name, task_config)
    given = [f"{key}={step[key]}" for step in steps for key in sorted(step) if key != "function"]
    return printable(", ".join(given)) or "default parameters"


def _steps(filter_name: str, task_config: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    for entry in task_config.get("filter_list") or []:
        if isinstance(entry, dict) and entry.get("name") == filter_name:
            return [step for step in entry.get("filter") or [] if isinstance(step, dict)]
    return [{"function": filter_name}]


def weights_and_arguments(identity: Path, document: Mapping[str, Any]) -> tuple[str, Part]:
    """The name of a model's weights, and the arguments that make it another model.

    A cell of a sweep has an identity file: its results file does not show that a key was left out.
    """
    config = mapping(document, "config")
    if identity.is_file():
        model = dict(mapping(json.loads(identity.read_text(encoding="utf-8")), "model"))
        if not model:
            raise ResultsError(f"{identity.name} beside it names no model")
    else:
        args = config.get("model_args")
        if isinstance(args, str):
            args = dict(pair.split("=", 1) for pair in args.split(",") if "=" in pair)
        # Without arguments, lm-eval was given a loaded model: what it says about that is all there is.
        args = args or {key: value for key, value in config.items() if key.startswith("model_") and value}
        model = model_identity(args if isinstance(args, dict) else {}, str(config.get("model")))
    weights, arguments = weights_and_rest(model)
    weights = str(weights or config.get("model") or "unknown model")
    if arguments.get("gguf_file"):
        weights = f"{weights.rstrip('/')}/{arguments.pop('gguf_file')}"
    for key in ("chat_template_sha", "system_instruction_sha"):
        if document.get(key):
            arguments[key] = str(document[key])[:6]
    return weights, arguments


def named_apart(runs: Sequence[Run]) -> list[Run]:
    """The runs, with the arguments in the name of a model where models of the same weights differ in them.

    Likewise the parameters of a filter in the name of a method.
    """
    alike: dict[str, dict[str, Mapping[str, Any]]] = {}
    variants: dict[str, set[str]] = {}
    for run in runs:
        alike.setdefault(run.model, {})[digest(run.arguments)] = run.arguments
        for name, given in run.parameters.items():
            variants.setdefault(run.methods[name], set()).add(given)
    named = []
    for run in runs:
        others = alike[run.model].values()
        details = [
            str(value) if key == BACKEND else f"{key}={value}"
            for key, value in sorted(run.arguments.items())
            if any(other.get(key) != value for other in others)
        ]
        name = f"{run.model} ({', '.join(details)})" if details else run.model
        methods = {
            one: f"{method} ({run.parameters[one]})" if len(variants.get(method, ())) > 1 else method
            for one, method in run.methods.items()
        }
        named.append(replace(run, model=printable(name), methods=methods))
    return named


def short_model_names(names: Iterable[str]) -> dict[str, str]:
    """Paths cut to their last part, unless two models would then have one name."""
    names = sorted(set(names))
    short = {name: _without_folders(name) for name in names}
    taken = list(short.values())
    return {name: cut if taken.count(cut) == 1 else name for name, cut in short.items()}


def _without_folders(name: str) -> str:
    weights, bracket, details = name.partition(" (")
    if weights.startswith(("/", ".", "~")) or weights.endswith(".gguf"):
        weights = weights.rstrip("/").rpartition("/")[2] or weights
    return weights.removesuffix(".gguf") + bracket + details
