"""A fitted classifier of texts as a folder: `classifier.json` says what is asked, `calibrator.json` is the calibrator.

Both are JSON, and nothing in them is executed or imported: templates that could run code are refused. Keys, tokens and
passwords among the arguments of the model are left out: give them again when you load the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lm_eval_proca.calibration.storage import load_calibrator
from lm_eval_proca.classify.question import Question, is_harmless
from lm_eval_proca.errors import ProcaError, TextsError
from lm_eval_proca.files import replacing
from lm_eval_proca.scores.identity import content
from lm_eval_proca.scores.redaction import public

if TYPE_CHECKING:
    from lm_eval_proca.classify.classifier import TextClassifier

Classifier = TypeVar("Classifier", bound="TextClassifier")

FORMAT = "lm-eval-proca text classifier"
FORMAT_VERSION = 1
CLASSIFIER, CALIBRATOR = "classifier.json", "calibrator.json"
REPLACED = ("model", "model_args", "batch_size", "device")
"""Parameters that may be others when a classifier is loaded: where the model is and how fast it shall be."""


def save_classifier(classifier: TextClassifier, folder: str | os.PathLike[str]) -> None:
    place, question, named = Path(folder), classifier.question, classifier.named_model
    _check_harmless(place, question, {})
    params = {
        "labels": question.labels,
        "template": question.templates,
        "description": question.description,
        "demonstrations": question.demonstrations,
        "num_fewshot": question.num_fewshot,
        "prompts": question.prompts,
        "vary": question.vary,
        "text": question.text,
        "seed": question.seed,
        "calibrator": classifier.report_["calibrator"],
        "model": named.model if named else None,
        "model_args": public(named.model_args) if named else None,
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
        classifier.calibrator_.save(place / CALIBRATOR)
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "params": params,
            "blank_scores": classifier.blank_scores_,
            "report": classifier.report_,
            "calibrator": content(place / CALIBRATOR),
        }
        with replacing(place / CLASSIFIER) as unfinished:
            unfinished.write_text(json.dumps(document, indent=2, default=str) + "\n", encoding="utf-8")
    except OSError as error:
        raise TextsError(f"The classifier cannot be saved in {folder} ({error.strerror}).") from error


def load_classifier(cls: type[Classifier], folder: str | os.PathLike[str], **replaced: Any) -> Classifier:
    if unknown := sorted(set(replaced) - set(REPLACED)):
        raise TextsError(f"{unknown[0]} is part of a saved classifier; only {', '.join(REPLACED)} may be others.")
    place = Path(folder)
    document = _read(place)
    given = {key: value for key, value in replaced.items() if value is not None}
    try:
        params = {**document["params"], **given}
        if params["model"] is None:
            raise TextsError(f"{folder} was saved with a model that was a Python object; give it as model.")
        classifier = cls(**params)
        classifier.calibrator_ = load_calibrator(place / CALIBRATOR)
        classifier.blank_scores_, classifier.report_ = document["blank_scores"], dict(document["report"])
        question = classifier.question
        _check_harmless(place, question, {} if "model_args" in given else params["model_args"] or {})
        shape = np.array(classifier.blank_scores_, dtype=float).shape
    except ProcaError:
        raise
    except Exception:
        raise _refusal(place, "was changed") from None
    if shape != (question.n_prompts, len(question.labels)) or not _fits(classifier):
        raise _refusal(place, "has labels and prompts that are not those of its calibrator")
    classifier.classes_ = np.sort(np.array(question.labels))
    return classifier


def _check_harmless(place: Path, question: Question, model_args: Mapping[str, Any]) -> None:
    """Refuse what would run code of whoever made the folder."""
    if unsafe := [one for one in (*question.templates, question.description) if not is_harmless(one)]:
        raise TextsError(
            f"{place} cannot have the template {unsafe[0]!r}, which could run code; a saved one may only show columns "
            f"and use methods of texts such as strip."
        )
    if str(model_args.get("trust_remote_code", False)).lower() == "true":
        raise TextsError(
            f"The model of {place} runs code of its own (trust_remote_code); give the model_args yourself if you trust "
            f"it."
        )


def _read(place: Path) -> dict[str, Any]:
    try:
        document = json.loads((place / CLASSIFIER).read_bytes())
    except OSError as error:
        raise TextsError(f"{place} holds no saved classifier ({CLASSIFIER}: {error.strerror}).") from None
    except ValueError:
        raise _refusal(place, "is damaged") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _refusal(place, "is no saved classifier")
    if (version := document.get("format_version")) != FORMAT_VERSION:
        raise _refusal(place, f"has format version {version!r}, and this lm-eval-proca reads {FORMAT_VERSION}")
    if document.get("calibrator") != content(place / CALIBRATOR):
        raise _refusal(place, f"has another {CALIBRATOR} than it was saved with")
    return document


def _fits(classifier: TextClassifier) -> bool:
    calibrator, question = classifier.calibrator_, classifier.question
    words = [label.strip() for label in question.labels]
    return calibrator.labels_ == words and getattr(calibrator, "n_prompts", 1) == question.n_prompts


def _refusal(place: Path, what: str) -> TextsError:
    return TextsError(f"{place} {what}; fit the classifier again and save it anew.")
