"""``lm-eval-proca analyze``: the paper's analyses, each a table and a figure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval_proca.cli.options import (
    add_backend_options,
    add_param_option,
    calibrator_params,
    key_values,
    names,
    positive,
    whole_number,
)
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.experiments.analyses import ANALYSES, NOTES

if TYPE_CHECKING:
    from lm_eval_proca.calibration.base import Calibrator
    from lm_eval_proca.experiments.analyses.plan import Plan
    from lm_eval_proca.experiments.cell import Cell
    from lm_eval_proca.report.display import Display
    from lm_eval_proca.score_table import ScoreTable

HELP = "the paper's analyses: a table and a figure from score tables, or from runs that it makes itself"
ALL = "all"

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, ANALYSES))
    parser.epilog = "analyses:\n" + "\n".join(f"  {name:{width}}  {what}" for name, what in ANALYSES.items())
    parser.epilog += f"\n  {ALL:{width}}  every one of them; runs that several of them need are made once"
    add = parser.add_argument
    add("name", metavar="NAME", choices=[*ANALYSES, ALL], help="which analysis; see below")
    add(
        "files", nargs="*", metavar="FILE", help="score tables, or folders with score tables (of a sweep, for instance)"
    )
    add(
        "--output", required=True, metavar="DIR", help="gets NAME.csv and NAME.png, and in runs/ the runs made for them"
    )
    add_param_option(parser)

    runs = parser.add_argument_group("instead of FILE, runs with a model (start again after any interruption)")
    add_backend_options(runs, batch_size="auto")
    add = runs.add_argument
    add("--model_args", nargs="+", metavar="KEY=VALUE", help="as for lm_eval, e.g. pretrained=NAME,dtype=float16")
    add("--tasks", nargs="+", help="other tasks than the paper's")
    add("--num_fewshot", nargs="+", type=whole_number, metavar="N", help="other numbers of shots than the paper's")
    add("--seeds", nargs="+", type=whole_number, metavar="S", help="other seeds (prompts) than 0 1 2 ...")
    add("--limit", type=positive, metavar="N", help="evaluate only N documents per run")


def run(args: argparse.Namespace) -> int:
    analyses = list(ANALYSES) if args.name == ALL else [args.name]
    if bool(args.files) == bool(args.model_args):
        raise ResultsError("Give either score tables (FILE ...) or a model to run (--model_args pretrained=NAME).")
    if args.name == ALL and (args.files or args.tasks or args.num_fewshot or args.seeds):
        raise ResultsError(
            f"`analyze {ALL}` makes the paper's runs; choose one analysis to give files, tasks, shots or seeds."
        )
    calibrators = _calibrators(args.param)
    if args.files:
        _analyze(args.name, _tables_of_files(args.files), calibrators, Path(args.output))
        return 0

    from lm_eval.utils import setup_logging

    from lm_eval_proca.experiments import ranks

    setup_logging("ERROR")  # LMEVAL_LOG_LEVEL, if set, wins: the progress would be buried
    ranks.join()
    plans = {name: _plan(name, args) for name in analyses}
    try:
        tables, failures = _tables_of_model(plans, args)
    except KeyboardInterrupt:
        print("\nInterrupted. Finished runs are kept; the same command goes on from here.", file=sys.stderr)
        return 130
    for sentence in failures:
        print(f"lm-eval-proca analyze: {sentence}", file=sys.stderr)
    for name, of_analysis in tables.items():
        if of_analysis:
            _analyze(name, of_analysis, calibrators, Path(args.output))
    return 1 if failures else 0


def _calibrators(params: Sequence[str]) -> dict[str, Calibrator]:
    from lm_eval_proca.calibration.registry import CALIBRATORS
    from lm_eval_proca.experiments.calibrate import make_calibrators

    return make_calibrators(CALIBRATORS, calibrator_params(params))


def _tables_of_files(files: Sequence[str]) -> list[ScoreTable]:
    from lm_eval_proca.experiments.score_files import find_score_tables, read_run

    return [read_run(path) for path in find_score_tables(files)]


def _plan(name: str, args: argparse.Namespace) -> Plan:
    """The paper's runs, changed as the options say."""
    from lm_eval_proca.experiments.analyses.plan import PAPER
    from lm_eval_proca.experiments.cell import settings_from_metadata

    settings = settings_from_metadata(key_values(args.metadata, "--metadata"))
    changed: dict[str, Any] = {"settings": tuple({**dict(PAPER[name].settings), **dict(settings)}.items())}
    if args.tasks:
        changed["tasks"] = tuple(names(args.tasks))
    if args.num_fewshot:
        changed["shots"] = tuple(args.num_fewshot)
    if args.seeds:
        changed["seeds"] = tuple(args.seeds)
    return replace(PAPER[name], **changed)


def _tables_of_model(
    plans: Mapping[str, Plan], args: argparse.Namespace
) -> tuple[dict[str, list[ScoreTable]], list[str]]:
    """Make the runs that are not finished yet; the tables of each analysis, and a sentence per run that failed."""
    from lm_eval_proca.experiments.cell import Model, cell_scores
    from lm_eval_proca.experiments.runner import run_cells
    from lm_eval_proca.harness.gather import is_first_process

    model = Model(
        args.model, key_values(args.model_args, "--model_args"), batch_size=args.batch_size, device=args.device
    )
    folder = Path(args.output) / "runs"
    cells = {name: plan.cells(args.limit) for name, plan in plans.items()}
    outcomes = run_cells([cell for some in cells.values() for cell in some], model, folder)
    failed = {outcome.cell: outcome for outcome in outcomes if outcome.failure is not None}
    model.unload()
    if not is_first_process():  # the first one alone knows that the last run has got its final name
        return {}, []
    tables = {
        name: [_with_settings(cell_scores(folder, model, cell), cell) for cell in some if cell not in failed]
        for name, some in cells.items()
    }
    return tables, [
        f"{cell.name} failed: {o.failure.sentence} (log: {o.log})" for cell, o in failed.items() if o.failure
    ]


def _with_settings(table: ScoreTable, cell: Cell) -> ScoreTable:
    return replace(table, metadata={**dict(cell.settings), **table.metadata})


def _analyze(name: str, tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator], output: Path) -> None:
    """Write every measurement, print the means, draw the figure."""
    from lm_eval_proca.report.display import MissingMatplotlib
    from lm_eval_proca.report.tabular import text_table, write_rows

    analysis = _analyses()[name]
    print(f"{name}: calibrating {len(tables)} score tables, which may take minutes ...", file=sys.stderr)
    rows = analysis.measure(tables, calibrators)
    print(f"{name}: {ANALYSES[name]}\n{text_table(analysis.printed(rows))}")
    if name in NOTES:
        print(f"note: {NOTES[name]}")
    print(f"every measurement: {write_rows(rows, output / f'{name}.csv')}")
    try:
        print(f"figure: {analysis.display(tables, rows).plot().save(output / f'{name}.png')}\n")
    except MissingMatplotlib as error:
        print(f"no figure: {error}", file=sys.stderr)


@dataclass(frozen=True)
class _Analysis:
    measure: Callable[[Sequence[ScoreTable], Mapping[str, Calibrator]], list[Row]]
    printed: Callable[[list[Row]], list[Row]]
    display: Callable[[Sequence[ScoreTable], list[Row]], Display]


def _analyses() -> dict[str, _Analysis]:
    from lm_eval_proca.experiments.analyses import ablation, boundary, estimate_set, prompts
    from lm_eval_proca.experiments.analyses.measurements import mean_by, only
    from lm_eval_proca.report import figures

    prompt = ("model", "task", "num_fewshot")
    return {
        "boundaries": _Analysis(
            boundary.compare_boundaries,
            only(*prompt, "seed", "calibrator", "boundaries", "accuracy"),
            lambda tables, rows: figures.BoundaryDisplay.from_rows(rows, boundary.score_clouds(tables)),
        ),
        "thresholds": _Analysis(
            boundary.accuracy_over_thresholds,
            only(*prompt, "seed", "conventional_accuracy", "proca_accuracy", "best_accuracy", "best_threshold"),
            lambda tables, rows: figures.ThresholdDisplay.from_rows(rows),
        ),
        "templates": _Analysis(
            prompts.templates,
            mean_by(*prompt, "calibrator"),
            lambda tables, rows: figures.TemplateDisplay.from_rows(rows),
        ),
        "imbalance": _Analysis(
            estimate_set.imbalance,
            mean_by(*prompt, "estimate_size", "positives", "calibrator"),
            lambda tables, rows: figures.ImbalanceDisplay.from_rows(rows),
        ),
        "proportions": _Analysis(
            prompts.proportions,
            mean_by(*prompt, "positives", "calibrator"),
            lambda tables, rows: figures.ProportionDisplay.from_rows(rows),
        ),
        "selection": _Analysis(
            ablation.selection,
            mean_by(*prompt, "selection"),
            lambda tables, rows: figures.AblationDisplay.from_rows(rows, "selection"),
        ),
        "size": _Analysis(
            estimate_set.size,
            mean_by(*prompt, "estimate_size", "calibrator"),
            lambda tables, rows: figures.SizeDisplay.from_rows(rows),
        ),
        "formats": _Analysis(
            ablation.formats,
            mean_by(*prompt, "features"),
            lambda tables, rows: figures.AblationDisplay.from_rows(rows, "features"),
        ),
    }
