"""What a task's YAML must say before it can be calibrated; told before anything is downloaded or scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.errors import CalibrationError, TaskError
from lm_eval_proca.harness.settings import Settings
from lm_eval_proca.scores.fitting import RAW, calibrator_of_step

MEANINGLESS_METRICS = {
    "acc_norm": "it divides scores by label length",
    "acc_bytes": "it divides scores by label length",
    "acc_mutual_info": "it needs unconditional scores, which are not calibrated",
    "exact_match": "it looks at the model's greedy token, not at scores",
    "likelihood": "it is a likelihood of the model",
}


def default_filters() -> list[dict[str, Any]]:
    """Raw scores, and every calibrator there is."""
    calibrated = [{"name": name, "filter": [{"function": name}]} for name in CALIBRATORS]
    return [{"name": RAW, "filter": [{"function": "take_first"}]}, *calibrated]


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
    """The calibrators behind the filters of a task, by the filter's name; mistakes are told before scores are paid."""
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
    if settings.estimate_file is None and size < len(words):
        raise TaskError(
            f"{task}: an estimate set of {size} documents is too small for {len(words)} labels; set "
            f"proca.estimate_size to at least {len(words)}, better a hundred per label."
        )
