"""From score tables to a calibrator and the labels of the rows: which calibrator, and what it thinks of itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import make_calibrator, registered_name
from lm_eval_proca.classify.scoring import Scored
from lm_eval_proca.errors import CalibrationError, TextsError
from lm_eval_proca.scores.fitting import ROWS_PER_LABEL, Fit, fit
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.scores.together import REFERENCE, methods_of, report, side_by_side

AUTO = "auto"
BEST, ALWAYS = "proca_h", "bc"
"""What `auto` takes where the model gives representations, and elsewhere."""


def calibrator_named(given: str | Calibrator) -> Calibrator:
    """The calibrator that is asked for; for `auto` the one that wants the most from the model."""
    found = given if isinstance(given, Calibrator) else make_calibrator(BEST if given == AUTO else given, {})
    if found.fits_on != "estimate":
        raise TextsError(f"{type(found).__name__} is not fitted on texts; take bc, proca, proca_a or proca_h.")
    return found


@dataclass(frozen=True)
class Fitted:
    """A calibrator for new rows, and the calibrated log-probabilities of the rows that it was fitted on.

    These are cross-fitted: each row is calibrated by a fit that has not seen it.
    """

    calibrator: Calibrator
    log_proba: np.ndarray
    report: dict[str, Any]


def check_enough(texts: int, labels: int) -> None:
    """Refuse fewer usable texts than a fit needs."""
    if not texts:
        raise TextsError("None of the rows has a text that can be used; check the text column.")
    if texts < (least := ROWS_PER_LABEL * labels):
        raise TextsError(f"{texts} usable texts are too few to calibrate on; give at least {least}.")


def fit_scored(scored: Scored, given: str | Calibrator) -> Fitted:
    """Fit on enough rows, see :func:`check_enough`."""
    chosen = calibrator_named(given)
    if given == AUTO and scored.tables[0].representations is None:
        chosen = make_calibrator(ALWAYS, {})
    name = registered_name(type(chosen)) or type(chosen).__name__
    try:
        found, warnings = _fit(name, chosen, scored.tables)
    except CalibrationError as error:
        raise TextsError(f"The texts cannot be calibrated with {name}: {error}") from error
    said = found.calibrator.fit_report()
    alone = [said, *said.get("members", ())]
    estimates = [one["estimated_accuracy"] for one in alone if one.get("estimated_accuracy") is not None]
    return Fitted(
        found.calibrator,
        found.log_proba,
        {
            "calibrator": name,
            "fitted_rows": len(scored.rows),
            "prompts": len(scored.tables),
            "estimated_accuracy": float(np.mean(estimates)) if estimates else None,
            "warnings": [*dict.fromkeys(sentence for one in alone for sentence in one.get("warnings", ())), *warnings],
        },
    )


def _fit(name: str, calibrator: Calibrator, tables: Sequence[ScoreTable]) -> tuple[Fit, list[str]]:
    """The fit under the one prompt, or under all of them together with sentences about single ones."""
    if len(tables) == 1:
        return fit(calibrator, tables[0]), []
    compared = {REFERENCE: make_calibrator(REFERENCE, {}), name: calibrator}
    methods = methods_of(tables, [{key: fit(one, table) for key, one in compared.items()} for table in tables])
    together = methods[name].ensemble
    assert together is not None
    return together, report(methods, tables[0].gold_of("eval"))[name]["warnings"]


def calibrated(calibrator: Calibrator, scored: Scored) -> np.ndarray:
    """Log-probabilities of new rows, (rows, labels)."""
    if not scored.tables:
        return np.empty((0, calibrator.n_labels_))
    table = scored.tables[0] if len(scored.tables) == 1 else side_by_side(scored.tables)
    return calibrator.predict_log_proba(table.scores_of("eval"), representations=table.representations_of("eval"))
