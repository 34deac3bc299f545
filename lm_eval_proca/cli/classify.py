"""``lm-eval-proca classify``: a file of texts in, the same file with labels out; no labeled text is needed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.classify.classifier import FIT_ROWS, LABEL_COLUMN, TextClassifier, unusable_in_words
from lm_eval_proca.classify.fitting import AUTO
from lm_eval_proca.classify.labeling import Outcome, label_file, report_file
from lm_eval_proca.cli.options import (
    BACKEND,
    add_model_options,
    add_param_option,
    calibrator_params,
    key_values,
    names,
    positive,
    quiet_logging,
    whole_number,
)
from lm_eval_proca.compare.formats.tabular import text_table
from lm_eval_proca.errors import TextsError
from lm_eval_proca.harness.prompts import KINDS
from lm_eval_proca.scores.fitting import make_calibrators

ASKED = ("labels", "template", "text", "description", "demonstrations", "num_fewshot", "prompts", "vary", "seed")
FITTED = ("calibrator", "param", "fit_rows")
"""Options that a loaded classifier has decided already, like those before."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The same in Python: `from lm_eval_proca import TextClassifier`."
    add = parser.add_argument
    add("texts", type=Path, metavar="FILE", help="rows with texts: .csv, .jsonl or .parquet")
    add(
        "--output", required=True, type=Path, metavar="FILE", help="the same rows with labels: .csv, .jsonl or .parquet"
    )
    add("--save", type=Path, metavar="FOLDER", help="keep prompt, labels, name of the model and calibrator")
    add("--load", type=Path, metavar="FOLDER", help="label the rows with what --save has kept; nothing is fitted")
    asked = parser.add_argument_group("what the model is asked")
    add = asked.add_argument
    add("--labels", nargs="+", help="the label words, separated by commas")
    add(
        "--template",
        action="append",
        help=r"e.g. 'Ticket: {body}\nTeam:', with columns of the file in braces, or in Jinja with {{body}}; give it "
        "several times for several prompts",
    )
    add("--text", nargs="+", metavar="COLUMN", help="the text itself: where it is empty, a row gets no label")
    add("--description", metavar="TEXT", help="an instruction before everything else")
    add(
        "--demonstrations",
        metavar="FILE",
        help=f"labeled examples for the prompt: the columns of the template and `{LABEL_COLUMN}`",
    )
    add("--num_fewshot", type=positive, metavar="N", help="show N of them, drawn at random (default: all)")
    add("--prompts", type=positive, metavar="N", help="ask under N prompts and average (default: one per template)")
    add("--vary", choices=KINDS, help="what differs between prompts (default: the first of these that can)")
    add("--seed", type=whole_number, help="of the demonstrations that are drawn (default: 1234)")
    add_model_options(parser.add_argument_group("the model"), batch_size="auto")
    fit = parser.add_argument_group("calibration")
    by_default = "proca_h where the model gives representations, else bc"
    fit.add_argument("--calibrator", metavar="NAME", help=f"default: {by_default}")
    add_param_option(fit)
    fit.add_argument("--fit_rows", type=positive, metavar="N", help=f"rows to fit on at most (default: {FIT_ROWS})")
    parser.set_defaults(model=None)


def run(args: argparse.Namespace) -> int:
    quiet_logging()
    datasets.disable_progress_bars()
    classifier = _classifier(args)
    try:
        outcome = label_file(classifier, args.texts, args.output, save=args.save)
    except KeyboardInterrupt:
        print("\nInterrupted. What was scored is kept; the same command goes on from here.", file=sys.stderr)
        return 130
    for line in _said(outcome, args.output, loaded=args.load is not None):
        print(line)
    if outcome.unusable:
        print(f"note: {unusable_in_words(outcome.unusable, 'row', first=1)}.", file=sys.stderr)
    return 0


def _classifier(args: argparse.Namespace) -> TextClassifier:
    model = {"batch_size": args.batch_size, "device": args.device}
    model_args = key_values(args.model_args, "--model_args") if args.model_args else None
    given: dict[str, Any] = {name: getattr(args, name) for name in (*ASKED, *FITTED) if getattr(args, name)}
    if args.load is not None:
        if given or args.save:
            told = next(iter(given), "save")
            raise TextsError(f"--load brings its own question and fit; leave --{told} out.")
        return TextClassifier.load(args.load, model=args.model, model_args=model_args, **model)
    missing = [f"--{name}" for name in ("labels", "template") if name not in given]
    if model_args is None and args.model in (None, BACKEND):  # a backend of somebody's own may need none
        missing.append("--model_args pretrained=NAME")
    if missing:
        raise TextsError(f"{' and '.join(missing)} must be given, or --load FOLDER.")
    params = calibrator_params(given.pop("param", []))
    return TextClassifier(
        **{
            **given,
            "labels": [word.strip() for word in names(args.labels)],
            "template": [_unescaped(one) for one in args.template],
            "description": _unescaped(args.description or ""),
            "calibrator": _calibrator(args.calibrator, params),
        },
        model=args.model or BACKEND,
        model_args=model_args,
        **model,
    )


def _calibrator(name: str | None, params: dict[str, dict[str, Any]]) -> str | Calibrator:
    if name is None and params:
        raise TextsError("--param needs --calibrator with the name of the calibrator.")
    return AUTO if name is None else make_calibrators([name], params)[name]


def _unescaped(text: str) -> str:
    r"""A shell hands `\n` over as two characters."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


def _said(outcome: Outcome, output: Path, *, loaded: bool) -> Iterator[str]:
    fit, prompts = outcome.fit, outcome.fit["prompts"]
    asked = "" if prompts == 1 else f" under {prompts} prompts"
    yield (
        f"{outcome.labeled} of {outcome.rows} rows labeled in {output}, by {fit['calibrator']}{asked}, fitted on "
        f"{fit['fitted_rows']} unlabeled rows."
    )
    total = max(outcome.labeled, 1)
    yield text_table(
        [{"label": word, "rows": count, "share": count / total} for word, count in outcome.label_counts.items()]
    )
    if outcome.mean_probability is not None:
        yield f"mean probability of the labels: {outcome.mean_probability:.2f}"
    if fit["estimated_accuracy"] is not None:
        whose = "estimated accuracy of the fit, not of these rows" if loaded else "estimated accuracy"
        yield (
            f"{whose}: {fit['estimated_accuracy']:.2f} (a guess without labels, ten points off or more; label some "
            f"rows yourself before you trust it)"
        )
    for warning in fit["warnings"]:
        yield f"warning: {warning}"
    yield f"All of this is in {report_file(output)}."
