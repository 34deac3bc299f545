"""A fitted calibrator as one JSON file: no pickle, nothing in it is executed or imported.

``{"format", "format_version", "calibrator", "params", "fitted"}``. The calibrator is a name of the registry. Arrays of
numbers are ``{"dtype", "shape", "values"}``, arrays of words are lists. Where they are known, "labels" has the label
words and "origin" says where the scores of the fit came from. An ensemble has, in place of the last three, "members":
one calibrator per prompt.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from lm_eval_proca.calibration.base import Calibrator, check_labels, plain
from lm_eval_proca.calibration.ensemble import PromptEnsemble
from lm_eval_proca.calibration.registry import GROUP, make_calibrator, registered_name
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.files import replacing

FORMAT = "lm-eval-proca calibrator"
FORMAT_VERSION = 2
_NUMBERS: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}}
"""Kinds of arrays (truth values, whole numbers, floating point), and what JSON reads their numbers as."""


def save_calibrator(calibrator: Calibrator, path: str | os.PathLike[str]) -> None:
    """Write a fitted calibrator; a file that is already there is replaced at once or not at all."""
    document = {"format": FORMAT, "format_version": FORMAT_VERSION, **_described(calibrator)}
    try:
        with replacing(path) as unfinished:
            unfinished.write_text(json.dumps(document) + "\n", encoding="utf-8")
    except OSError as error:
        raise CalibrationError(f"The calibrator cannot be saved as {path}: {error.strerror}.") from None


def _described(calibrator: Calibrator) -> dict[str, Any]:
    known = {name: plain(value) for name in ("labels", "origin") if (value := getattr(calibrator, f"{name}_", None))}
    if isinstance(calibrator, PromptEnsemble):
        return {"members": [_described(member) for member in calibrator.members_], **known}
    name = registered_name(type(calibrator))
    if name is None:
        raise CalibrationError(
            f"{type(calibrator).__name__} cannot be saved because it has no name; give it one by an entry point of the "
            f"group {GROUP}, or in lm_eval_proca.calibration.registry.CALIBRATORS."
        )
    fitted = {key: value for key, value in vars(calibrator).items() if key.endswith("_")}
    learned = {key: _encode(value) for key, value in fitted.items() if key not in ("labels_", "origin_")}
    return {"calibrator": name, "params": plain(calibrator.get_params()), "fitted": learned, **known}


def load_calibrator(path: str | os.PathLike[str]) -> Calibrator:
    """Read a calibrator written by :meth:`Calibrator.save`.

    It predicts exactly what the saved one predicts, and knows its ``labels_`` and ``origin_`` if the saved one did.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from lm_eval_proca import BatchCalibrator, load_calibrator
    >>> with TemporaryDirectory() as folder:
    ...     BatchCalibrator().fit([[-1.0, -2.0], [-1.0, -4.0]]).save(f"{folder}/sentiment.json")
    ...     load_calibrator(f"{folder}/sentiment.json").predict([[-1.0, -2.5], [-1.0, -3.5]]).tolist()
    [1, 0]
    """
    try:
        document = json.loads(Path(path).read_bytes())
    except OSError as error:
        raise CalibrationError(f"The calibrator file {path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise _refusal(path, "is damaged or not a calibrator file") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise _refusal(path, "is not a calibrator file")
    if (version := document.get("format_version")) != FORMAT_VERSION:
        raise _refusal(path, f"has format version {version!r} and this lm-eval-proca reads {FORMAT_VERSION}")
    try:
        return _made(document)
    except CalibrationError:
        raise
    except Exception:
        raise _refusal(path, "does not hold what a calibrator of its kind needs") from None


def _made(document: dict[str, Any]) -> Calibrator:
    if "members" in document:
        calibrator: Calibrator = PromptEnsemble.of([_made(member) for member in document["members"]])
    else:
        calibrator = make_calibrator(document["calibrator"], document["params"])
        for key, value in document["fitted"].items():
            if not key.endswith("_") or key.startswith("_"):
                raise ValueError(key)
            setattr(calibrator, key, _decode(value))
    calibrator.labels_ = check_labels(document.get("labels"), calibrator.n_labels_)
    calibrated = calibrator._calibrate(*calibrator._blank_document())
    if calibrated.shape != (1, calibrator.n_labels_) or np.isnan(calibrated).any():
        raise ValueError("parts that do not fit together")
    calibrator.origin_ = dict(document.get("origin", {}))
    return calibrator


def _encode(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in _NUMBERS:
        return plain(value)
    return {"dtype": value.dtype.name, "shape": list(value.shape), "values": value.ravel().tolist()}


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return np.array(value, dtype=object) if isinstance(value, list) else value
    dtype, values = np.dtype(value["dtype"]), value["values"]
    if not set(map(type, values)) <= _NUMBERS[dtype.kind]:
        raise ValueError(dtype)
    return np.array(values, dtype=dtype).reshape(value["shape"])


def _refusal(path: str | os.PathLike[str], what: str) -> CalibrationError:
    return CalibrationError(f"The file {path} {what}; fit the calibrator again and save it anew.")
