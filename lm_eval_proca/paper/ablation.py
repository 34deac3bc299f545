"""One parameter of ProCa at several values: estimation selection (Table 3) and output format (Figure 8)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sklearn.base import clone

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.metrics import Observation
from lm_eval_proca.paper.observations import prompt_of
from lm_eval_proca.scores.fitting import accuracy_of, fit
from lm_eval_proca.scores.score_table import ScoreTable

SELECTIONS = ("likelihood", "assignment")
"""Table 3: which of the restarts is kept."""

FEATURES = ("log_likelihood", "prob", "log_prob")
"""Figure 8: what the mixture is fitted on. The paper's third format is the logit of each label token; lm-eval returns
log-likelihoods, the logit minus the log of the sum over the whole vocabulary, so `log_likelihood` is its relative and
not quite the same."""


def selection(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Table 3: accuracy of ProCa when the restart is kept that has the highest likelihood, or assignment score."""
    return ablate(tables, calibrators["proca"], "selection", SELECTIONS)


def formats(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> list[Observation]:
    """Figure 8: accuracy of ProCa on log-likelihoods, probabilities and log-probabilities over the labels."""
    return ablate(tables, calibrators["proca"], "features", FEATURES)


def ablate(tables: Sequence[ScoreTable], proca: Calibrator, parameter: str, values: Sequence[str]) -> list[Observation]:
    """Accuracy of ProCa with `parameter` at each of the values, everything else as in `proca`."""
    return [
        {**prompt_of(table), parameter: value, "accuracy": accuracy_of(table, fit(changed, table))}
        for table in tables
        for value in values
        for changed in [clone(proca).set_params(**{parameter: value})]
    ]
