"""``lm-eval-proca compare``: many result folders in, one leaderboard out."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from lm_eval_proca.report.rows import write_file

HELP = "compare models and calibrators: the paper's table and a leaderboard from result folders"

FORMATS = {
    "terminal": "lm_eval_proca.report.formats.terminal",
    "markdown": "lm_eval_proca.report.formats.markdown",
    "csv": "lm_eval_proca.report.formats.spreadsheet",
    "latex": "lm_eval_proca.report.formats.latex",
    "json": "lm_eval_proca.report.formats.structured",
}
WITH_NOTICES = ("terminal", "markdown")
SOMETHING_SKIPPED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"Exit code {SOMETHING_SKIPPED}: the tables leave out damaged files, named on stderr."
    parser.add_argument(
        "folders", nargs="+", metavar="DIR", help="folders of `lm_eval --output_path` or of `lm-eval-proca sweep`"
    )
    parser.add_argument("--format", choices=FORMATS, default="terminal", help="of the tables (default: terminal)")
    parser.add_argument("--output", metavar="FILE", help="write the tables to FILE instead of standard output")
    parser.add_argument(
        "--html", metavar="FILE", help="also write one self-contained page to look at and click through"
    )
    parser.add_argument(
        "--tasks",
        metavar="NAMES",
        default="*",
        help="only these tasks, separated by commas; patterns such as 'proca_sst*' work",
    )


def run(args: argparse.Namespace) -> int:
    # SciPy takes a second to import; `--help` and usage errors need not wait for it.
    from lm_eval_proca.report.comparison import compare

    report = compare(args.folders, args.tasks.split(","))
    renderer = importlib.import_module(FORMATS[args.format])
    if args.format == "terminal" and args.output is None and sys.stdout.isatty():
        text = renderer.render(report, width=os.get_terminal_size(sys.stdout.fileno()).columns, color=True)
    else:
        text = renderer.render(report)
    if args.output is None:
        sys.stdout.write(text)
    else:
        write_file(text, args.output)
    if args.html is not None:
        from lm_eval_proca.report.page import render_page

        write_file(render_page(report), args.html)
        print(f"page written to {args.html}", file=sys.stderr)
    shown = args.output is None and args.format in WITH_NOTICES
    for notice in report.notices:
        if notice.kind == "damaged" or not shown:
            print(f"{notice.kind}: {notice.text}", file=sys.stderr)
    return SOMETHING_SKIPPED if report.damaged else 0
