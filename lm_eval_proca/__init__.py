"""Calibrated accuracy next to raw accuracy, for lm-evaluation-harness and for plain score matrices.

Names are resolved on first use: the calibrators need neither lm-eval nor torch, and every start of Python that meets
lm-eval imports this package.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lm_eval_proca.calibration.anchored import AnchoredCalibrator as AnchoredCalibrator
    from lm_eval_proca.calibration.anchored import RepresentationCalibrator as RepresentationCalibrator
    from lm_eval_proca.calibration.base import Calibrator as Calibrator
    from lm_eval_proca.calibration.batch import BatchCalibrator as BatchCalibrator
    from lm_eval_proca.calibration.batch_probability import BatchProbabilityCalibrator as BatchProbabilityCalibrator
    from lm_eval_proca.calibration.contextual import ContextualCalibrator as ContextualCalibrator
    from lm_eval_proca.calibration.domain_context import DomainContextCalibrator as DomainContextCalibrator
    from lm_eval_proca.calibration.ensemble import PromptEnsemble as PromptEnsemble
    from lm_eval_proca.calibration.prior_adaptation import PriorAdaptationCalibrator as PriorAdaptationCalibrator
    from lm_eval_proca.calibration.prototypical import PrototypicalCalibrator as PrototypicalCalibrator
    from lm_eval_proca.calibration.storage import load_calibrator as load_calibrator
    from lm_eval_proca.classify.classifier import TextClassifier as TextClassifier
    from lm_eval_proca.errors import ProcaError as ProcaError
    from lm_eval_proca.harness.task import CalibratedTask as CalibratedTask
    from lm_eval_proca.runs.frames import results_frame as results_frame
    from lm_eval_proca.scores.score_table import ScoreTable as ScoreTable

__version__ = "0.2.0.dev0"

_HOME = {
    "AnchoredCalibrator": "calibration.anchored",
    "BatchCalibrator": "calibration.batch",
    "BatchProbabilityCalibrator": "calibration.batch_probability",
    "CalibratedTask": "harness.task",
    "Calibrator": "calibration.base",
    "ContextualCalibrator": "calibration.contextual",
    "DomainContextCalibrator": "calibration.domain_context",
    "PriorAdaptationCalibrator": "calibration.prior_adaptation",
    "ProcaError": "errors",
    "PromptEnsemble": "calibration.ensemble",
    "PrototypicalCalibrator": "calibration.prototypical",
    "RepresentationCalibrator": "calibration.anchored",
    "ScoreTable": "scores.score_table",
    "TextClassifier": "classify.classifier",
    "load_calibrator": "calibration.storage",
    "results_frame": "runs.frames",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
