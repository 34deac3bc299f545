"""``lm-eval-proca generate``: let the model write the unlabeled inputs that calibration needs."""

from __future__ import annotations

import argparse
import sys

from lm_eval_proca.cli.options import add_backend_options, model_of, positive, quiet_logging, settings_of, whole_number
from lm_eval_proca.sweep.cell import Cell
from lm_eval_proca.sweep.generation import Generation, default_per_class, generate
from lm_eval_proca.sweep.runner import load_task
from lm_eval_proca.sweep.task_files import find_single_task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # Rows that are sampled together share random numbers: the batch size decides what is written.
    add_backend_options(parser, batch_size=64, required=True)
    add = parser.add_argument
    add("--task", required=True, help="the calibrated task to write inputs for, e.g. proca_sst2")
    add("--size", type=positive, metavar="N", help="inputs wanted (default: the task's own estimate size)")
    add("--seed", type=whole_number, default=0, help="of the demonstrations and of sampling (default: %(default)s)")
    examples = "labeled examples per class (default: 2; 1 from ten labels on); 0: label words alone, no data"
    add("--per_class", type=whole_number, metavar="N", help=examples)
    add("--temperature", type=float, default=1.0, help="of sampling (default: %(default)s)")
    add("--max_generations", type=positive, metavar="N", help="stop after so many generations (default: 4 x size)")
    add("--output", required=True, metavar="FILE", help="JSON Lines file, for --metadata proca.estimate_file=FILE")


def run(args: argparse.Namespace) -> int:
    quiet_logging()
    name, file = find_single_task(args.task, args.include_path)
    task = load_task(Cell(name, file, 0, args.seed, settings=settings_of(args)), {})
    size = args.size or task.settings.estimate_size
    usual = default_per_class(len(task.labels))
    wanted = Generation(
        size=size,
        seed=args.seed,
        per_class=usual if args.per_class is None else args.per_class,
        temperature=args.temperature,
        max_generations=args.max_generations or 4 * size,
    )
    try:
        done = generate(task, model_of(args, args.model_args), wanted, args.output)
    except KeyboardInterrupt:
        print("\nInterrupted. What was written is kept; the same command goes on from here.", file=sys.stderr)
        return 130
    print(summary(done, args.output))
    return 0 if done["rows"] == size else 1


def summary(done: dict, output: str) -> str:
    """One sentence on what was kept and why the rest was not."""
    counts, total = done["counts"], done["generations"]
    dropped = ", ".join(f"{count} {reason}" for reason, count in counts.items() if reason != "kept" and count)
    sentence = (
        f"{done['rows']} inputs for {done['task']} in {output}: {counts['kept']} of {total} generations were usable "
        f"({counts['kept'] / total:.0%}){f', dropped were {dropped}' if dropped else ''}."
    )
    if done["rows"] < done["size"]:
        sentence += f" {done['size']} were wanted: raise --max_generations, or use what there is."
    return sentence
