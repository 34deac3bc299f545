"""Our exceptions: each message is one sentence that says what was wrong, where, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class ProcaError(Exception):
    """Base of every exception that lm-eval-proca raises on purpose."""


class CalibrationError(ProcaError, ValueError):
    """Scores or parameters that a calibrator cannot use."""


class TaskError(ProcaError, ValueError):
    """A task configuration, setting or dataset that cannot be calibrated."""


class ScoreTableError(ProcaError, ValueError):
    """A score table that is damaged, incomplete or of another version."""


class DistributedError(ProcaError, RuntimeError):
    """Processes that together do not hold what one process would."""


class ModelError(ProcaError, RuntimeError):
    """A language model that is missing or cannot be used as asked."""


class ResultsError(ProcaError, ValueError):
    """Result folders that cannot be read or compared."""


class TextsError(ProcaError, ValueError):
    """Texts, labels or templates that cannot be classified, or a file of them that cannot be read."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of a sentence about a name that nobody knows: the known one that is nearest, if one is near."""
    near = get_close_matches(name, [str(one) for one in known], n=1)
    return f" Did you mean {near[0]}?" if near else ""
