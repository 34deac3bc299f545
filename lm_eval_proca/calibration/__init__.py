"""Calibrators of label scores: numbers in, numbers out; nothing of lm-eval or torch is imported here.

Names are resolved on first use, so that importing this package costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lm_eval_proca.calibration.base import Calibrator
    from lm_eval_proca.calibration.batch import BatchCalibrator
    from lm_eval_proca.calibration.contextual import ContextualCalibrator
    from lm_eval_proca.calibration.prototypical import PrototypicalCalibrator
    from lm_eval_proca.calibration.registry import CALIBRATORS, get_calibrator
    from lm_eval_proca.calibration.storage import load_calibrator

_HOME = {
    "BatchCalibrator": "batch",
    "CALIBRATORS": "registry",
    "Calibrator": "base",
    "ContextualCalibrator": "contextual",
    "PrototypicalCalibrator": "prototypical",
    "get_calibrator": "registry",
    "load_calibrator": "storage",
}

__all__ = [
    "CALIBRATORS",
    "BatchCalibrator",
    "Calibrator",
    "ContextualCalibrator",
    "PrototypicalCalibrator",
    "get_calibrator",
    "load_calibrator",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
