"""``lm-eval-proca apply``: a saved calibrator on new scores."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.ensemble import PromptEnsemble
from lm_eval_proca.calibration.storage import load_calibrator
from lm_eval_proca.compare.formats.tabular import check_rows_file, csv_text, write_rows
from lm_eval_proca.errors import CalibrationError
from lm_eval_proca.representations import Representation
from lm_eval_proca.runs.score_files import NewScores, read_scores


def add_arguments(parser: argparse.ArgumentParser) -> None:
    in_python = "`from lm_eval_proca import load_calibrator` and `load_calibrator(CALIBRATOR).predict(scores)`"
    parser.epilog = f"The same in Python: {in_python}."
    parser.add_argument("calibrator", metavar="CALIBRATOR", help="file that `calibrate --save` wrote")
    parser.add_argument(
        "scores",
        nargs="+",
        metavar="SCORES",
        help="log-likelihoods, one per label: a CSV file with the label words as header, a score table, lm-eval's "
        "samples_*.jsonl, or JSON Lines with one list of numbers per document, in the order of the fit; an ensemble "
        "(`calibrate --together --save`) takes one file for each of its prompts, in their order",
    )
    parser.add_argument("--output", metavar="FILE", help="write a .csv or .json file instead of CSV on standard output")


def run(args: argparse.Namespace) -> int:
    check_rows_file(args.output)
    calibrator = load_calibrator(args.calibrator)
    given = [(path, read_scores(path)) for path in args.scores]
    if isinstance(calibrator, PromptEnsemble):
        inputs = [_side_by_side(_by_prompt(given, calibrator), calibrator)]
    else:
        inputs = [_input_of(path, new, calibrator) for path, new in given]
    rows = [row for one in inputs for row in _rows(one, calibrator)]
    if args.output is None:
        sys.stdout.write(csv_text(rows))
    else:
        print(f"{len(rows)} predictions written to {write_rows(rows, args.output)}")
    return 0


class Input(NamedTuple):
    """What a calibrator is given, and the words of its labels."""

    path: str
    scores: np.ndarray
    words: list[str]
    states: np.ndarray | None


def _rows(given: Input, calibrator: Calibrator) -> Iterator[dict[str, Any]]:
    path, scores, words, states = given
    log_proba = calibrator.predict_log_proba(scores, representations=states)
    for number, (label, row) in enumerate(zip(np.argmax(log_proba, axis=1), np.exp(log_proba), strict=True)):
        probabilities = {f"p({word})": float(p) for word, p in zip(words, row, strict=True)}
        yield {"file": path, "row": number, "label": int(label), "word": words[label], **probabilities}


def _input_of(path: str, new: NewScores, calibrator: Calibrator) -> Input:
    if (found := new.scores.shape[1]) != calibrator.n_labels_:
        raise CalibrationError(f"{path} has {found} labels, the calibrator was fitted on {calibrator.n_labels_}.")
    scores, words = _in_order_of_fit(path, new, calibrator)
    _note_other_origin(path, new.origin, calibrator.origin_)
    states = _views_of_fit(path, new, calibrator) if calibrator.uses_representations else None
    return Input(path, scores, words, states)


def _by_prompt(given: Sequence[tuple[str, NewScores]], ensemble: PromptEnsemble) -> list[tuple[str, NewScores]]:
    """One file for each prompt of the ensemble, all of the same documents.

    Where all prompts are known by their hashes, these tell which file is whose; else the order does.
    """
    if len(given) != ensemble.n_prompts:
        raise CalibrationError(
            f"The ensemble has {ensemble.n_prompts} prompts, {len(given)} score files were given; give one for each, "
            f"in the order of its prompts."
        )
    (first, of_first), *others = given
    for path, new in others:
        known = {one.documents for one in (of_first, new)} - {None}
        if len(new.scores) != len(of_first.scores) or len(known) > 1:
            raise CalibrationError(f"{path} has other documents than {first}; score the same ones under every prompt.")
    by_hash = {new.origin.get("prompt_hash"): (path, new) for path, new in given}
    wanted = [member.origin_.get("prompt_hash") for member in ensemble.members_]
    return [by_hash[one] for one in wanted] if None not in wanted and set(wanted) == set(by_hash) else list(given)


def _side_by_side(given: Sequence[tuple[str, NewScores]], ensemble: PromptEnsemble) -> Input:
    """The scores of all prompts as the ensemble reads them; the words are those of its labels."""
    parts = [_input_of(path, new, member) for (path, new), member in zip(given, ensemble.members_, strict=True)]
    states = [part.states for part in parts if part.states is not None]
    layers = np.concatenate(states) if len(states) == len(parts) else None
    return Input(parts[0].path, np.hstack([part.scores for part in parts]), ensemble.labels_ or parts[0].words, layers)


def _in_order_of_fit(path: str, new: NewScores, calibrator: Calibrator) -> tuple[np.ndarray, list[str]]:
    """The scores with their columns as the calibrator was fitted, and the words of these columns."""
    fitted = calibrator.labels_
    if new.labels is None or fitted is None:  # one of them has no names, so that only the order is left
        return new.scores, fitted or new.labels or [str(label) for label in range(calibrator.n_labels_)]
    words = [word.strip() for word in new.labels]
    if set(words) != set(fitted):
        raise CalibrationError(
            f"{path} has the labels {', '.join(words)}, but the calibrator was fitted on {', '.join(fitted)}; give "
            f"the columns these names, in any order."
        )
    return new.scores[:, [words.index(word) for word in fitted]], fitted


def _views_of_fit(path: str, new: NewScores, calibrator: Calibrator) -> np.ndarray | None:
    """The representations of the fit; layers in its order. None where the file has none at all."""
    if new.representations is None:
        return None
    fitted = Representation.of_json(calibrator.origin_.get("representation") or new.representation.as_json())
    found = new.representation
    if fitted.probes != found.probes or not set(fitted.layers) <= set(found.layers):
        asked = f"proca.layers={'/'.join(fitted.layers)}" if fitted.layers else "proca.representation=probes"
        raise CalibrationError(
            f"{path} has {found}, but the calibrator was fitted on {fitted}; score again with the same model and "
            f"{asked}."
        )
    return new.representations[[found.views.index(view) for view in fitted.views]]


def _note_other_origin(path: str, ours: Mapping[str, Any], fitted: Mapping[str, Any]) -> None:
    """Say so when the scores come from another model or prompt, on which the calibrator may do harm."""
    shared = [key for key in fitted if key in ours]
    # Arguments tell more than the name of the weights, which is one of them.
    model = "model_args" if "model_args" in shared else "model"
    # One prompt can have two seeds, e.g. without demonstrations: where the hash is known, it decides.
    prompt = ["prompt_hash"] if "prompt_hash" in shared else ["task", "num_fewshot", "seed"]
    differing = [key for key in shared if ours[key] != fitted[key]]
    others = [name for name, keys in (("model", [model]), ("prompt", prompt)) if set(keys) & set(differing)]
    if others:
        details = ", ".join(_instead(key, ours[key], fitted[key]) for key in differing)
        text = f"{path} has scores of another {' and '.join(others)} than the calibrator was fitted on ({details})"
        print(f"note: {text}; fit one for them with `lm-eval-proca calibrate`.", file=sys.stderr)


def _instead(key: str, ours: Any, fitted: Any) -> str:
    if not isinstance(ours, Mapping) or not isinstance(fitted, Mapping):
        return f"{key} {ours} instead of {fitted}"
    differing = (name for name in {**fitted, **ours} if ours.get(name) != fitted.get(name))
    return ", ".join(_instead(name, ours.get(name, "unset"), fitted.get(name, "unset")) for name in differing)
