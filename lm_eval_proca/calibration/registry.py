"""The calibrators by the name that lm-eval's tables, YAML filters and saved files use."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lm_eval_proca.errors import CalibrationError

if TYPE_CHECKING:
    from lm_eval_proca.calibration.base import Calibrator

CALIBRATORS: dict[str, str] = {
    "bc": "lm_eval_proca.calibration.batch:BatchCalibrator",
    "conca": "lm_eval_proca.calibration.contextual:ContextualCalibrator",
    "proca": "lm_eval_proca.calibration.prototypical:PrototypicalCalibrator",
    "proca_a": "lm_eval_proca.calibration.anchored:AnchoredCalibrator",
    "proca_h": "lm_eval_proca.calibration.anchored:RepresentationCalibrator",
}


def get_calibrator(name: str) -> type[Calibrator]:
    """The class registered as `name`, imported on first use."""
    if name not in CALIBRATORS:
        known = ", ".join(sorted(CALIBRATORS))
        raise CalibrationError(f"There is no calibrator named {name!r}; the known ones are {known}.")
    module, _, attribute = CALIBRATORS[name].partition(":")
    return getattr(importlib.import_module(module), attribute)


def make_calibrator(name: str, params: Mapping[str, Any]) -> Calibrator:
    """An unfitted calibrator; a parameter that it would refuse later is refused now."""
    cls = get_calibrator(name)
    known = cls().get_params()
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise CalibrationError(
            f"The calibrator {name} has no parameter {', '.join(unknown)}; it has {', '.join(known) or 'none'}."
        )
    calibrator = cls(**params)
    calibrator.check_params()
    return calibrator


def registered_name(calibrator: type[Calibrator]) -> str | None:
    """The name under which a class is registered."""
    address = f"{calibrator.__module__}:{calibrator.__qualname__}"
    return next((name for name, known in CALIBRATORS.items() if known == address), None)
