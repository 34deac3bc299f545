"""``lm-eval-proca analyze``: the paper's analyses, each a table and a figure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lm_eval_proca import distributed
from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import default_names
from lm_eval_proca.cli.options import (
    WholeNumbers,
    add_backend_options,
    add_param_option,
    calibrator_params,
    model_of,
    names,
    positive,
    quiet_logging,
    settings_of,
)
from lm_eval_proca.compare.formats.tabular import text_table, write_rows
from lm_eval_proca.distributed import is_first_process
from lm_eval_proca.errors import ProcaError, ResultsError, did_you_mean
from lm_eval_proca.paper import ANALYSES, get_analysis
from lm_eval_proca.paper.analysis import Analysis, MissingMatplotlib
from lm_eval_proca.paper.observations import runs_of, usable
from lm_eval_proca.runs.score_files import find_score_tables, read_run
from lm_eval_proca.scores.fitting import fit_all, in_words, make_calibrators
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.cell import Cell, cell_scores
from lm_eval_proca.sweep.runner import evaluate_cell, run_cells

ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, ANALYSES))
    parser.epilog = "analyses:\n" + "\n".join(f"  {name:{width}}  {what}" for name, what in ANALYSES.items())
    parser.epilog += f"\n  {ALL:{width}}  every one of them; runs that several of them need are made once"
    add = parser.add_argument
    add("name", metavar="NAME", type=_known_analysis, help="which analysis; see below")
    add(
        "files", nargs="*", metavar="FILE", help="score tables, or folders with score tables (of a sweep, for instance)"
    )
    add(
        "--output", required=True, metavar="DIR", help="gets NAME.csv and NAME.png, and in runs/ the runs made for them"
    )
    add("--calibrators", metavar="NAMES", help="e.g. bc,bc_prob,ucpa (default: those that a run has by default)")
    add_param_option(parser)

    runs = parser.add_argument_group("instead of FILE, runs with a model (start again after any interruption)")
    add_backend_options(runs, batch_size="auto")
    add = runs.add_argument
    add("--tasks", nargs="+", help="other tasks than the paper's: names, groups or patterns")
    add("--num_fewshot", nargs="+", action=WholeNumbers, metavar="N", help="other numbers of shots than the paper's")
    add("--seeds", nargs="+", action=WholeNumbers, metavar="S", help="other seeds (prompts) than 0 1 2 ...")
    add("--limit", type=positive, metavar="N", help="evaluate only N documents per run")


def _known_analysis(name: str) -> str:
    known = [*ANALYSES, ALL]
    if name not in known:
        sentence = f"there is no analysis {name}; they are {', '.join(known)}.{did_you_mean(name, known)}"
        raise argparse.ArgumentTypeError(sentence)
    return name


def run(args: argparse.Namespace) -> int:
    analyses = list(ANALYSES) if args.name == ALL else [args.name]
    if bool(args.files) == bool(args.model_args):
        raise ResultsError("Give either score tables (FILE ...) or a model to run (--model_args pretrained=NAME).")
    if args.name == ALL and (args.files or args.tasks or args.num_fewshot or args.seeds):
        raise ResultsError(
            f"`analyze {ALL}` makes the paper's runs; choose one analysis to give files, tasks, shots or seeds."
        )
    calibrators = _calibrators(analyses, args)
    failures: list[str] = []
    if args.files:
        tables_of = {args.name: [read_run(path) for path in find_score_tables(args.files)]}
    else:
        quiet_logging()
        distributed.join()
        try:
            tables_of, failures = tables_of_model({name: cells_of(name, args) for name in analyses}, args)
        except KeyboardInterrupt:
            print("\nInterrupted. Finished runs are kept; the same command goes on from here.", file=sys.stderr)
            return 130
    for name, tables in tables_of.items():
        try:
            if tables:
                _analyze(name, tables, calibrators, Path(args.output), asked=bool(args.calibrators))
        except ProcaError as error:  # the other analyses go on
            failures.append(str(error))
    for sentence in failures:
        print(f"lm-eval-proca analyze: {sentence}", file=sys.stderr)
    return 1 if failures else 0


def _calibrators(analyses: Sequence[str], args: argparse.Namespace) -> dict[str, Calibrator]:
    """Those that are named, or the default ones; and those that an analysis cannot do without."""
    chosen = names([args.calibrators]) if args.calibrators else default_names()
    needed = [name for analysis in analyses for name in get_analysis(analysis).needs]
    return make_calibrators(dict.fromkeys([*chosen, *needed]), calibrator_params(args.param))


def cells_of(name: str, args: argparse.Namespace) -> list[Cell]:
    """The paper's runs, changed as the options say."""
    plan = get_analysis(name).plan
    plan = replace(
        plan,
        tasks=names(args.tasks or plan.tasks),
        shots=tuple(args.num_fewshot or plan.shots),
        seeds=tuple(args.seeds or plan.seeds),
        settings=tuple({**dict(plan.settings), **dict(settings_of(args))}.items()),
    )
    return plan.cells(args.include_path, args.limit)


def runs_folder(args: argparse.Namespace) -> Path:
    return Path(args.output) / "runs"


def tables_of_model(
    cells: Mapping[str, Sequence[Cell]], args: argparse.Namespace
) -> tuple[dict[str, list[ScoreTable]], list[str]]:
    """Make the runs that are not finished yet; the tables of each analysis, and a sentence per run that failed."""
    model = model_of(args, args.model_args)
    folder = runs_folder(args)
    outcomes = run_cells([cell for some in cells.values() for cell in some], model, folder, evaluate=evaluate_cell)
    failed = {o.cell: f"{o.cell.name} failed: {o.failure.sentence} (log: {o.log})" for o in outcomes if o.failure}
    model.unload()
    if not is_first_process():  # the first one alone knows that the last run has got its final name
        return {}, []
    tables = {
        name: [table for cell in some if cell not in failed for table in cell_scores(folder, model, cell)]
        for name, some in cells.items()
    }
    return tables, list(failed.values())


def _analyze(
    name: str, tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator], output: Path, *, asked: bool
) -> None:
    """Write every observation, print the means, draw the figure."""
    analysis = get_analysis(name)
    fitting, reasons = usable(tables, analysis.requirements)
    runs, repeated = runs_of(fitting)
    reasons += repeated
    if not runs:
        raise ResultsError(f"The analysis `{name}` can use none of {len(tables)} score tables: {', '.join(reasons)}.")
    if reasons:
        skipped = len(tables) - len(runs)
        print(f"{name}: skipped {skipped} of {len(tables)} score tables: {', '.join(reasons)}", file=sys.stderr)
    print(f"{name}: calibrating {len(runs)} score tables, which may take minutes ...", file=sys.stderr)
    found = analysis.from_tables(runs, calibrators)
    print(f"{name}: {ANALYSES[name]}\n{text_table(found.summary())}")
    if further := found.further():
        print(f"\n{text_table(further)}")
    if found.note:
        print(f"note: {found.note}")
    for sentence in in_words(_without_row(found, runs, calibrators)) if asked else ():
        print(f"note: {sentence}")
    print(f"every observation: {write_rows(found.observed, output / f'{name}.csv')}")
    try:
        print(f"figure: {found.plot().save(output / f'{name}.png')}\n")
    except MissingMatplotlib as error:
        print(f"no figure: {error}", file=sys.stderr)


def _without_row(found: Analysis, runs: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> dict[str, str]:
    """Calibrators that no table could fit, and why the first could not; none where the analysis is not about them."""
    seen = {one.get("calibrator") for one in found.observed}
    missing = {} if seen == {None} else {name: one for name, one in calibrators.items() if name not in seen}
    return fit_all(runs[0], missing)[1]
