"""What a task's YAML must say before it can be calibrated; told before anything is downloaded or scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator
from lm_eval_proca.errors import CalibrationError, TaskError

MEANINGLESS_METRICS = {
    "acc_norm": "it divides scores by label length",
    "acc_bytes": "it divides scores by label length",
    "acc_mutual_info": "it needs unconditional scores, which are not calibrated",
    "exact_match": "it looks at the model's greedy token, not at scores",
}


def default_filters() -> list[dict[str, Any]]:
    """Raw scores, and every calibrator there is."""
    calibrated = [{"name": name, "filter": [{"function": name}]} for name in CALIBRATORS]
    return [{"name": "none", "filter": [{"function": "take_first"}]}, *calibrated]


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
    for entry in config["filter_list"]:
        for step in entry["filter"]:
            if step["function"] in CALIBRATORS:
                _check_filter(task, entry["name"], **step)


def _check_filter(task: str, name: str, function: str, **params: Any) -> None:
    """The parameters of a calibration filter, before the scores that it will be fitted on have been paid for."""
    calibrator = get_calibrator(function)
    try:
        calibrator(**params).check_params()
    except TypeError as error:
        known = ", ".join(calibrator().get_params()) or "none"
        raise TaskError(
            f"{task}: the filter {name} has a parameter that {function} does not know ({error}); the known ones are "
            f"{known}."
        ) from error
    except CalibrationError as error:
        raise TaskError(f"{task}: the filter {name} cannot be used: {error}") from error


def takes_first_shots(task: str, config: Mapping[str, Any]) -> bool:
    fewshot = config.get("fewshot_config") or {}
    sampler = fewshot.get("sampler", "default")
    if sampler not in {"default", "first_n"}:
        raise TaskError(
            f"{task}: fewshot_config.sampler must be default or first_n, got {sampler!r}; a calibrated task has the "
            f"same demonstrations for every document."
        )
    return sampler == "first_n"
