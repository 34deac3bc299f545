"""``lm-eval-proca self-label``: one task, one model and no label; the model labels its own demonstrations."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets

from lm_eval_proca import distributed
from lm_eval_proca.cli.options import add_backend_options, model_of, positive, quiet_logging, settings_of, whole_number
from lm_eval_proca.cli.sweep import WHERE_FROM
from lm_eval_proca.compare.formats.tabular import text_table
from lm_eval_proca.distributed import is_first_process
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.metrics import mean
from lm_eval_proca.sweep.cell import ESTIMATES, SPLIT, Cell, cell_folder
from lm_eval_proca.sweep.runner import KEPT, run_cells
from lm_eval_proca.sweep.self_labelled import PROMPTS, evaluate, passes, prompts_of
from lm_eval_proca.sweep.task_files import find_single_task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_backend_options(parser, batch_size="auto", required=True)
    add = parser.add_argument
    add("--task", required=True, help="a calibrated task, e.g. proca_sst2")
    add("--num_fewshot", type=positive, default=6, metavar="N", help="demonstrations of a prompt (default: 6)")
    add("--seed", type=whole_number, default=0, help="draws rows and demonstrations (default: %(default)s)")
    add("--limit", type=positive, metavar="N", help="evaluate only N documents")
    add("--estimate", choices=ESTIMATES, default=SPLIT, help=WHERE_FROM)
    what = f"gets both passes, as cells of a sweep; {PROMPTS} prompts, unless --metadata proca.prompts says otherwise"
    add("--output_path", required=True, type=Path, metavar="DIR", help=what)


def run(args: argparse.Namespace) -> int:
    quiet_logging()
    datasets.disable_progress_bars()
    distributed.join()
    name, file = find_single_task(args.task, args.include_path)
    cell = Cell(name, file, args.num_fewshot, args.seed, args.limit, settings_of(args), args.estimate, True)
    prompts_of(cell)  # what is wrong is told before the model is loaded
    model = model_of(args, args.model_args)
    try:
        for some in passes([cell]):
            (outcome,) = run_cells(some, model, args.output_path, evaluate=evaluate)
            if outcome.failure is not None:
                raise ResultsError(f"{outcome.cell.name}: {outcome.failure.sentence} Log: {outcome.log}")
    except KeyboardInterrupt:
        print(f"\nInterrupted. {KEPT}", file=sys.stderr)
        return 130
    if is_first_process():
        folder = cell_folder(args.output_path, model, cell)
        (results,) = folder.glob("results_*.json")
        print("\n".join(summary(json.loads(results.read_text(encoding="utf-8")), name)))
        print(f"demonstrations: {folder / 'demonstrations.jsonl'}")
    return 0


def summary(results: Mapping[str, Any], task: str) -> Iterator[str]:
    """A row per method: without demonstrations, with those of one prompt, and all prompts together."""
    metrics, together = results["results"][task], results["configs"][task]["metadata"]["proca"]["together"]
    rows = [
        {
            "row": name,
            "0 shots": _percent(said["accuracy"][:1]),
            "one self-labelled prompt": _percent(said["accuracy"][1:]),
            "all together": _percent([metrics[f"acc_together,{name}"]]),
        }
        for name, said in together.items()
        if said["accuracy"] is not None
    ]
    yield f"{task}: accuracy in per cent; no label was used to get it." if rows else f"{task}: no row has a gold label."
    if rows:
        yield text_table(rows)
    for name, said in together.items():
        yield from (f"{name}: {warning}" for warning in said["warnings"])


def _percent(accuracies: Sequence[float]) -> str:
    return f"{100 * mean(accuracies):.1f}"
