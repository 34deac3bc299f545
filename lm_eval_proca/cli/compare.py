"""``lm-eval-proca compare``: many result folders in, one leaderboard out."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval_proca.errors import ResultsError
from lm_eval_proca.identity import IDENTITY_FILE
from lm_eval_proca.report.tabular import write_file
from lm_eval_proca.run_files import result_files, samples_file

if TYPE_CHECKING:
    from lm_eval_proca.experiments.finished_runs import CalibratedRun
    from lm_eval_proca.report.comparison import Report
    from lm_eval_proca.report.results import Notice

HELP = "compare models and calibrators: the paper's table and a leaderboard from result folders"

FORMATS = {
    "terminal": "lm_eval_proca.report.formats.terminal",
    "markdown": "lm_eval_proca.report.formats.markdown",
    "csv": "lm_eval_proca.report.formats.spreadsheet",
    "latex": "lm_eval_proca.report.formats.latex",
    "json": "lm_eval_proca.report.formats.structured",
}
SUFFIXES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}
WITH_NOTICES = ("terminal", "markdown")
SOMETHING_SKIPPED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"Exit code {SOMETHING_SKIPPED}: the tables leave out damaged files, which are named."
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="folders of `lm_eval --output_path` or of `lm-eval-proca sweep`"
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="of the tables (default: what the suffix of --output says, or terminal)"
    )
    parser.add_argument(
        "--output", metavar="FILE", help=f"write the tables to FILE ({', '.join(SUFFIXES)}; others as on a terminal)"
    )
    parser.add_argument(
        "--html", metavar="FILE", help="also write one self-contained page to look at and click through"
    )
    parser.add_argument(
        "--groups", action="store_true", help="one column per group, e.g. mmlu, in place of those of its tasks"
    )
    parser.add_argument(
        "--tasks",
        metavar="NAMES",
        default="*",
        help="only these tasks, separated by commas: 'sst2', 'proca_sst2' or patterns such as 'sst*'",
    )


def run(args: argparse.Namespace) -> int:
    # SciPy takes a second to import; `--help` and usage errors need not wait for it.
    from lm_eval_proca.report.comparison import compare

    patterns = args.tasks.split(",")
    with tempfile.TemporaryDirectory() as folder:
        files, notices = _with_calibrated_rows(args.folders, ["*"] if args.groups else patterns, Path(folder))
        report = compare(files, patterns, notices, groups=args.groups)
    format_ = args.format or SUFFIXES.get(Path(args.output or "").suffix.lower(), "terminal")
    _write_tables(report, format_, args.output)
    if args.html is not None:
        from lm_eval_proca.report.page import render_page

        write_file(render_page(report), args.html)
        print(f"page written to {args.html}", file=sys.stderr)
    _say(report, shown=args.output is None and format_ in WITH_NOTICES)
    return SOMETHING_SKIPPED if report.damaged else 0


def _with_calibrated_rows(
    folders: Sequence[str], patterns: Sequence[str], made: Path
) -> tuple[list[Path], list[Notice]]:
    """Results files to compare: those that have sample logs and no calibrated rows are calibrated in `made`."""
    from lm_eval_proca.cli.calibrate_runs import progress
    from lm_eval_proca.experiments.finished_runs import read_document, why_unchanged
    from lm_eval_proca.report.results import Notice, matches

    found: list[Path] = []
    runs: list[CalibratedRun] = []
    files = result_files(folders)
    with progress(files) as done:
        for number, file in enumerate(files):
            try:
                document = read_document(file)
            except ResultsError:
                document = {"configs": {}}  # for the comparison to name
            possible = {
                task
                for task in document["configs"]
                if matches(task, patterns)
                and why_unchanged(document, task) is None
                and samples_file(file, task).is_file()
            }
            copy = made / str(number) / file.name
            found.append(copy if possible else file)
            runs += [_calibrated_copy(file, possible, copy, done)] if possible else []
    notices = [
        Notice("damaged" if one.damaged else "left out", f"{one.task} of {run.file} was skipped: {one.reason}.")
        for run in runs
        for one in run.skipped
    ]
    if calibrated := sum(len(run.calibrated) for run in runs):
        text = f"{calibrated} results were calibrated here, cross-fitted on the evaluation rows in their sample logs"
        notices.insert(0, Notice("calibrated", f"{text}; `lm-eval-proca calibrate --output DIR` keeps that."))
    return found, notices


def _calibrated_copy(file: Path, tasks: set[str], copy: Path, done: Callable[[], Any]) -> CalibratedRun:
    """A results file with calibrated rows of these tasks, and beside it what a comparison reads."""
    from lm_eval_proca.experiments.finished_runs import calibrate_run, write_answers, write_document
    from lm_eval_proca.fitting import calibrators_of_documents

    copy.parent.mkdir()
    run = calibrate_run(
        file,
        calibrators_of_documents(hidden_states=False),
        wanted=tasks.__contains__,
        keep=lambda task: write_answers(task, copy.parent / task.samples.name),
        done=done,
    )
    others = [samples_file(file, task) for task in run.document["configs"] if task not in tasks]
    for beside in (*others, file.parent / IDENTITY_FILE):
        if beside.is_file():
            (copy.parent / beside.name).symlink_to(beside.resolve())
    for one in run.skipped:
        del run.document["configs"][one.task]
    write_document(run.document, copy)
    return run


def _write_tables(report: Report, format_: str, output: str | None) -> None:
    renderer = importlib.import_module(FORMATS[format_])
    if output is not None:
        write_file(renderer.render(report), output)
        print(f"tables written to {output}", file=sys.stderr)
    elif format_ == "terminal" and sys.stdout.isatty():
        width = os.get_terminal_size(sys.stdout.fileno()).columns
        sys.stdout.write(renderer.render(report, width=width, color=True))
    else:
        sys.stdout.write(renderer.render(report))


def _say(report: Report, shown: bool) -> None:
    """Notices that standard output does not show; no failure without a word on stderr, but none said twice."""
    if not shown:
        for notice in report.notices:
            print(f"{notice.kind}: {notice.text}", file=sys.stderr)
    elif report.damaged and not sys.stdout.isatty():
        print("damaged files were left out; they are named below the tables", file=sys.stderr)
