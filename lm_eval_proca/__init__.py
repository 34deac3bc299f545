"""Calibrated accuracy next to raw accuracy, for lm-evaluation-harness and for plain score matrices.

Names are resolved on first use, so that importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lm_eval_proca.calibration.batch import BatchCalibrator
    from lm_eval_proca.calibration.contextual import ContextualCalibrator
    from lm_eval_proca.calibration.prototypical import PrototypicalCalibrator
    from lm_eval_proca.calibration.storage import load_calibrator
    from lm_eval_proca.errors import ProcaError
    from lm_eval_proca.harness.task import CalibratedTask
    from lm_eval_proca.score_table import ScoreTable

__version__ = "0.1.0"

_HOME = {
    "BatchCalibrator": "lm_eval_proca.calibration.batch",
    "CalibratedTask": "lm_eval_proca.harness.task",
    "ContextualCalibrator": "lm_eval_proca.calibration.contextual",
    "ProcaError": "lm_eval_proca.errors",
    "PrototypicalCalibrator": "lm_eval_proca.calibration.prototypical",
    "ScoreTable": "lm_eval_proca.score_table",
    "load_calibrator": "lm_eval_proca.calibration.storage",
}

__all__ = [
    "BatchCalibrator",
    "CalibratedTask",
    "ContextualCalibrator",
    "ProcaError",
    "PrototypicalCalibrator",
    "ScoreTable",
    "__version__",
    "load_calibrator",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
