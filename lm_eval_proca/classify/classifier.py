"""`TextClassifier`: a prompt and a language model as a scikit-learn classifier of texts."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.model import LM
from lm_eval.utils import simple_parse_args_string
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.classify.fitting import AUTO, calibrated, calibrator_named, check_enough, fit_scored
from lm_eval_proca.classify.question import Question, Row, TextTask, columns_of, rows_of_texts
from lm_eval_proca.classify.scoring import Scored, Scorer
from lm_eval_proca.classify.text_files import read_rows
from lm_eval_proca.errors import ModelError, TextsError
from lm_eval_proca.harness.documents import fixed_part
from lm_eval_proca.harness.task import DEFAULT_SEED
from lm_eval_proca.sweep.cell import Model

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger("lm_eval.proca")

FIT_ROWS = 2000
LABEL_COLUMN = "label"
"""Of a file of demonstrations."""
SAME_MODEL = 0.1
"""Scores of one model on two machines or in two number formats lie closer; those of two models do not."""
SHOWN = 3


class TextClassifier(ClassifierMixin, BaseEstimator):
    r"""Classify texts by prompting a language model, calibrated without a single label.

    :meth:`fit` scores unlabeled texts and fits a calibrator on the scores; labels are not read. It assumes that the
    labels are about equally frequent among these texts. A text that cannot be used (empty, too long for the model, not
    text) gets the empty label and probabilities that are NaN; a warning names it.

    Parameters
    ----------
    labels : sequence of str
        The label words, as the model shall write them.
    template : str or sequence of str
        How a text is asked about, e.g. ``"Ticket: {text}\nTeam:"``; with ``{{`` it is lm-eval's own form, Jinja.
        Several columns may appear, several templates are several prompts.
    model : str or lm_eval.api.model.LM, default="hf-shared-prefix"
        lm-eval's name of a backend, or a model that is loaded already.
    model_args : dict or str, optional
        Arguments of the backend, e.g. ``{"pretrained": "EleutherAI/pythia-1.4b"}``, or as for lm_eval.
    calibrator : str or Calibrator, default="auto"
        A name, or an unfitted calibrator with its parameters. "auto" is ``proca_h`` where the model gives hidden
        states (hf-shared-prefix), else ``bc``.
    demonstrations : sequence of (text, label), or path, optional
        Labeled examples that every prompt shows; a file has a column ``label`` beside those of the template.
    num_fewshot : int, optional
        How many of them a prompt shows; all, if not given.
    prompts : int, optional
        Ask under so many prompts, and average what they say. They show other draws of the demonstrations, or other
        orders where all of them are shown, or the templates.
    vary : {"demonstrations", "orders", "templates"}, optional
        What differs between prompts, if not the first of these that can.
    description : str, default=""
        An instruction before everything else.
    text : sequence of str, optional
        The columns that are the text proper: a row in which all of them are blank is empty. All of the template's, if
        not given.
    fit_rows : int, default=2000
        How many texts are scored at most to fit; of more, a fixed random part.
    seed : int, default=1234
        Draws demonstrations.
    batch_size : int or str, default="auto"
        As for lm_eval, like the next. They change speed.
    device : str, default="cuda:0"
        The CPU where there is none.

    Attributes
    ----------
    classes_ : ndarray of str
        The label words in alphabetical order, as scikit-learn has classes: the columns of :meth:`predict_proba`.
    calibrator_ : Calibrator
        Fitted on the scores of the texts.
    report_ : dict
        Which calibrator was used, on how many rows, the accuracy that it expects of itself (None where it does not
        estimate it), and warnings.

    Examples
    --------
    >>> from lm_eval_proca import TextClassifier
    >>> teams = TextClassifier(
    ...     labels=["Billing", "Shipping", "Returns"],
    ...     template="Ticket: {text}\nTeam:",
    ...     model_args={"pretrained": "EleutherAI/pythia-1.4b"},
    ... )
    >>> teams.fit(tickets).predict(["Where is my parcel?"])           # doctest: +SKIP
    array(['Shipping'], dtype='<U8')
    >>> teams.save("teams")                                           # doctest: +SKIP
    >>> TextClassifier.load("teams").predict(["I was charged twice"]) # doctest: +SKIP
    array(['Billing'], dtype='<U8')
    """

    def __init__(
        self,
        *,
        labels: Sequence[str],
        template: str | Sequence[str],
        model: str | LM = "hf-shared-prefix",
        model_args: Mapping[str, Any] | str | None = None,
        calibrator: str | Calibrator = AUTO,
        demonstrations: Any = None,
        num_fewshot: int | None = None,
        prompts: int | None = None,
        vary: str | None = None,
        description: str = "",
        text: Sequence[str] | None = None,
        fit_rows: int = FIT_ROWS,
        seed: int = DEFAULT_SEED,
        batch_size: int | str = "auto",
        device: str = "cuda:0",
    ) -> None:
        self.labels = labels
        self.template = template
        self.model = model
        self.model_args = model_args
        self.calibrator = calibrator
        self.demonstrations = demonstrations
        self.num_fewshot = num_fewshot
        self.prompts = prompts
        self.vary = vary
        self.description = description
        self.text = text
        self.fit_rows = fit_rows
        self.seed = seed
        self.batch_size = batch_size
        self.device = device

    # ------------------------------------------------------------------ scikit-learn's methods

    def fit(self, X: Any, y: Any = None) -> Self:
        """Score unlabeled texts and fit the calibrator on their scores; `y` is ignored.

        `X` is a sequence of texts, or of mappings with a text per column, or a data frame.
        """
        self._fit(X)
        return self

    def fit_predict(self, X: Any, y: Any = None) -> np.ndarray:
        """The labels of the texts that the calibrator is fitted on, each from a fit that has not seen it."""
        rows, scored, log_proba = self._fit(X)
        others = set(range(len(rows))) - {*scored.rows, *scored.unusable}
        further = self.scorer_.score({row: rows[row] for row in others})
        self._warn(further)
        found = dict(zip(scored.rows, log_proba, strict=True))
        found |= dict(zip(further.rows, calibrated(self.calibrator_, further), strict=True))
        return self._words(np.stack([found.get(row, self._unknown) for row in range(len(rows))]))

    def _fit(self, X: Any) -> tuple[list[Row], Scored, np.ndarray]:
        rows = rows_of_texts(X, self.question.columns)
        self._scorer = self.make_scorer()
        scored = self._scorer.score({row: rows[row] for row in fixed_part(len(rows), self.fit_rows)})
        self._warn(scored)
        return rows, scored, self.fit_scores(self._scorer, scored)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Calibrated log-probabilities of the labels, (texts, labels), in the order of `classes_`."""
        check_is_fitted(self)
        return self._log_proba(X)[:, np.argsort(self.labels)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated probabilities of the labels, (texts, labels), in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        """The label word of each text."""
        check_is_fitted(self)
        return self._words(self._log_proba(X))

    def _log_proba(self, X: Any) -> np.ndarray:
        rows = dict(enumerate(rows_of_texts(X, self.question.columns)))
        scored = self.scorer_.score(rows)
        self._warn(scored)
        log_proba = np.full((len(rows), len(self.labels)), np.nan)
        log_proba[scored.rows] = calibrated(self.calibrator_, scored)
        return log_proba

    @property
    def _unknown(self) -> np.ndarray:
        return np.full(len(self.labels), np.nan)

    def _words(self, log_proba: np.ndarray) -> np.ndarray:
        known = ~np.isnan(log_proba).any(axis=1)
        return np.where(known, np.array(self.labels)[np.argmax(log_proba, axis=1)], "")

    def _warn(self, scored: Scored) -> None:
        if scored.unusable:
            logger.warning("%s", unusable_in_words(scored.unusable, "text", first=0))

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "calibrator_")

    def __sklearn_clone__(self) -> Self:
        """Clones share the loaded model, which scikit-learn would copy."""
        return type(self)(**self.get_params(deep=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        tags.input_tags.string, tags.input_tags.two_d_array = True, False
        return tags

    # ------------------------------------------------------------------ the steps between

    @property
    def question(self) -> Question:
        """What the parameters ask of the model, checked."""
        if isinstance(self.labels, str):
            raise TextsError("The labels must be a list of words, not one text.")
        asked = Question(labels=tuple(self.labels), templates=self._templates, text=tuple(self.text or ()))
        return Question(
            labels=asked.labels,
            templates=asked.templates,
            description=self.description,
            demonstrations=_demonstrations(self.demonstrations, asked.columns),
            num_fewshot=self.num_fewshot,
            prompts=self.prompts,
            vary=self.vary,
            text=asked.text,
            seed=self.seed,
        )

    @property
    def named_columns(self) -> tuple[str, ...]:
        """Every column that the parameters name, whether or not they fit together."""
        return tuple(dict.fromkeys((*(self.text or ()), *columns_of(self._templates))))

    @property
    def _templates(self) -> tuple[str, ...]:
        return (self.template,) if isinstance(self.template, str) else tuple(self.template)

    @property
    def named_model(self) -> Model | None:
        """The model by its name and arguments; None for one that was loaded elsewhere."""
        if isinstance(self.model, LM):
            return None
        given = self.model_args or {}
        args = simple_parse_args_string(given) if isinstance(given, str) else given
        return _model(self.model, _Arguments(args), self.batch_size, self.device)

    def make_scorer(self) -> Scorer:
        """The question as a task, and the model, which is loaded now."""
        calibrator, named = calibrator_named(self.calibrator), self.named_model
        task = TextTask(self.question, named.model_args if named else {})
        lm = self.model if named is None else named.load()
        if getattr(lm, "world_size", 1) > 1:
            raise ModelError("Texts are classified by one process; start one, which may use several GPUs.")
        return Scorer(task, lm, calibrator)

    @property
    def scorer_(self) -> Scorer:
        """Model and prompts of the fit; of a loaded classifier they are checked when they are first used."""
        check_is_fitted(self)
        if not hasattr(self, "_scorer"):
            scorer = self.make_scorer()
            _check_same_model(scorer.blank_scores, self.blank_scores_)
            self._scorer = scorer
        return self._scorer

    def fit_scores(self, scorer: Scorer, scored: Scored) -> np.ndarray:
        """Fit on rows that are scored; their cross-fitted log-probabilities, in the order of `labels`."""
        check_enough(len(scored.rows), len(self.labels))
        fitted = fit_scored(scored, self.calibrator)
        self.classes_ = np.sort(np.array(self.labels))
        self.calibrator_, self.report_, self.blank_scores_ = fitted.calibrator, fitted.report, scorer.blank_scores
        self._scorer = scorer
        return fitted.log_proba

    # ------------------------------------------------------------------ files

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Keep prompt, labels, name of the model and calibrator in a folder: JSON, nothing in it is executed."""
        from lm_eval_proca.classify.storage import save_classifier

        check_is_fitted(self)
        save_classifier(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], **params: Any) -> Self:
        """A classifier that :meth:`save` has kept, ready to predict.

        `params` replace parameters that do not change the scores: ``model``, ``model_args`` (the place of the weights,
        a key), ``batch_size`` and ``device``. Another model is refused when it is first used.
        """
        from lm_eval_proca.classify.storage import load_classifier

        return load_classifier(cls, folder, **params)


class _Arguments(dict[str, Any]):
    """Arguments of a model as the key of a cache."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self))


@lru_cache(maxsize=1)
def _model(backend: str, model_args: _Arguments, batch_size: int | str, device: str) -> Model:
    """The last model stays loaded: cross-validation asks for it once for each fold."""
    return Model(backend, dict(model_args), batch_size=batch_size, device=device)


def _demonstrations(given: Any, columns: Sequence[str]) -> tuple[tuple[Row, str], ...]:
    if given is None:
        return ()
    if not isinstance(given, (str, os.PathLike)):
        texts, labels = [text for text, _ in given], [label for _, label in given]
        return tuple(zip(rows_of_texts(texts, columns), labels, strict=True))
    rows = list(read_rows(Path(given)))
    if lacking := [column for column in (*columns, LABEL_COLUMN) if not all(column in row for row in rows)]:
        raise TextsError(
            f"The demonstrations in {given} lack the column {lacking[0]}; they need {', '.join(columns)} and "
            f"{LABEL_COLUMN}."
        )
    return tuple((row, str(row[LABEL_COLUMN]).strip()) for row in rows)


def _check_same_model(found: Sequence[Sequence[float]], saved: Sequence[Sequence[float]]) -> None:
    apart = float(np.abs(np.array(found) - np.array(saved)).max())
    if not apart <= SAME_MODEL:
        raise ModelError(
            f"This is another model than the classifier was fitted with: its scores of an empty text differ by "
            f"{apart:.2f}; give the same model as model_args, or fit anew."
        )


def unusable_in_words(unusable: Mapping[int, str], what: str, *, first: int) -> str:
    """One sentence that names the first of them; `first` is the number of the first row."""
    named = [f"{what} {row + first} {why}" for row, why in sorted(unusable.items())[:SHOWN]]
    more = f" and {len(unusable) - SHOWN} more" if len(unusable) > SHOWN else ""
    return f"{len(unusable)} without a label: {'; '.join(named)}{more}"
