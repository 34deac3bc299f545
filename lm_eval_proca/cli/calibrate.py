"""``lm-eval-proca calibrate``: calibrate finished runs from their scores, in seconds and without a model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.cli.calibrate_runs import calibrate_folders
from lm_eval_proca.cli.calibrate_sweep import calibrate_sweep
from lm_eval_proca.cli.calibrate_together import calibrate_sets, could_be_together
from lm_eval_proca.cli.options import add_jobs_option, add_param_option, calibrator_params, names
from lm_eval_proca.cli.wording import folds_in_words, headline, label_table, number
from lm_eval_proca.compare.formats.tabular import check_rows_file, is_rows_file, text_table, write_rows
from lm_eval_proca.errors import CalibrationError, ResultsError
from lm_eval_proca.runs.finished import FittedTask
from lm_eval_proca.runs.output_folder import visible_files
from lm_eval_proca.runs.processes import cores, processes
from lm_eval_proca.runs.recalibrated import CalibratorsOf
from lm_eval_proca.runs.score_files import find_score_tables, read_run
from lm_eval_proca.scores import fitting
from lm_eval_proca.scores.fitting import Measured
from lm_eval_proca.scores.score_table import NO_GOLD, ScoreTable

HEADINGS = {"accuracy": "accuracy", "macro_f1": "macro-F1", "brier": "Brier", "calibration_error": "calibration error"}

Calibrators = Mapping[str, Calibrator]
Recalibrated = tuple[list[Measured], dict[str, str]]
"""The rows of a table, and why calibrators have none."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "files",
        nargs="+",
        metavar="PATH",
        help="output folders of lm_eval --log_samples, or single samples_*.jsonl; or score tables (--metadata "
        "proca.scores_dir=DIR) and folders of them",
    )
    add("--calibrators", metavar="NAMES", help="e.g. none,bc,proca (default: those of the run, with its parameters)")
    add_param_option(parser)
    add_jobs_option(parser)
    add(
        "--output",
        metavar="PATH",
        help="also write a file of all numbers, .json (with the fit reports) or .csv; or a folder, which gets results "
        "and samples as lm-eval writes them, of a sweep all its cells",
    )
    add("--bias", action="store_true", help="show label by label what each method prefers, as for a single file")
    add(
        "--together",
        action="store_true",
        help="put the prompts of a task together: tables, logs or output folders of the same model and documents",
    )
    add(
        "--save",
        metavar="FILE",
        help="keep the fitted calibrator; needs one FILE (with --together one set of them) and one calibrator",
    )


def run(args: argparse.Namespace) -> int:
    params, named = _chosen(args)
    if args.together and args.bias:
        raise ResultsError("--bias is about single prompts; leave it or --together out.")
    if any(map(_is_output_of_lm_eval, args.files)):
        return _calibrate_folders(args, params, named)

    def calibrators_of(table: ScoreTable) -> Calibrators:
        return fitting.calibrators_of_run(table, params) if named is None else named

    if args.together:
        return calibrate_sets(args, calibrators_of)
    if not all(Path(path).is_dir() for path in args.files):
        check_rows_file(args.output)
    if args.output is not None and not is_rows_file(args.output):
        if args.save is not None:
            raise ResultsError("--save keeps the calibrator of one file; leave it or the folder --output out.")
        return calibrate_sweep(args.files, calibrators_of, args.output, bias=args.bias)
    return _calibrate_tables(args, calibrators_of)


def _calibrate_tables(args: argparse.Namespace, calibrators_of: CalibratorsOf) -> int:
    """Print the numbers of every score table or log; 1 if one is not finite, or no calibrator that is named fits."""
    tables = [(path, read_run(path)) for path in find_score_tables(args.files)]
    chosen = [calibrators_of(table) for _, table in tables]
    if args.save is not None and (count := sum(map(len, chosen))) != 1:
        raise CalibrationError(
            f"--save keeps one calibrator, these would be {count}; name one file and one calibrator, e.g. "
            f"--calibrators proca."
        )
    found: Iterable[Recalibrated] = _recalibrated(tables, chosen, args.jobs)
    if args.output is not None:  # before anything is printed, which a pipe to `head` would end
        found = list(found)
        pairs = zip(tables, found, strict=True)
        _write([_row(str(path), table, row) for (path, table), (rows, _) in pairs for row in rows], args.output)
    fitted: list[Calibrator] = []
    for (path, table), (measured, failures) in zip(tables, found, strict=True):
        print(f"{_headline(table)}\n{path}")
        _print(table, measured, failures, by_label=args.bias or len(tables) == 1)
        if (reason := table.not_finite()) is not None:
            print(f"lm-eval-proca calibrate: {path} lacks calibrated rows. {reason}.", file=sys.stderr)
        fitted += [row.fit.calibrator for row in measured if row.fit is not None]
    for note in could_be_together(tables):
        print(f"note: {note}")
    if args.save is not None:
        if not fitted:
            raise CalibrationError(f"Nothing was fitted, so {args.save} is not written; see the note above.")
        fitted[0].save(args.save)
        print(f"calibrator saved to {args.save}", file=sys.stderr)
    nothing_made = bool(args.calibrators) and any(chosen) and not fitted  # --calibrators none asks for none
    return 1 if nothing_made or any(table.not_finite() for _, table in tables) else 0


def _recalibrated(
    tables: Sequence[tuple[Path, ScoreTable]], chosen: Sequence[Calibrators], jobs: int | None
) -> Iterator[Recalibrated]:
    with processes(min(jobs or cores(), len(tables))) as submit:
        begun = [submit(fitting.recalibrate, table, some) for (_, table), some in zip(tables, chosen, strict=True)]
        yield from (finish() for finish in begun)


def _write(rows: Sequence[dict[str, Any]], path: str) -> None:
    if path.endswith(".csv"):
        rows = [{key: value for key, value in row.items() if key not in ("fit", "bias")} for row in rows]
    print(f"numbers written to {write_rows(rows, path)}", file=sys.stderr)


def _print(table: ScoreTable, measured: Sequence[Measured], failures: Mapping[str, str], by_label: bool) -> None:
    print(text_table([_printed(row) for row in measured]))
    for note in _notes(table, measured, failures):
        print(f"note: {note}")
    if by_label and measured[0].bias.documents:
        print("\n" + label_table(table.labels, {row.name: row.bias for row in measured}))
    print()


def _is_output_of_lm_eval(path: str) -> bool:
    """A results file, or a folder without score tables, which would hold more than sample logs."""
    found = Path(path)
    return found.suffix == ".json" or (found.is_dir() and not visible_files(found, "*.parquet"))


def _calibrate_folders(args: argparse.Namespace, params: fitting.Params, named: Calibrators | None) -> int:
    others = [path for path in args.files if not _is_output_of_lm_eval(path)]
    if others:
        raise ResultsError(
            f"{', '.join(others)}: single files cannot be given together with output folders; calibrate them apart."
        )
    if args.save is not None:
        raise ResultsError("--save keeps the calibrator of one file; name a samples_*.jsonl or a score table.")
    if args.together and args.output is not None and is_rows_file(args.output):
        raise ResultsError(
            f"--output {args.output}: with --together, output folders are written as a folder; for a file of numbers "
            f"name the samples_*.jsonl of a task."
        )
    calibrators = fitting.calibrators_of_documents(params, representations=False) if named is None else named
    file_of_rows = args.output if args.output is not None and is_rows_file(args.output) else None
    numbers: list[dict[str, Any]] = []
    made: set[str] = set()

    def note(task: FittedTask) -> None:
        made.update(task.fits)
        if file_of_rows is not None:
            rows = fitting.measured(task.table, task.fits)
            numbers.extend(_row(str(task.log.path), task.table, row) for row in rows)

    options: dict[str, Any] = {"asked": bool(args.calibrators), "together": args.together, "bias": args.bias}
    options |= {"jobs": args.jobs or cores(), "note": note}
    status = calibrate_folders(args.files, calibrators, None if file_of_rows else args.output, **options)
    if file_of_rows is not None:
        _write(numbers, file_of_rows)
    return 1 if named and not made else status


def _chosen(args: argparse.Namespace) -> tuple[fitting.Params, Calibrators | None]:
    """What --param says, and the calibrators that are named, if any are.

    A wrong --param is refused before any file is read, as far as its calibrator is known without one: the filters of
    a run may have names of their own.
    """
    params = calibrator_params(args.param)
    if args.calibrators:
        return params, fitting.make_calibrators(names([args.calibrators]), params)
    known = {name: given for name, given in params.items() if name in CALIBRATORS}
    fitting.make_calibrators(known, known)
    return params, None


def _headline(table: ScoreTable) -> str:
    record = table.record
    seed = f"seed {record.seed}" if record.seed is not None else ""
    prompt = f"prompt {record.prompt} of {record.prompts}" if record.prompts > 1 else ""
    return headline(table, ", ".join(filter(None, (seed, prompt))))


def _notes(table: ScoreTable, measured: Sequence[Measured], failures: Mapping[str, str]) -> Iterator[str]:
    folds = max((row.fit.folds for row in measured if row.fit is not None), default=1)
    yield from folds_in_words(folds)
    yield from fitting.in_words(failures)
    for row in measured:
        yield from (f"{row.name}: {warning}" for warning in _report(row).get("warnings", ()))
    if unlabeled := int((table.gold_of("eval") == NO_GOLD).sum()):
        yield f"{unlabeled} evaluation rows have no gold label; they are calibrated, but not measured."
    if table.record.labels_are_positions:
        yield "the choices differ from document to document, so what is calibrated is their position."


def _printed(row: Measured) -> dict[str, str]:
    numbers = {HEADINGS[name]: number(measure) for name, measure in row.measures.items()}
    estimated = _report(row).get("estimated_accuracy")  # what the fit expects, without labels
    return {"calibrator": row.name, **numbers, "estimated accuracy": "" if estimated is None else f"{estimated:.4f}"}


def _report(row: Measured) -> dict[str, Any]:
    return {} if row.fit is None else row.fit.calibrator.fit_report()


def _row(file: str, table: ScoreTable, row: Measured) -> dict[str, Any]:
    numbers = {
        f"{name}{suffix}": number
        for name, interval in row.measures.items()
        for suffix, number in zip(("", "_low", "_high"), interval, strict=True)
    }
    return {
        "file": file,
        **{key: getattr(table.record, key) for key in ("model", "task", "num_fewshot", "seed")},
        "eval_rows": int((table.role == "eval").sum()),
        "calibrator": row.name,
        "fitted_on": None if row.fit is None else fitting.role_to_fit(row.fit.calibrator, table),
        "folds": None if row.fit is None else row.fit.folds,
        "params": {} if row.fit is None else row.fit.calibrator.get_params(),
        **numbers,
        "recall_sd": row.bias.recall_sd,
        "bias": {"labels": table.labels, **row.bias.shares()},
        "fit": _report(row) or None,
    }
