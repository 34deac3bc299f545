"""What every calibrator shares: checked input, normalised output, a report and a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import log_softmax
from sklearn.base import BaseEstimator
from sklearn.utils._param_validation import InvalidParameterError

from lm_eval_proca.calibration.registry import registered_name
from lm_eval_proca.errors import CalibrationError

if TYPE_CHECKING:
    from typing_extensions import Self

Array = NDArray[np.floating[Any]]


class Calibrator(BaseEstimator, ABC):
    """Base class of calibrators.

    Scores are an array (documents, labels) of log-likelihoods: natural logarithms, not necessarily normalised over
    labels. A calibrator never sees the label of a document.

    A new calibrator implements :meth:`_fit` and :meth:`_calibrate`, declares its parameters as scikit-learn estimators
    do (keyword-only in ``__init__``, constraints in ``_parameter_constraints``) and is registered by one line in
    :data:`lm_eval_proca.calibration.registry.CALIBRATORS`. What it learns it keeps in attributes that end in ``_``:
    arrays, numbers and strings, which :meth:`save` then stores.

    Attributes
    ----------
    n_labels_ : int
        Number of labels seen during :meth:`fit`.
    n_rows_ : int
        Number of documents seen during :meth:`fit`.
    labels_ : list of str, or None
        The label words given to :meth:`fit`, in the order of the score columns.
    origin_ : dict
        Where the scores given to :meth:`fit` came from, as far as it was told.
    """

    fits_on: ClassVar[str] = "estimate"
    """Which documents of a run :meth:`fit` wants: "estimate" or "content_free"."""

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {}

    n_labels_: int
    n_rows_: int
    labels_: list[str] | None
    origin_: dict[str, Any]

    def fit(
        self, scores: ArrayLike, *, labels: Sequence[str] | None = None, origin: Mapping[str, Any] | None = None
    ) -> Self:
        """Learn from the scores of unlabeled documents.

        Parameters
        ----------
        scores : array-like of shape (n_documents, n_labels)
            Log-likelihoods of the labels.
        labels : sequence of str, optional
            The label words, one per column; a saved calibrator can then be applied to columns by their names.
        origin : mapping, optional
            Where the scores come from (task, model, ...), as JSON can hold it; it is kept and saved, nothing more.

        Returns
        -------
        self : object
            The fitted calibrator.
        """
        self.check_params()
        checked = check_scores(scores)
        if not len(checked):
            raise CalibrationError(f"{type(self).__name__} was given no documents to fit on; it needs at least one.")
        words = check_labels(labels, checked.shape[1])
        self._fit(checked)
        self.n_rows_, self.n_labels_ = checked.shape
        self.labels_, self.origin_ = words, dict(origin or {})
        return self

    def check_params(self) -> None:
        """Raise if a parameter has a value that :meth:`fit` would refuse."""
        try:
            self._validate_params()
        except InvalidParameterError as error:
            raise CalibrationError(str(error)) from None

    def predict_log_proba(self, scores: ArrayLike) -> Array:
        """Calibrated log-probabilities of the labels.

        Parameters
        ----------
        scores : array-like of shape (n_documents, n_labels)
            Log-likelihoods of the labels.

        Returns
        -------
        log_proba : ndarray of shape (n_documents, n_labels)
            The exponentials of each row sum to one.
        """
        self._check_fitted()
        checked = check_scores(scores)
        if checked.shape[1] != self.n_labels_:
            raise CalibrationError(
                f"The scores have {checked.shape[1]} label columns but this {type(self).__name__} was fitted on "
                f"{self.n_labels_}; give the same labels in the same order."
            )
        return log_softmax(self._calibrate(checked), axis=1)

    def predict_proba(self, scores: ArrayLike) -> Array:
        """Calibrated probabilities of the labels, each row summing to one: exp of :meth:`predict_log_proba`."""
        return np.exp(self.predict_log_proba(scores))

    def predict(self, scores: ArrayLike) -> NDArray[np.intp]:
        """Index of the most probable label of each document, by :meth:`predict_log_proba`."""
        return self.predict_log_proba(scores).argmax(axis=1)

    def fit_report(self) -> dict[str, Any]:
        """What happened during :meth:`fit`, ready for JSON."""
        self._check_fitted()
        report = {
            "method": registered_name(type(self)) or type(self).__name__,
            "params": self.get_params(),
            "n_rows": self.n_rows_,
            "n_labels": self.n_labels_,
        }
        return plain(report | self._report())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted calibrator to one file that is safe to load from a stranger; see :func:`load_calibrator`."""
        from lm_eval_proca.calibration.storage import save_calibrator

        self._check_fitted()
        save_calibrator(self, path)

    @abstractmethod
    def _fit(self, scores: Array) -> None:
        """Set the fitted attributes from checked scores."""

    @abstractmethod
    def _calibrate(self, scores: Array) -> Array:
        """Calibrated scores of checked scores; the base class normalises them over labels."""

    def _report(self) -> dict[str, Any]:
        """What the method adds to :meth:`fit_report`."""
        return {}

    def _check_fitted(self) -> None:
        if not hasattr(self, "n_labels_"):
            raise CalibrationError(f"This {type(self).__name__} is not fitted yet; call fit(scores) first.")


def check_scores(scores: ArrayLike) -> Array:
    """`scores` as a float64 array, or an error that says which of them cannot be used."""
    try:
        checked = np.array(scores, dtype=np.float64, order="C")
    except (TypeError, ValueError):
        raise CalibrationError(
            "The scores are not a table of numbers; give one row per document with one log-likelihood per label."
        ) from None
    if checked.ndim != 2:
        raise CalibrationError(
            f"The scores have {checked.ndim} dimension(s) instead of 2; give an array of shape (documents, labels)."
        )
    if checked.shape[1] < 2:
        raise CalibrationError(f"The scores have {checked.shape[1]} label column(s); calibration needs at least 2.")
    unusable = np.argwhere(~np.isfinite(checked))
    if len(unusable):
        row, column = unusable[0]
        others = f" (and {len(unusable) - 1} more)" if len(unusable) > 1 else ""
        raise CalibrationError(
            f"The score of row {row}, label column {column} is {checked[row, column]}{others}; every score must be a "
            f"finite log-likelihood, so look at what the model returned for that document."
        )
    return checked


def check_labels(labels: Sequence[str] | None, n_labels: int) -> list[str] | None:
    """The label words without the blanks around them, or an error if they cannot name the columns."""
    if labels is None:
        return None
    words = [str(label).strip() for label in labels]
    if not len(words) == len(set(words)) == n_labels:
        raise CalibrationError(
            f"The label words {', '.join(words)} cannot name {n_labels} label columns; give each column its own word."
        )
    return words


def plain(value: Any) -> Any:
    """`value` with numpy arrays and numbers replaced by what JSON knows."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value
