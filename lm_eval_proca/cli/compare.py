"""``lm-eval-proca compare``: many result folders in, one leaderboard out."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from lm_eval_proca.cli.calibrate_runs import progress
from lm_eval_proca.cli.options import add_jobs_option
from lm_eval_proca.compare.comparison import CalibratedResults, Report, compare
from lm_eval_proca.compare.formats import latex, markdown, spreadsheet, structured, terminal
from lm_eval_proca.compare.formats.tabular import write_file
from lm_eval_proca.compare.names import matches
from lm_eval_proca.compare.page import render_page
from lm_eval_proca.compare.results import Notice
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.runs.finished import BegunRun, begin_run, calibrated_in_order
from lm_eval_proca.runs.output_folder import result_files, samples_file
from lm_eval_proca.runs.processes import Submit, cores
from lm_eval_proca.scores.fitting import calibrators_of_documents

FORMATS = {"terminal": terminal, "markdown": markdown, "csv": spreadsheet, "latex": latex, "json": structured}
SUFFIXES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}
WITH_NOTICES = ("terminal", "markdown")
SOMETHING_SKIPPED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"Exit code {SOMETHING_SKIPPED}: the tables leave out damaged files, which are named."
    add = parser.add_argument
    add("folders", nargs="+", metavar="DIR", help="folders of `lm_eval --output_path` or of `lm-eval-proca sweep`")
    add("--format", choices=FORMATS, help="of the tables (default: what the suffix of --output says, or terminal)")
    add("--output", metavar="FILE", help=f"write the tables to FILE ({', '.join(SUFFIXES)}; others as on a terminal)")
    add("--html", metavar="FILE", help="also write one self-contained page to look at and click through")
    add("--groups", action="store_true", help="one column per group, e.g. mmlu, in place of those of its tasks")
    add_jobs_option(parser)
    add("--tasks", metavar="NAMES", default="*", help="only these tasks, e.g. sst2,proca_mr or patterns such as 'sst*'")


def run(args: argparse.Namespace) -> int:
    patterns, files = args.tasks.split(","), result_files(args.folders)
    calibrated = _calibrated(files, ["*"] if args.groups else patterns, args.jobs or cores())
    report = compare(files, patterns, calibrated, groups=args.groups)
    format_ = args.format or SUFFIXES.get(Path(args.output or "").suffix.lower(), "terminal")
    if args.html is not None:  # before anything is printed, which a pipe to `head` would end
        write_file(render_page(report), args.html)
        print(f"page written to {args.html}", file=sys.stderr)
    _write_tables(report, format_, args.output)
    _say(report, shown=args.output is None and format_ in WITH_NOTICES)
    return SOMETHING_SKIPPED if report.damaged else 0


def _calibrated(files: Sequence[Path], patterns: Sequence[str], jobs: int) -> CalibratedResults:
    """Calibrate results files that have sample logs and no calibrated rows, without writing them."""
    found = CalibratedResults()
    calibrators = calibrators_of_documents(representations=False)
    count = 0

    def begin(file: Path, submit: Submit) -> BegunRun:
        def wanted(task: str) -> bool:
            return matches(task, patterns) and samples_file(file, task).is_file()

        return begin_run(file, calibrators, wanted=wanted, submit=submit)

    with progress(files) as bar:
        runs = calibrated_in_order((partial(begin, file) for file in files), min(jobs, bar.total), bar.update)
        for file, run in zip(files, runs, strict=True):
            if isinstance(run, ResultsError):  # for the comparison to name
                continue
            found.answers.update(run.answers)
            for one in run.skipped:
                kind = "damaged" if one.damaged else "left out"
                found.notices.append(Notice(kind, f"{one.task} of {file} was skipped: {one.reason}."))
                del run.document["configs"][one.task]
            if run.calibrated or run.skipped:
                found.documents[file] = run.document
            count += len(run.calibrated)
    if count:
        text = f"{count} results were calibrated here, cross-fitted on the evaluation rows in their sample logs"
        found.notices.insert(0, Notice("calibrated", f"{text}; `lm-eval-proca calibrate --output DIR` keeps that."))
    return found


def _write_tables(report: Report, format_: str, output: str | None) -> None:
    if output is not None:
        write_file(FORMATS[format_].render(report), output)
        print(f"tables written to {output}", file=sys.stderr)
    elif format_ == "terminal" and sys.stdout.isatty():
        width = os.get_terminal_size(sys.stdout.fileno()).columns
        sys.stdout.write(terminal.render(report, width=width, color=True))
    else:
        sys.stdout.write(FORMATS[format_].render(report))


def _say(report: Report, shown: bool) -> None:
    """Print the notices that standard output does not show: no failure is silent, and nothing is said twice."""
    if not shown:
        for notice in report.notices:
            print(f"{notice.kind}: {notice.text}", file=sys.stderr)
    elif report.damaged and not sys.stdout.isatty():
        print("damaged files were left out; they are named below the tables", file=sys.stderr)
