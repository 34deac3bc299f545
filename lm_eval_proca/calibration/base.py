"""What every calibrator shares: checked input, normalised output, a report and a file."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from lm_eval_proca.calibration.registry import registered_name
from lm_eval_proca.errors import CalibrationError

if TYPE_CHECKING:
    from typing_extensions import Self

Array = NDArray[np.floating[Any]]


class Allowed(NamedTuple):
    """The values that a parameter may have: a test, and its words in "must be ..."."""

    fits: Callable[[Any], bool]
    words: str


def number(least: float) -> Allowed:
    return Allowed(lambda value: _is_number(value, Real, least), f"a number of at least {least}")


def whole_number(least: int) -> Allowed:
    return Allowed(lambda value: _is_number(value, Integral, least), f"a whole number of at least {least}")


def word(*words: str) -> Allowed:
    return Allowed(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(words)}")


def _is_number(value: Any, kind: Any, least: float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and least <= value < float("inf")


class Calibrator(ClassifierMixin, BaseEstimator, ABC):
    """Base class of calibrators: scikit-learn classifiers that never see a label.

    ``X`` is an array or data frame (documents, labels) of log-likelihoods: natural logarithms, not necessarily
    normalised over labels. Classes are its columns, by their index. ``y`` is taken where scikit-learn hands it over
    (pipelines, cross-validation) and ignored; only scorers look at it.

    A new calibrator implements :meth:`_fit` and :meth:`_calibrate`, keeps its keyword-only parameters untouched, says
    in ``_allowed`` what they may be, and is registered by one line in
    :data:`lm_eval_proca.calibration.registry.BUILT_IN`, or by an entry point of its own package. What it learns it
    keeps in attributes that end in ``_``: arrays, numbers and strings, which :meth:`save` then stores.

    Attributes
    ----------
    classes_ : ndarray of shape (n_labels,)
        0, 1, ...: what :meth:`predict` gives.
    n_features_in_ : int
        Number of columns seen during :meth:`fit`.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Their names, if they were the columns of a data frame.
    n_rows_ : int
        Number of documents seen during :meth:`fit`.
    labels_ : list of str, or None
        The label words given to :meth:`fit`, or the columns of its data frame.
    origin_ : dict
        Where the scores given to :meth:`fit` came from, as far as it was told.
    """

    fits_on: ClassVar[str] = "estimate"
    """Which documents of a run :meth:`fit` wants: one of :data:`lm_eval_proca.calibration.registry.FITTED_ON`."""

    by_default: ClassVar[bool] = True
    """Whether a run has this calibrator without being asked for it by name."""

    uses_representations: ClassVar[bool] = False
    """Whether the calibrator is also given representations, which `_fit` and `_calibrate` then take second."""

    fits_prompts_together: ClassVar[bool] = False
    """Whether the fit of a prompt is another one beside those of further prompts; see :meth:`fit_prompts`."""

    min_labels: ClassVar[int] = 2
    """A run leaves this calibrator out by default if the task has fewer labels."""

    _allowed: ClassVar[dict[str, Allowed]] = {}
    """The values that each parameter may have."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        representations: Any = None,
        labels: Sequence[str] | None = None,
        origin: Mapping[str, Any] | None = None,
    ) -> Self:
        """Learn from the scores of unlabeled documents.

        Parameters
        ----------
        X : array-like of shape (n_documents, n_labels)
            Log-likelihoods of the labels.
        y : ignored
            Here because scikit-learn passes it on.
        representations : array-like of shape (n_views, n_documents, width), optional
            Hidden states of layers, or centred log-probabilities of probe tokens, of the same documents, for
            calibrators that use them.
        labels : sequence of str, optional
            The label words, one per column; a saved calibrator can then be applied to columns by their names.
        origin : mapping, optional
            Where the scores come from (task, model, ...), as JSON can hold it; it is kept and saved, nothing more.
        """
        given = self._given(X, representations)
        n_rows, n_columns = given[0].shape
        n_labels = self._count_labels(n_columns)
        columns = getattr(self, "feature_names_in_", None) if n_labels == n_columns else None
        words = check_labels(columns if labels is None else labels, n_labels)
        self._fit(*given)
        self.n_rows_, self.labels_, self.origin_ = n_rows, words, dict(origin or {})
        self.classes_ = np.arange(n_labels)
        return self

    @classmethod
    def fit_prompts(cls, members: Sequence[Self], given: Sequence[Mapping[str, Any]]) -> None:
        """Fit one calibrator per prompt on the same documents; `given` is what :meth:`fit` takes for each.

        Here each is fitted alone. A method that learns more from all prompts together overrides this and sets
        :attr:`fits_prompts_together`.
        """
        for member, of_prompt in zip(members, given, strict=True):
            member.fit(**of_prompt)

    def _given(self, X: Any, representations: Any) -> tuple[Array, ...]:
        """What `_fit` takes, checked."""
        self.check_params()
        scores = self._checked(X, reset=True)
        return (scores, *self._representations(representations, len(scores)))

    def check_params(self) -> None:
        """Raise if a parameter has a value that :meth:`fit` would refuse."""
        for name, allowed in self._allowed.items():
            value = getattr(self, name)
            if not allowed.fits(value):
                raise CalibrationError(
                    f"The {name!r} parameter of {type(self).__name__} must be {allowed.words}, got {value!r}."
                )

    @property
    def n_labels_(self) -> int:
        """Number of labels seen during :meth:`fit`."""
        check_is_fitted(self)
        return len(self.classes_)

    def predict_log_proba(self, X: Any, *, representations: Any = None) -> Array:
        """Calibrated log-probabilities of the labels, (n_documents, n_labels); the exponentials of a row sum to one.

        `X` and `representations` are as in :meth:`fit`.
        """
        check_is_fitted(self)
        scores = self._checked(X, reset=False)
        return log_softmax(self._calibrate(scores, *self._representations(representations, len(scores))), axis=1)

    def predict_proba(self, X: Any, *, representations: Any = None) -> Array:
        """Calibrated probabilities of the labels, each row summing to one: exp of :meth:`predict_log_proba`."""
        return np.exp(self.predict_log_proba(X, representations=representations))

    def predict(self, X: Any, *, representations: Any = None) -> NDArray[np.int64]:
        """Index of the most probable label of each document, by :meth:`predict_log_proba`."""
        return self.predict_log_proba(X, representations=representations).argmax(axis=1)

    def predict_labels(self, X: Any, *, representations: Any = None) -> NDArray[np.str_]:
        """The word of the most probable label of each document; :meth:`fit` must have been given the words."""
        found = self.predict(X, representations=representations)
        if self.labels_ is None:
            raise CalibrationError(
                f"This {type(self).__name__} knows no label words; give them to fit(scores, labels=[...]), or fit it "
                f"on a data frame with a column for each."
            )
        return np.array(self.labels_)[found]

    def fit_report(self) -> dict[str, Any]:
        """What happened during :meth:`fit`, ready for JSON."""
        check_is_fitted(self)
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

        check_is_fitted(self)
        save_calibrator(self, path)

    @abstractmethod
    def _fit(self, scores: Array) -> None:
        """Set the fitted attributes from checked scores."""

    @abstractmethod
    def _calibrate(self, scores: Array) -> Array:
        """Calibrated scores of checked scores; the base class normalises them over labels."""

    def _count_labels(self, n_columns: int) -> int:
        """How many labels so many columns are the scores of."""
        return n_columns

    def _blank_document(self) -> tuple[Array, ...]:
        """What `_calibrate` takes, for one document; a loaded calibrator is tried on it."""
        return (np.zeros((1, self.n_features_in_)),)

    def _report(self) -> dict[str, Any]:
        """What the method adds to :meth:`fit_report`."""
        return {}

    def _checked(self, X: Any, *, reset: bool) -> Array:
        """Scores as a float64 array, in the columns of the fit, or an error that says what cannot be used."""
        try:
            least = {"ensure_min_samples": 1, "ensure_min_features": 2} if reset else {"ensure_min_samples": 0}
            scores = validate_data(self, X, reset=reset, dtype=np.float64, order="C", ensure_all_finite=False, **least)
        except ValueError as error:
            raise CalibrationError(" ".join(str(error).split())) from None
        unusable = np.argwhere(~np.isfinite(scores))
        if len(unusable):
            row, column = unusable[0]
            value = "NaN" if np.isnan(scores[row, column]) else scores[row, column]
            others = f" (and {len(unusable) - 1} more)" if len(unusable) > 1 else ""
            raise CalibrationError(
                f"The score of row {row}, label column {column} is {value}{others}; every score must be a finite "
                f"log-likelihood, so look at what the model returned for that document."
            )
        return scores

    def _representations(self, given: Any, n_rows: int) -> tuple[Array, ...]:
        """What `_fit` and `_calibrate` are given beside scores."""
        if not self.uses_representations:
            return ()
        if given is None:
            raise CalibrationError(
                f"{type(self).__name__} needs representations beside the scores; the shared-prefix models of "
                f"lm-eval-proca give them, and the score table of such a run (proca.scores_dir) keeps them."
            )
        layers = np.asarray(given)
        if layers.ndim != 3 or layers.shape[1] != n_rows:
            raise CalibrationError(
                f"The representations have the shape {layers.shape}; give an array (views, {n_rows} documents, width)."
            )
        if not np.isfinite(layers).all():
            raise CalibrationError("The representations hold numbers that are not finite; try another dtype.")
        return (layers,)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "classes_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        return tags


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
