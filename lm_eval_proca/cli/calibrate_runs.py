"""``lm-eval-proca calibrate`` for whole output folders of `lm_eval --log_samples`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.cli.wording import label_tables
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.runs.finished import BegunRun, CalibratedRun, FittedTask, begin_run, calibrated_in_order
from lm_eval_proca.runs.finished_together import begin_together, runs_together
from lm_eval_proca.runs.groups import NAMED, some_of
from lm_eval_proca.runs.output_folder import RESULT_FILE, record_of, result_files, samples_without_results
from lm_eval_proca.runs.processes import Submit
from lm_eval_proca.runs.writing import CannotWrite, check_folder, write_results, write_samples


def calibrate_folders(
    paths: Sequence[str],
    calibrators: Mapping[str, Calibrator],
    output: str | None,
    *,
    jobs: int,
    asked: bool = False,
    together: bool = False,
    bias: bool = False,
    note: Callable[[FittedTask], None] = lambda task: None,
) -> int:
    """Print lm-eval's table with calibrated rows for every results file; 1 if something was skipped.

    With `together`, for every set of files that are runs of the same tasks under other prompts. With `bias`, also what
    each method prefers, label by label. `note` is given each task once it is fitted.
    """
    files = result_files(paths)
    problems = [
        f"{path} was skipped: there is no results file of the same date beside it."
        for path in samples_without_results(path for path in paths if Path(path).is_dir())
    ]
    sets, alone = runs_together(files) if together else ([[file] for file in files], [])
    if not sets:
        raise ResultsError(f"There is nothing to put together. {' '.join(alone[:NAMED])}")
    problems += alone
    targets = {} if output is None else targets_of(paths, [first for first, *_ in sets], output)

    def begin(some: Sequence[Path], submit: Submit) -> BegunRun:
        keep = partial(write_samples, folder=targets[some[0]].parent) if targets else None
        options: dict[str, Any] = {"asked": asked, "keep": keep, "submit": submit}
        return begin_together(some, calibrators, **options) if together else begin_run(some[0], calibrators, **options)

    with progress(files) as bar:
        runs = calibrated_in_order((partial(begin, some) for some in sets), min(jobs, bar.total), bar.update, note)
        for (file, *_), run in zip(sets, runs, strict=True):
            try:
                if isinstance(run, ResultsError):
                    raise run
                if targets:
                    write_results(run, targets[file])
                _print(run, bias=bias)
                problems += [f"{one.task} of {file} was skipped: {one.reason}." for one in run.skipped]
            except ResultsError as error:
                problems.append(str(error))
                if isinstance(error, CannotWrite):
                    break
        else:
            if output is not None:
                print(f"results and samples written to {output}", file=sys.stderr)
    for problem in problems:
        print(f"lm-eval-proca calibrate: {problem}", file=sys.stderr)
    return 1 if problems else 0


def progress(files: Iterable[Path]) -> tqdm:
    """A bar over the sample logs of all results files, on a terminal only."""
    dates = [(file.parent, match["date"]) for file in files if (match := RESULT_FILE.fullmatch(file.name))]
    total = sum(1 for folder, date in dates for _ in folder.glob(f"samples_*_{date}.jsonl"))
    return tqdm(total=total, unit="tasks", desc="calibrating", disable=None)


def targets_of(paths: Sequence[str], files: Sequence[Path], output: str) -> dict[Path, Path]:
    """Where each results file is written: at its place below --output."""
    targets: dict[Path, Path] = {}
    for file in files:
        folder = next((Path(path) for path in paths if file.is_relative_to(path) and Path(path).is_dir()), file.parent)
        target = Path(output) / file.relative_to(folder)
        if target.resolve() == file.resolve() or target in targets.values():
            raise ResultsError(f"{file} would be written to {target}, where another result is; name another --output.")
        targets[file] = target
    check_folder(Path(output))
    return targets


def _print(run: CalibratedRun, *, bias: bool) -> None:
    from lm_eval.utils import make_table  # score tables, of the same command, need no lm-eval

    document = {"versions": {}, **run.document}
    files = "\n".join(map(str, [run.file, *run.others]))
    lines = [f"{document.get('model_name') or 'unknown model'}, {files}", make_table(document)]
    lines += [make_table(document, "groups")] if document.get("groups") else []
    lines += [f"note: {note}" for note in _notes(run)]
    if bias:
        lines.append("\n" + label_tables({task: record_of(document["configs"][task], task) for task in run.calibrated}))
    tqdm.write("\n".join(lines) + "\n")  # around the bar


def _notes(run: CalibratedRun) -> Iterator[str]:
    if run.calibrated:
        yield (
            f"{_count(run.calibrated)} calibrated, each on its own unlabeled evaluation rows, cross-fitted: every "
            f"document by a fit that has not seen it. recall_sd is the standard deviation of recall over the labels; a "
            f"group's is that of all its documents."
        )
    if run.others:
        yield (
            f"acc is that of the first of {len(run.others) + 1} prompts, acc_prompts their mean with an error over "
            f"prompts and documents, acc_sd their standard deviation, acc_together all of them as one."
        )
        yield from _doubts(run)
    for reason, tasks in run.unchanged.items():
        yield f"{_count(tasks)} unchanged ({some_of(tasks)}): {reason}."
    for reason, names in run.failures.items():
        calibrators = dict.fromkeys(name for of_task in names.values() for name in of_task)
        yield f"no row for {', '.join(calibrators)} of {some_of(list(names))}: {reason}"
    yield from run.notes


def _doubts(run: CalibratedRun) -> Iterator[str]:
    """What prompts say of each other; of many tasks, some of it."""
    records = {task: record_of(run.document["configs"][task], task) for task in run.calibrated}
    told = [
        f"{task}, {name}: {warning}"
        for task, record in records.items()
        for name, said in record.together.items()
        for warning in said["warnings"]
    ]
    yield from told[:NAMED]
    if (more := len(told) - NAMED) > 0:
        yield f"{more} more such warnings stand under metadata.proca.together of the tasks (--output)."


def _count(tasks: Sequence[str]) -> str:
    return f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"
