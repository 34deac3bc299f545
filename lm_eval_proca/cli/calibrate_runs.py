"""``lm-eval-proca calibrate`` for whole output folders of `lm_eval --log_samples`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from tqdm import tqdm

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.runs.finished import CalibratedRun, calibrate_run
from lm_eval_proca.runs.groups import some_of
from lm_eval_proca.runs.output_folder import RESULT_FILE, result_files, samples_without_results
from lm_eval_proca.runs.writing import CannotWrite, check_folder, write_results, write_samples


def calibrate_folders(
    paths: Sequence[str], calibrators: Mapping[str, Calibrator], output: str | None, *, asked: bool = False
) -> int:
    """Print lm-eval's table with calibrated rows for every results file; 1 if something was skipped."""
    files = result_files(paths)
    targets = _targets(paths, files, output)
    problems = [
        f"{path} was skipped: there is no results file of the same date beside it."
        for path in samples_without_results(path for path in paths if Path(path).is_dir())
    ]
    with progress(files) as bar:
        for file in files:
            target = targets.get(file)
            keep = partial(write_samples, folder=target.parent) if target else lambda task: None
            try:
                run = calibrate_run(file, calibrators, asked=asked, keep=keep, done=bar.update)
                _print(run)
                if target:
                    write_results(run, target)
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


def _targets(paths: Sequence[str], files: Sequence[Path], output: str | None) -> dict[Path, Path]:
    """Where each results file is written: at its place below --output."""
    if output is None:
        return {}
    targets: dict[Path, Path] = {}
    for file in files:
        folder = next((Path(path) for path in paths if file.is_relative_to(path) and Path(path).is_dir()), file.parent)
        target = Path(output) / file.relative_to(folder)
        if target.resolve() == file.resolve() or target in targets.values():
            raise ResultsError(f"{file} would be written to {target}, where another result is; name another --output.")
        targets[file] = target
    check_folder(Path(output))
    return targets


def _print(run: CalibratedRun) -> None:
    from lm_eval.utils import make_table  # score tables, of the same command, need no lm-eval

    document = {"versions": {}, **run.document}
    lines = [f"{document.get('model_name') or 'unknown model'}, {run.file}", make_table(document)]
    lines += [make_table(document, "groups")] if document.get("groups") else []
    lines += [f"note: {note}" for note in _notes(run)]
    tqdm.write("\n".join(lines) + "\n")  # around the bar


def _notes(run: CalibratedRun) -> Iterator[str]:
    if run.calibrated:
        yield (
            f"{_count(run.calibrated)} calibrated, each on its own unlabeled evaluation rows, cross-fitted: every "
            f"document by a fit that has not seen it. recall_sd is the standard deviation of recall over the labels; a "
            f"group's is that of all its documents."
        )
    for reason, tasks in run.unchanged.items():
        yield f"{_count(tasks)} unchanged ({some_of(tasks)}): {reason}."
    for reason, names in run.failures.items():
        calibrators = dict.fromkeys(name for of_task in names.values() for name in of_task)
        yield f"no row for {', '.join(calibrators)} of {some_of(list(names))}: {reason}"
    yield from run.notes


def _count(tasks: Sequence[str]) -> str:
    return f"{len(tasks)} task{'' if len(tasks) == 1 else 's'}"
