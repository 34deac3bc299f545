"""The calibrators by the name that lm-eval's tables, YAML filters and saved files use.

An installed package adds its own by an entry point of the group `lm_eval_proca.calibrators`, e.g. in its pyproject.toml
``[project.entry-points."lm_eval_proca.calibrators"]`` with the line ``mine = "my_package.module:MyCalibrator"``.
"""

from __future__ import annotations

import logging
import pkgutil
from collections import UserDict
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lm_eval_proca.errors import CalibrationError, did_you_mean

if TYPE_CHECKING:
    from lm_eval_proca.calibration.base import Calibrator

logger = logging.getLogger("lm_eval.proca")

GROUP = "lm_eval_proca.calibrators"
BUILT_IN = {
    "bc": "lm_eval_proca.calibration.batch:BatchCalibrator",
    "bc_prob": "lm_eval_proca.calibration.batch_probability:BatchProbabilityCalibrator",
    "conca": "lm_eval_proca.calibration.contextual:ContextualCalibrator",
    "domain": "lm_eval_proca.calibration.domain_context:DomainContextCalibrator",
    "proca": "lm_eval_proca.calibration.prototypical:PrototypicalCalibrator",
    "proca_a": "lm_eval_proca.calibration.anchored:AnchoredCalibrator",
    "proca_h": "lm_eval_proca.calibration.anchored:RepresentationCalibrator",
    "ucpa": "lm_eval_proca.calibration.prior_adaptation:PriorAdaptationCalibrator",
}
FITTED_ON = ("estimate", "content_free", "domain")
"""What a calibrator may be fitted on: unlabeled documents, content-free inputs, or random words of the task."""
RAW_SCORES = {"none", "take_first"}
"""What lm-eval calls the row and the filter of scores that nobody calibrates."""


class Calibrators(UserDict[str, str]):
    """Addresses of classes by name: ours, and those of installed packages, which are looked for on first use. One that
    cannot be used is left out with a warning."""

    def __init__(self) -> None:
        """Plugins are loaded on first use, because they import this module."""

    @cached_property
    def data(self) -> dict[str, str]:  # type: ignore[override]
        from importlib.metadata import entry_points

        found = self.data = dict(BUILT_IN)
        for point in entry_points(group=GROUP):
            try:
                if point.name in found.keys() | RAW_SCORES:
                    raise CalibrationError("its name is taken, give it another")
                loaded = point.load()
                from lm_eval_proca.calibration.base import Calibrator  # now, since it imports numpy and scikit-learn

                if not (isinstance(loaded, type) and issubclass(loaded, Calibrator)):
                    raise CalibrationError("it is no subclass of lm_eval_proca.Calibrator")
                if loaded.fits_on not in FITTED_ON:
                    raise CalibrationError(f"it has fits_on={loaded.fits_on!r}; give one of {', '.join(FITTED_ON)}")
                loaded().check_params()
                found[point.name] = f"{loaded.__module__}:{loaded.__qualname__}"  # its package may show it elsewhere
            except Exception as error:
                logger.warning(
                    "The calibrator %s = %s of an installed package is left out: %s: %s",
                    *(point.name, point.value, type(error).__name__, error),
                )
        return found


CALIBRATORS = Calibrators()


def get_calibrator(name: str) -> type[Calibrator]:
    """The class registered as `name`, imported on first use."""
    if name not in CALIBRATORS:
        known = ", ".join(sorted(CALIBRATORS))
        near = did_you_mean(name, CALIBRATORS)
        raise CalibrationError(
            f"There is no calibrator named {name!r}; the known ones are {known} and none, the raw scores.{near}"
        )
    return pkgutil.resolve_name(CALIBRATORS[name])


def default_names() -> list[str]:
    """The calibrators that nobody has to name; the others are for those who ask."""
    return [name for name in CALIBRATORS if get_calibrator(name).by_default]


def make_calibrator(name: str, params: Mapping[str, Any]) -> Calibrator:
    """An unfitted calibrator; a parameter that it would refuse later is refused now."""
    cls = get_calibrator(name)
    known = cls().get_params()
    unknown = sorted(set(params) - set(known))
    if unknown:
        raise CalibrationError(
            f"The calibrator {name} has no parameter {', '.join(unknown)}; it has {', '.join(known) or 'none'}."
            f"{did_you_mean(unknown[0], known)}"
        )
    calibrator = cls(**params)
    calibrator.check_params()
    return calibrator


def registered_name(calibrator: type[Calibrator]) -> str | None:
    """The name under which a class is registered."""
    address = f"{calibrator.__module__}:{calibrator.__qualname__}"
    return next((name for name, known in CALIBRATORS.items() if known == address), None)
