"""``lm-eval-proca calibrate SWEEP --output DIR``: the cells of a sweep under other calibrators, and a leaderboard."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tqdm import tqdm

from lm_eval_proca.cli.calibrate_runs import targets_of
from lm_eval_proca.cli.wording import label_tables
from lm_eval_proca.compare.comparison import compare
from lm_eval_proca.compare.formats import terminal
from lm_eval_proca.errors import ProcaError, ResultsError
from lm_eval_proca.runs.finished import CalibratedRun
from lm_eval_proca.runs.output_folder import record_of, result_files
from lm_eval_proca.runs.recalibrated import CalibratorsOf, is_cell, recalibrate_cell
from lm_eval_proca.runs.writing import CannotWrite


def calibrate_sweep(paths: Sequence[str], calibrators_of: CalibratorsOf, output: str, *, bias: bool) -> int:
    """Write every cell below `output`, then print their leaderboard; 1 if a cell was skipped or no fit succeeded."""
    cells = [file for file in result_files(paths) if is_cell(file)]
    if not cells:
        raise ResultsError(
            f"{', '.join(paths)}: no results file has score tables beside it, as the cells of a sweep have; to write "
            f"numbers of score tables alone, let --output end in .json or .csv."
        )
    problems: list[str] = []
    calibrated = failed = False
    # Those that are there come first: where one of them is refused, nothing was written.
    targets = sorted(targets_of(paths, cells, output).items(), key=lambda pair: not pair[1].exists())
    for file, target in tqdm(targets, unit="cells", desc="calibrating", disable=None):
        try:
            run = recalibrate_cell(file, calibrators_of, target.parent)
            calibrated |= bool(run.calibrated)
            failed |= bool(run.failures)
            tqdm.write(_in_words(run, bias=bias))
        except CannotWrite:
            raise
        except ProcaError as error:  # the other cells go on
            problems.append(f"{file.parent} was skipped: {str(error).rstrip('.')}.")
    if calibrated:
        print(f"\n{terminal.render(compare([output]), only_leaderboards=True)}")
    print(f"{len(cells) - len(problems)} cells written to {output}, which `compare` takes", file=sys.stderr)
    for problem in problems:
        print(f"lm-eval-proca calibrate: {problem}", file=sys.stderr)
    return 1 if problems or (failed and not calibrated) else 0


def _in_words(run: CalibratedRun, *, bias: bool) -> str:
    """One line like those of `sweep`, and below it what is to be known of the fits."""
    (task,) = run.document["configs"]
    metrics = run.document["results"][task]
    accuracies = "  ".join(
        f"{key.partition(',')[2]} {value:.3f}" for key, value in metrics.items() if key.startswith("acc,")
    )
    lines = [f"{run.file.parent.name}: {accuracies}"]
    lines += [f"  no row for {', '.join(names[task])}: {why}" for why, names in run.failures.items() if task in names]
    lines += [f"  {one.reason}" for one in run.skipped]
    if bias:
        lines.append(label_tables({task: record_of(run.document["configs"][task], task)}))
    return "\n".join(lines)
