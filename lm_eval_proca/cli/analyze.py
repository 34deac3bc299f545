"""``lm-eval-proca analyze``: the paper's analyses, each a table and a figure."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lm_eval.utils import setup_logging

from lm_eval_proca import distributed
from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS
from lm_eval_proca.cli.options import (
    add_backend_options,
    add_param_option,
    calibrator_params,
    model_of,
    names,
    positive,
    settings_of,
    whole_number,
)
from lm_eval_proca.compare.formats.tabular import text_table, write_rows
from lm_eval_proca.distributed import is_first_process
from lm_eval_proca.errors import ProcaError, ResultsError
from lm_eval_proca.metrics import Observation, mean_by
from lm_eval_proca.paper import ANALYSES, NOTES, ablation, boundary, estimate_set, figures, prompts, prototypes
from lm_eval_proca.paper import observations as need
from lm_eval_proca.paper.display import Display, MissingMatplotlib
from lm_eval_proca.paper.observations import Requirement, only, usable
from lm_eval_proca.paper.plan import PAPER, Plan
from lm_eval_proca.runs.score_files import find_score_tables, read_run
from lm_eval_proca.scores.fitting import make_calibrators
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.cell import cell_scores
from lm_eval_proca.sweep.runner import run_cells
from lm_eval_proca.sweep.task_files import find_task_files

ALL = "all"


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
    add("--tasks", nargs="+", help="other tasks than the paper's: names, groups or patterns")
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
    calibrators = make_calibrators(CALIBRATORS, calibrator_params(args.param))
    if args.files:
        tables = [read_run(path) for path in find_score_tables(args.files)]
        _analyze(args.name, tables, calibrators, Path(args.output))
        return 0

    setup_logging("ERROR")  # LMEVAL_LOG_LEVEL, if set, wins: the progress would be buried
    distributed.join()
    plans = {name: _plan(name, args) for name in analyses}
    try:
        tables_of, failures = _tables_of_model(plans, args)
    except KeyboardInterrupt:
        print("\nInterrupted. Finished runs are kept; the same command goes on from here.", file=sys.stderr)
        return 130
    for name, tables in tables_of.items():
        try:
            if tables:
                _analyze(name, tables, calibrators, Path(args.output))
        except ProcaError as error:  # the other analyses go on
            failures.append(str(error))
    for sentence in failures:
        print(f"lm-eval-proca analyze: {sentence}", file=sys.stderr)
    return 1 if failures else 0


def _plan(name: str, args: argparse.Namespace) -> Plan:
    """The paper's runs, changed as the options say."""
    settings = {**dict(PAPER[name].settings), **dict(settings_of(args))}
    changed: dict[str, Any] = {"settings": tuple(settings.items())}
    if args.tasks:
        changed["tasks"] = tuple(find_task_files(names(args.tasks), args.include_path))
    if args.num_fewshot:
        changed["shots"] = tuple(args.num_fewshot)
    if args.seeds:
        changed["seeds"] = tuple(args.seeds)
    return replace(PAPER[name], **changed)


def _tables_of_model(
    plans: Mapping[str, Plan], args: argparse.Namespace
) -> tuple[dict[str, list[ScoreTable]], list[str]]:
    """Make the runs that are not finished yet; the tables of each analysis, and a sentence per run that failed."""
    model = model_of(args, args.model_args)
    folder = Path(args.output) / "runs"
    task_files = find_task_files([task for plan in plans.values() for task in plan.tasks], args.include_path)
    cells = {
        name: [replace(cell, file=task_files[cell.task]) for cell in plan.cells(args.limit)]
        for name, plan in plans.items()
    }
    outcomes = run_cells([cell for some in cells.values() for cell in some], model, folder)
    failed = {outcome.cell: outcome for outcome in outcomes if outcome.failure is not None}
    model.unload()
    if not is_first_process():  # the first one alone knows that the last run has got its final name
        return {}, []
    tables = {
        name: [cell_scores(folder, model, cell) for cell in some if cell not in failed] for name, some in cells.items()
    }
    return tables, [
        f"{cell.name} failed: {o.failure.sentence} (log: {o.log})" for cell, o in failed.items() if o.failure
    ]


def _analyze(name: str, tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator], output: Path) -> None:
    """Write every observation, print the means, draw the figure."""
    analysis = _analyses()[name]
    fitting, reasons = usable(tables, analysis.requirements)
    if not fitting:
        raise ResultsError(f"The analysis `{name}` can use none of {len(tables)} score tables: {', '.join(reasons)}.")
    if reasons:
        skipped = len(tables) - len(fitting)
        print(f"{name}: skipped {skipped} of {len(tables)} score tables: {', '.join(reasons)}", file=sys.stderr)
    print(f"{name}: calibrating {len(fitting)} score tables, which may take minutes ...", file=sys.stderr)
    observed = analysis.observe(fitting, calibrators)
    print(f"{name}: {ANALYSES[name]}\n{text_table(analysis.printed(observed))}")
    if name in NOTES:
        print(f"note: {NOTES[name]}")
    print(f"every observation: {write_rows(observed, output / f'{name}.csv')}")
    also = [] if analysis.also_drawn is None else [analysis.also_drawn(fitting)]
    try:
        print(f"figure: {analysis.display(observed, *also).plot().save(output / f'{name}.png')}\n")
    except MissingMatplotlib as error:
        print(f"no figure: {error}", file=sys.stderr)


@dataclass(frozen=True)
class _Analysis:
    observe: Callable[[Sequence[ScoreTable], Mapping[str, Calibrator]], list[Observation]]
    printed: Callable[[Sequence[Observation]], list[Observation]]
    display: Callable[..., Display]
    requirements: Sequence[Requirement] = ()
    also_drawn: Callable[[Sequence[ScoreTable]], list[Observation]] | None = None


def _analyses() -> dict[str, _Analysis]:
    prompt = ("model", "task", "num_fewshot")
    boundaries = only(*prompt, "seed", "calibrator", "boundaries", "accuracy")
    thresholds = only(*prompt, "seed", "conventional_accuracy", "proca_accuracy", "best_accuracy", "best_threshold")
    by_method = mean_by(*prompt, "calibrator")
    by_balance = mean_by(*prompt, "estimate_size", "positives", "calibrator")
    by_proportion = mean_by(*prompt, "positives", "calibrator")
    by_size = mean_by(*prompt, "estimate_size", "calibrator")
    two, labeled = need.two_labels, [need.labeled_estimate_set, estimate_set.enough_of_both_labels]
    selection, formats = (partial(figures.AblationDisplay, parameter=name) for name in ("selection", "features"))
    return {
        "boundaries": _Analysis(
            boundary.compare_boundaries, boundaries, figures.BoundaryDisplay, [two], boundary.score_clouds
        ),
        "thresholds": _Analysis(boundary.accuracy_over_thresholds, thresholds, figures.ThresholdDisplay, [two]),
        "templates": _Analysis(prompts.templates, by_method, figures.TemplateDisplay),
        "imbalance": _Analysis(estimate_set.imbalance, by_balance, figures.ImbalanceDisplay, [two, *labeled]),
        "proportions": _Analysis(
            prompts.proportions, by_proportion, figures.ProportionDisplay, [two, need.chosen_demonstrations]
        ),
        "selection": _Analysis(ablation.selection, mean_by(*prompt, "selection"), selection),
        "size": _Analysis(estimate_set.size, by_size, figures.SizeDisplay, [need.estimate_set]),
        "formats": _Analysis(ablation.formats, mean_by(*prompt, "features"), formats),
        "prototypes": _Analysis(
            prototypes.prototypes,
            prototypes.by_task,
            figures.SpaceDisplay,
            [need.labeled_estimate_set, prototypes.several_labels, prototypes.hidden_states],
            prototypes.clouds,
        ),
    }
