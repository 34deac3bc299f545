"""lm-eval filters `proca`, `conca`, `bc`: one per calibrator in the registry, made from it.

A filter of lm-eval sees only the responses of its own rank. The task therefore gathers all scores first and keeps
them here while its filters run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from lm_eval.api.filter import Filter
from lm_eval.api.registry import filter_registry

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator
from lm_eval_proca.errors import TaskError
from lm_eval_proca.harness.gather import compute_once
from lm_eval_proca.score_table import ScoreTable


@dataclass
class CalibrationRun:
    """The scores of all processes, and the calibrators that filters have fitted on them so far."""

    table: ScoreTable
    fitted: list[Calibrator] = field(default_factory=list)


_current: ContextVar[CalibrationRun | None] = ContextVar("current_calibration_run", default=None)


@contextmanager
def calibrating(table: ScoreTable) -> Iterator[CalibrationRun]:
    """While this is open, calibration filters fit on `table`."""
    run = CalibrationRun(table)
    token = _current.set(run)
    try:
        yield run
    finally:
        _current.reset(token)


class CalibrationFilter(Filter):
    """Replaces every label's log-likelihood by its calibrated log-probability.

    Keyword arguments of the YAML filter are the parameters of the calibrator.
    """

    calibrator: ClassVar[str]

    def __init__(self, **params: Any) -> None:
        self.params = params

    def apply(self, resps: Sequence[Any], docs: Sequence[dict[str, Any]]) -> list[tuple[float, bool]]:
        run = _current.get()
        if run is None:
            raise TaskError(
                f"The filter '{self.calibrator}' calibrates only tasks with `class: !function "
                f"lm_eval_proca.CalibratedTask` in their YAML; add that line and a `calibration:` block."
            )
        calibrator = compute_once(lambda: self._fit(run.table))
        run.fitted.append(calibrator)
        first = [response[0] if isinstance(response, list) else response for response in resps]
        scores = np.array([score for score, _ in first], dtype=np.float64).reshape(-1, run.table.scores.shape[1])
        calibrated = calibrator.predict_log_proba(scores).ravel()
        return [(float(score), greedy) for score, (_, greedy) in zip(calibrated, first, strict=True)]

    def _fit(self, table: ScoreTable) -> Calibrator:
        calibrator = get_calibrator(self.calibrator)(**self.params)
        return calibrator.fit(table.scores_of(calibrator.fits_on))


def __getattr__(name: str) -> type[CalibrationFilter]:
    if name not in CALIBRATORS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, type(name, (CalibrationFilter,), {"calibrator": name, "__module__": __name__}))


for _name in CALIBRATORS:
    if _name not in filter_registry:  # else the discovery hook has registered this very module already
        filter_registry.register(_name, target=f"{__name__}:{_name}")
