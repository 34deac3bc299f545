r"""What several prompts know together: one calibrator per prompt, and the mean of what they say.

With :math:`p_j(l | d)` the calibrated probabilities of prompt j of m,

.. math:: \log p(l | d) = \frac{1}{m} \sum_j \log p_j(l | d) + \text{const},

the plain mean of log-probabilities. Errors that a prompt makes alone are outvoted, those that all make stay: so the
members must be calibrated first, because all prompts of a model share its bias. Most methods calibrate each prompt
alone; prototypes in hidden states are fitted on all prompts at once, see :mod:`lm_eval_proca.calibration.anchored`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from scipy.special import log_softmax
from sklearn.base import clone

from lm_eval_proca.calibration.base import Allowed, Array, Calibrator, whole_number
from lm_eval_proca.errors import CalibrationError

if TYPE_CHECKING:
    from typing_extensions import Self


def mean_of_prompts(log_proba: Array) -> Array:
    """Log-probabilities (prompts, documents, labels), put together as (documents, labels)."""
    return log_softmax(np.mean(log_proba, axis=0), axis=1)


class PromptEnsemble(Calibrator):
    """One calibrator per prompt of a task, and the mean of their log-probabilities.

    The scores of all prompts stand side by side: ``X`` has the columns of the first prompt's labels, then those of the
    second, and so on, as ``np.hstack`` puts them. Likewise the hidden states, along their first axis: all layers of the
    first prompt, then those of the second.

    Parameters
    ----------
    calibrator : Calibrator
        What each prompt is calibrated with; it is cloned.
    n_prompts : int, default=2
        How many prompts stand side by side.

    Attributes
    ----------
    members_ : list of Calibrator
        The fitted calibrator of each prompt.

    Examples
    --------
    Two prompts that are biased in opposite ways, and wrong on different documents:

    >>> import numpy as np
    >>> from lm_eval_proca import BatchCalibrator, PromptEnsemble
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat([0, 1], 200)
    >>> prompts = [np.eye(2)[truth] + rng.normal(size=(400, 2)) + bias for bias in ([2, 0], [0, 2])]
    >>> alone = [np.mean(BatchCalibrator().fit(one).predict(one) == truth) for one in prompts]
    >>> X = np.hstack(prompts)
    >>> bool(np.mean(PromptEnsemble(BatchCalibrator()).fit(X).predict(X) == truth) > max(alone))
    True
    """

    _allowed: ClassVar[dict[str, Allowed]] = {
        "calibrator": Allowed(lambda value: isinstance(value, Calibrator), "a calibrator"),
        "n_prompts": whole_number(1),
    }

    def __init__(self, calibrator: Any, *, n_prompts: int = 2) -> None:
        self.calibrator = calibrator
        self.n_prompts = n_prompts

    @classmethod
    def of(
        cls, members: Sequence[Calibrator], labels: Sequence[str] | None = None, origin: Mapping[str, Any] | None = None
    ) -> Self:
        """An ensemble of calibrators that are fitted already, one per prompt."""
        first = members[0]
        ensemble = cls(clone(first), n_prompts=len(members))
        ensemble.members_ = list(members)
        ensemble.n_features_in_ = sum(member.n_features_in_ for member in members)
        ensemble.n_rows_, ensemble.classes_ = first.n_rows_, first.classes_
        ensemble.labels_, ensemble.origin_ = list(labels) if labels else first.labels_, dict(origin or {})
        return ensemble

    @property
    def fits_on(self) -> str:  # type: ignore[override]
        return self.calibrator.fits_on

    @property
    def uses_representations(self) -> bool:  # type: ignore[override]
        return self.calibrator.uses_representations

    def _count_labels(self, n_columns: int) -> int:
        if n_columns % self.n_prompts:
            raise CalibrationError(
                f"{n_columns} columns cannot be the labels of {self.n_prompts} prompts side by side; give n_prompts as "
                f"many as there are."
            )
        return n_columns // self.n_prompts

    def _by_prompt(self, scores: Array, layers: Sequence[Array]) -> Iterator[dict[str, Any]]:
        """What each member is given."""
        for k, part in enumerate(np.split(scores, self.n_prompts, axis=1)):
            yield {"X": part, **({"representations": self._part(layers[0], k)} if layers else {})}

    def _part(self, layers: Array, k: int) -> Array:
        if len(layers) % self.n_prompts:
            raise CalibrationError(
                f"{len(layers)} layers cannot be those of {self.n_prompts} prompts side by side; give all prompts the "
                f"same layers."
            )
        return np.split(layers, self.n_prompts)[k]

    def _fit(self, scores: Array, *layers: Array) -> None:
        given = list(self._by_prompt(scores, layers))
        self.members_ = [clone(self.calibrator) for _ in given]
        type(self.calibrator).fit_prompts(self.members_, given)

    def _calibrate(self, scores: Array, *layers: Array) -> Array:
        given = zip(self.members_, self._by_prompt(scores, layers), strict=True)
        return mean_of_prompts(np.stack([member.predict_log_proba(**one) for member, one in given]))

    def _blank_document(self) -> tuple[Array, ...]:
        blanks = [member._blank_document() for member in self.members_]
        scores, *layers = zip(*blanks, strict=True)
        return (np.hstack(scores), *(np.concatenate(one) for one in layers))

    def _report(self) -> dict[str, Any]:
        return {"params": {"n_prompts": self.n_prompts}, "members": [member.fit_report() for member in self.members_]}
