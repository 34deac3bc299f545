"""``lm-eval-proca sweep``: a grid of lm-eval runs that can be stopped at any moment and started again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import datasets

from lm_eval_proca import distributed
from lm_eval_proca.cli.options import (
    WholeNumbers,
    add_backend_options,
    model_of,
    names,
    positive,
    quiet_logging,
    settings_of,
)
from lm_eval_proca.distributed import is_first_process
from lm_eval_proca.errors import ModelError, TaskError
from lm_eval_proca.metrics import grouped
from lm_eval_proca.sweep import claims
from lm_eval_proca.sweep.cell import (
    DESCRIBED,
    ESTIMATES,
    GENERATED,
    SPLIT,
    Cell,
    Model,
    earlier_runs,
    unfinished_cells,
)
from lm_eval_proca.sweep.grid import Grid, Prompts, estimate_cost, render_prompts, token_counter
from lm_eval_proca.sweep.runner import KEPT, Failure, Outcome, run_cells
from lm_eval_proca.sweep.self_labelled import evaluate, passes

PAPER_SHOTS = (0, 1, 4, 8)
PAPER_SEEDS = (0, 1, 2, 3, 4)
PAPER_TASKS = ("proca",)  # the group of the nine
SELF = "self"
WHERE_FROM = (
    "where unlabeled inputs come from: the train split, or the model itself, which has seen labeled examples "
    f"({GENERATED}: ProCa-g) or label words alone ({DESCRIBED})"
)
Tokens = dict[Cell, float]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    once_per_model = "as for lm_eval, e.g. pretrained=NAME,dtype=float16; give the option once per model"
    add_backend_options(parser, batch_size="auto", action="append", required=True, help=once_per_model)
    add = parser.add_argument
    add("--tasks", nargs="+", default=PAPER_TASKS, help="tasks, groups or patterns (default: the paper's nine)")
    add("--num_fewshot", nargs="+", action=WholeNumbers, default=PAPER_SHOTS, metavar="N", help="default: 0 1 4 8")
    add("--seeds", nargs="+", action=WholeNumbers, default=PAPER_SEEDS, metavar="S", help="default: 0 1 2 3 4")
    add("--limit", type=positive, metavar="N", help="evaluate only N documents per task")
    add(
        "--estimate",
        choices=ESTIMATES,
        default=SPLIT,
        help=WHERE_FROM,
    )
    add(
        "--demonstrations",
        choices=["split", SELF],
        default="split",
        help="who labels the demonstrations: the few-shot split, or the model itself in a first pass at 0 shots "
        f"({SELF}: no label is needed)",
    )
    what = "gets one folder per model and in it one per cell"
    add("--output_path", required=True, type=Path, metavar="DIR", help=what)
    add("--dry-run", action="store_true", help="print the plan with an estimate of tokens and who runs what, and stop")


def run(args: argparse.Namespace) -> int:
    quiet_logging()
    datasets.disable_progress_bars()
    distributed.join()
    self_labelled = args.demonstrations == SELF
    if self_labelled and min(args.num_fewshot) < 1:
        raise TaskError(f"--demonstrations {SELF} needs --num_fewshot 1 or more, the demonstrations of each prompt.")
    grid = Grid(names(args.tasks), args.num_fewshot, args.seeds, settings_of(args), args.estimate, self_labelled)
    last, models = grid.cells(args.include_path, args.limit), _models(args)
    cells = [cell for some in passes(last) for cell in some]
    work = _print_plan(cells, models, args) if is_first_process() else {}
    if args.dry_run:
        return 0
    outcomes: list[Outcome] = []
    try:
        for model in models:
            for some in passes(last):
                outcomes += run_cells(some, model, args.output_path, evaluate=evaluate, work=work.get(model.name))
            model.unload()
    except KeyboardInterrupt:
        print(f"\nInterrupted. {KEPT}", file=sys.stderr)
        return 130
    failed = [outcome for outcome in outcomes if outcome.failure is not None]
    if is_first_process():
        _print_end(outcomes, failed, args.output_path)
    return 1 if failed else 0


def _models(args: argparse.Namespace) -> list[Model]:
    models = [model_of(args, given) for given in args.model_args]
    identities = [model.identity for model in models]
    twice = next((model.name for model in models if identities.count(model.identity) > 1), None)
    if twice is not None:
        raise ModelError(f"The model {twice} is given twice; leave one --model_args out.")
    return models


def _print_plan(cells: Sequence[Cell], models: Sequence[Model], args: argparse.Namespace) -> dict[str, Tokens]:
    """Say what is finished and what is to do; give the tokens of each cell, by the name of the model."""
    todo = {model.name: unfinished_cells(cells, model, args.output_path) for model in models}
    total, left = len(cells) * len(models), sum(map(len, todo.values()))
    print(
        f"models {len(models)} x tasks {len({cell.task for cell in cells})} x shots {len(set(args.num_fewshot))} x "
        f"seeds {len(set(args.seeds))} = {total} cells in {args.output_path}: {total - left} finished, {left} to do"
    )
    for model in models if args.dry_run else ():  # a real run says it itself
        for sentence in earlier_runs(todo[model.name], model, args.output_path):
            print(sentence)
    prompts = render_prompts(list(dict.fromkeys(cell for some in todo.values() for cell in some)))
    work = {}
    for model in models:
        work[model.name] = _print_model(model, cells, todo[model.name], prompts)
        for worker in claims.holders(args.output_path / model.name).values():
            print(f"  running: {worker or 'a worker that has just begun'}")
    return work


def _print_model(
    model: Model, cells: Sequence[Cell], todo: Sequence[Cell], prompts: Mapping[Cell, Prompts | Failure]
) -> Tokens:
    print(f"\n{model.name}")
    if not todo:
        print("  nothing to do")
        return {}
    count, counted_with = token_counter(model)
    rendered = {cell: prompts[cell] for cell in todo}
    costs = {cell: estimate_cost(found, count) for cell, found in rendered.items() if isinstance(found, Prompts)}
    problems = dict.fromkeys(found.sentence for found in rendered.values() if isinstance(found, Failure))
    width = max(len(cell.task) for cell in cells)
    print(f"  {'task':{width}}  shots  finished  to do   documents    requests        tokens   prefix once")
    for (task, shots), row in groupby(cells, key=lambda cell: (cell.task, cell.num_fewshot)):
        row_cells = list(row)
        left = set(row_cells) & set(todo)
        line = f"  {task:{width}}  {shots:5}  {len(row_cells) - len(left):8}  {len(left):5}"
        if left and left <= set(costs):
            documents, requests, tokens, prefix_once = map(sum, zip(*(costs[cell] for cell in left), strict=True))
            line += f"  {documents:10,}  {requests:10,}  {tokens:12,}  {prefix_once:12,}"
        print(line)
    print(
        f"  to do: about {sum(cost.tokens for cost in costs.values()):,} tokens, "
        f"{sum(cost.tokens_prefix_once for cost in costs.values()):,} if what all prompts of a cell begin with is read "
        f"once, as the shared-prefix models do\n  (counted on a few prompts per line with {counted_with})"
    )
    for sentence in problems:
        print(f"  not counted: {sentence}")
    reads_once = model.model.endswith("-shared-prefix")
    return {cell: float(cost.tokens_prefix_once if reads_once else cost.tokens) for cell, cost in costs.items()}


def _print_end(outcomes: Sequence[Outcome], failed: Sequence[Outcome], output_path: Path) -> None:
    print(f"\n{len(outcomes) - len(failed)} of {len(outcomes)} cells are finished in {output_path}", end="")
    print(f", {len(failed)} failed:" if failed else ".")
    for sentence, alike in grouped(failed, lambda outcome: outcome.failure and outcome.failure.sentence).items():
        print(f"  {sentence}")
        examples = ", ".join(outcome.cell.name for outcome in alike[:3])
        print(f"    {examples}{f' and {len(alike) - 3} more' if len(alike) > 3 else ''}; log: {alike[0].log}")
