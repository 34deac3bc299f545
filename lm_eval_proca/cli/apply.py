"""``lm-eval-proca apply``: a saved calibrator on new scores."""

from __future__ import annotations

import argparse
import sys

from lm_eval_proca.errors import CalibrationError

HELP = "use a calibrator saved by `lm-eval-proca calibrate --save` on new scores"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The same in Python: `from lm_eval_proca import load_calibrator` and "
        "`load_calibrator(CALIBRATOR).predict(scores)`."
    )
    parser.add_argument("calibrator", metavar="CALIBRATOR", help="file that `calibrate --save` wrote")
    parser.add_argument(
        "scores",
        nargs="+",
        metavar="SCORES",
        help="log-likelihoods, one per label in the order of the fit: a CSV file with the label words as header, JSON "
        "Lines with one list of numbers per document, a score table, or lm-eval's samples_*.jsonl",
    )
    parser.add_argument("--output", metavar="FILE", help="write a .csv or .json file instead of CSV on standard output")


def run(args: argparse.Namespace) -> int:
    import numpy as np

    from lm_eval_proca.calibration.storage import load_calibrator
    from lm_eval_proca.experiments.score_files import read_scores
    from lm_eval_proca.report.rows import csv_text, write_rows

    calibrator = load_calibrator(args.calibrator)
    rows = []
    for path in args.scores:
        scores, words = read_scores(path)
        if scores.shape[1] != calibrator.n_labels_:
            raise CalibrationError(
                f"{path} has {scores.shape[1]} labels, the calibrator in {args.calibrator} was fitted on "
                f"{calibrator.n_labels_}."
            )
        log_proba = calibrator.predict_log_proba(scores)
        words = words or [str(label) for label in range(scores.shape[1])]
        for number, (label, row) in enumerate(zip(np.argmax(log_proba, axis=1), np.exp(log_proba), strict=True)):
            probabilities = {f"p({word})": float(p) for word, p in zip(words, row, strict=True)}
            rows.append({"file": path, "row": number, "label": int(label), "word": words[label], **probabilities})
    if args.output is None:
        sys.stdout.write(csv_text(rows))
    else:
        print(f"{len(rows)} predictions written to {write_rows(rows, args.output)}")
    return 0
