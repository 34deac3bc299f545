"""lm-eval's filters named after calibrators (`proca`, `conca`, `bc`, …): one name per calibrator in the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from lm_eval.api.filter import Filter
from lm_eval.api.registry import filter_registry

from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.errors import TaskError

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from lm_eval_proca.harness.shards import Document
    from lm_eval_proca.scores.fitting import Fit


class CalibrationFilter(Filter):
    """A calibrator in a task's `filter_list`; its keyword arguments are the calibrator's parameters.

    A filter of lm-eval sees the responses of its own process and nothing else. So the task fits the calibrators, on
    the scores of all processes, and gives out what they make of them: see :func:`give_out`.
    """

    def __init__(self, **params: Any) -> None:
        """Parameters are checked when the task is read."""

    def apply(self, resps: Any, docs: Any) -> NoReturn:
        raise TaskError(
            f"The filters {', '.join(CALIBRATORS)} calibrate only tasks with `class: !function "
            f"lm_eval_proca.CalibratedTask` in their YAML; add that line and a `calibration:` block."
        )


class CalibratedResponse(NamedTuple):
    """What a calibrated filter has for one label: lm-eval's own pair, of a type that tells it from the model's."""

    score: float
    is_greedy: bool


def give_out(name: str, fit: Fit, instances: Iterable[Instance], documents: Mapping[int, Document]) -> None:
    """Calibrated scores to the evaluation requests of this process, as the responses of the filter `name`."""
    row = {index: number for number, index in enumerate(fit.documents)}
    labels = fit.log_proba.shape[1]
    for instance in instances:
        document = documents[instance.doc_id]
        if document.role == "eval":
            raw, is_greedy = instance.resps[0]
            # Requests beyond the labels are those of acc_mutual_info; nobody reads them in a calibrated row.
            score = fit.log_proba[row[document.index], instance.idx] if instance.idx < labels else raw
            instance.filtered_resps[name] = CalibratedResponse(float(score), is_greedy)


for _name in CALIBRATORS:
    if _name not in filter_registry:  # a later lm-eval may have read our entry points already
        filter_registry.register(_name, target=CalibrationFilter)
