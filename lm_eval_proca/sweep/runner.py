"""Runs cells of one model, one after the other, so that finished work is never lost and never repeated.

A cell is written into a hidden folder, flushed to the disk and then renamed: a folder with a cell's name is a whole
cell, whenever and however the process died. Many workers may share the cells: each runs those that it can claim, and
waits for those of the others, so that it can take them over.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple
from unittest.mock import patch

from lm_eval import evaluator, simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.loggers.utils import add_env_info, get_git_commit_hash
from lm_eval.tasks import TaskManager
from tqdm import tqdm

from lm_eval_proca.distributed import Ranks, compute_once, is_first_process
from lm_eval_proca.errors import ProcaError, ResultsError, TaskError
from lm_eval_proca.harness.task import CalibratedTask
from lm_eval_proca.scores.identity import IDENTITY_FILE
from lm_eval_proca.scores.redaction import public
from lm_eval_proca.sweep import claims
from lm_eval_proca.sweep.cell import Cell, Model, cell_folder, earlier_runs, is_finished, key_of, unfinished_cells
from lm_eval_proca.sweep.claims import Claim, Worker

UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
"""Errors of a disk that every further cell would meet too, after it was scored."""
OCCUPIED = frozenset({errno.ENOTEMPTY, errno.EEXIST})
KEPT = "Finished cells are kept; the same command goes on from here."

Evaluate = Callable[[Cell, Model, Path], Mapping[str, float]]
"""Fills a folder with a cell's result and score table; gives the accuracy per filter for the progress line."""


@dataclass(frozen=True)
class Failure:
    """Why a cell has no result."""

    sentence: str
    traceback: str = field(repr=False)
    of_disk: bool = False
    """Whether its files could not be written, so that no further cell is tried."""

    @classmethod
    def of(cls, error: Exception) -> Failure:
        told = "".join(traceback.format_exception(error))
        if isinstance(error, OSError) and error.errno in UNWRITABLE:
            return cls(str(error.strerror), told, of_disk=True)
        text = str(error).strip() or "no message"
        sentence = text if isinstance(error, ProcaError) else f"{type(error).__name__}: {text.splitlines()[0]}"
        return cls(sentence, told)


@dataclass(frozen=True)
class Outcome:
    """What became of a cell: finished (now or before), or failed for a reason that `log` tells in full."""

    cell: Cell
    failure: Failure | None = None
    log: Path | None = None
    seconds: float = 0.0
    accuracy: Mapping[str, float] = field(default_factory=dict)


class Claimed(NamedTuple):
    """A cell that this worker has claimed, and where it is kept once it is finished."""

    cell: Cell
    claim: Claim
    folder: Path


@dataclass(frozen=True)
class Step:
    """What a worker finds when it looks for a cell to run."""

    finished: list[Cell] = field(default_factory=list)
    others: list[Worker | None] = field(default_factory=list)
    """Who has the cells that are neither finished nor free."""
    claimed: Claimed | None = None
    """The first that was free."""


def run_cells(
    cells: Sequence[Cell],
    model: Model,
    output_dir: Path,
    *,
    evaluate: Evaluate,
    work: Mapping[Cell, float] | None = None,
) -> list[Outcome]:
    """Run the cells that are not finished yet, on every process; an outcome for each, in the order given.

    Cells that other workers run are waited for. `work` is the tokens of each cell, for the time left: a cell that is
    not in it counts as the mean, and without it all are alike.
    """
    ranks = Ranks()
    cells = list(dict.fromkeys(cells))
    outcomes = {cell: Outcome(cell) for cell in cells}
    todo = compute_once(lambda: _start(cells, model, output_dir))
    if todo:
        for sentence in earlier_runs(todo, model, output_dir) if is_first_process() else ():
            print(sentence, file=sys.stderr)
        no_model = ranks.agree(_failure_of(model.load))
        with Progress(todo, work) as progress:
            if no_model is None:
                outcomes |= _share(todo, model, output_dir, evaluate, ranks, progress)
            for cell in todo if no_model else ():
                outcomes[cell] = _logged(Outcome(cell, no_model), cell_folder(output_dir, model, cell))
                progress.tell(cell, _line(outcomes[cell]))
    return list(outcomes.values())


def _start(cells: Sequence[Cell], model: Model, output_dir: Path) -> list[Cell]:
    """Say what is to do; if anything is, sweep away what dead workers left half-written."""
    todo = unfinished_cells(cells, model, output_dir)
    home = output_dir / model.name
    try:
        if todo:
            home.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=home).close()  # a disk that takes no files is told before the model is loaded
            claims.sweep_leftovers(home)
    except OSError as error:
        raise ResultsError(f"Cannot write to {home} ({error.strerror}); choose another --output_path.") from error
    return todo


def _share(
    todo: Sequence[Cell], model: Model, output_dir: Path, evaluate: Evaluate, ranks: Ranks, progress: Progress
) -> dict[Cell, Outcome]:
    """Run every cell that no other worker has, until all are finished or have failed.

    A cell that failed elsewhere is tried here too, since a host may be at fault and not the cell; but here only once.
    """
    left, outcomes = list(todo), dict[Cell, Outcome]()
    while left:
        step = compute_once(lambda: _next_step(left, outcomes.keys(), model, output_dir))
        for cell in step.finished:
            left.remove(cell)
            outcomes[cell] = Outcome(cell)
            progress.tell(cell, f"{cell.name}: finished by another worker")
        if step.claimed is None and not step.finished:  # what is left has failed here, and nobody else has it
            break
        if step.claimed is None:
            continue
        cell, claim, folder = step.claimed
        progress.begin(cell)
        with claims.kept(claim) if is_first_process() else nullcontext():
            outcome = _run_cell(step.claimed, model, evaluate, ranks)
            if outcome is None:
                continue
            outcomes[cell] = _logged(outcome, folder)
        progress.tell(cell, _line(outcome))
        if outcome.failure is None:
            left.remove(cell)
    return outcomes


def _next_step(left: Sequence[Cell], tried: Collection[Cell], model: Model, output_dir: Path) -> Step:
    """Claim the first cell that is free; while others have all of them, wait."""
    told = False
    while True:
        try:
            step = _look(left, tried, model, output_dir)
        except OSError as error:
            place = output_dir / model.name
            raise ResultsError(f"No cell can be claimed in {place} ({error.strerror}). {KEPT}") from error
        if step.finished or step.claimed or not step.others:
            return step
        if not told:
            known = "; ".join(str(worker) for worker in step.others if worker is not None)
            tqdm.write(f"waiting for cells that other workers run ({known})", file=sys.stderr)
        told = True
        time.sleep(claims.POLL_SECONDS)


def _look(left: Sequence[Cell], tried: Collection[Cell], model: Model, output_dir: Path) -> Step:
    home, step = output_dir / model.name, Step()
    living = claims.holders(home)
    for cell in left:
        folder = cell_folder(output_dir, model, cell)
        key = key_of(folder)
        if is_finished(folder):
            step.finished.append(cell)
        elif key in living:
            step.others.append(living[key])
        elif cell not in tried:
            claim = claims.take(home, key, cell.name)
            if claim is None:
                step.others.append(None)
            elif is_finished(cell_folder(output_dir, model, cell)):  # since we looked
                step.finished.append(cell)
                claims.release(claim)
            else:
                return replace(step, claimed=Claimed(cell, claim, folder))
    return step


def _run_cell(claimed: Claimed, model: Model, evaluate: Evaluate, ranks: Ranks) -> Outcome | None:
    """What became of a cell; None if another worker has taken it over, since this one seemed dead."""
    begin, (cell, claim, finished) = time.monotonic(), claimed
    unfinished = claim.folder(finished)
    accuracy: dict[str, float] = {}

    def make_room() -> None:
        if finished.exists():
            raise ResultsError(f"{finished} is there but holds no finished cell; move it away and start again.")
        unfinished.mkdir()
        identity = json.dumps(cell.identity(model), indent=1, ensure_ascii=False)
        (unfinished / IDENTITY_FILE).write_text(identity + "\n", encoding="utf-8")

    def attempt() -> None:
        compute_once(make_room)
        accuracy.update(evaluate(cell, model, unfinished))

    try:
        failure = ranks.agree(_failure_of(attempt))
        if failure is None:
            failure = ranks.agree(_failure_of(lambda: _finish(unfinished, finished)) if is_first_process() else None)
    finally:
        if is_first_process():
            shutil.rmtree(unfinished, ignore_errors=True)
    if failure is not None and not compute_once(claim.is_held):
        return None
    return Outcome(cell, failure, seconds=time.monotonic() - begin, accuracy=accuracy)


def _failure_of(step: Callable[[], Any]) -> Failure | None:
    try:
        step()
    except Exception as error:  # whatever a task, a dataset or a model may raise: the other cells go on
        return Failure.of(error)
    return None


def _finish(unfinished: Path, finished: Path) -> None:
    """Make a filled folder a finished cell, in a way that survives the loss of power."""
    if not is_finished(unfinished):
        raise ResultsError(f"{finished.name} ran, but left no result and score table.")
    for folder, _, files in os.walk(unfinished):
        for name in files:
            _flush(Path(folder, name))
        _flush(Path(folder))
    try:
        unfinished.rename(finished)
    except OSError as error:
        if error.errno not in OCCUPIED or not is_finished(finished):
            raise
        return  # by the worker that took this cell over: the first result stays, this one goes
    _flush(finished.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _logged(outcome: Outcome, folder: Path) -> Outcome:
    """Keep the traceback of a failure in a file beside the cells; a success takes an earlier one away."""
    log, failure = folder.with_name(f"{folder.name}.failed.log"), outcome.failure

    def keep() -> None:
        try:
            if failure is None or is_finished(folder):
                log.unlink(missing_ok=True)
            else:
                log.write_text(failure.traceback, encoding="utf-8")
        except OSError as error:
            raise ResultsError(f"Cannot write to {folder.parent} ({error.strerror}). {KEPT}") from error

    if failure is not None and failure.of_disk:
        raise ResultsError(f"{outcome.cell.name} cannot be written to {folder.parent} ({failure.sentence}). {KEPT}")
    compute_once(keep)
    return outcome if failure is None else replace(outcome, log=log)


class Progress:
    """A bar over all cells that were to do, on the first process, and a line for each that is settled."""

    def __init__(self, todo: Sequence[Cell], work: Mapping[Cell, float] | None) -> None:
        typical = mean(work.values()) if work else 1.0
        self.weights = {cell: (work or {}).get(cell, typical) for cell in todo}
        self.untold = set(todo)
        unit = "tokens" if work else "cells"
        amount = f"{{n_fmt}}/{{total_fmt}} {unit}"
        layout = f"{{desc}} {{percentage:3.0f}}%|{{bar:20}}| {amount}, {{elapsed}} gone, {{remaining}} left"
        total, shown = sum(self.weights.values()), is_first_process()
        # smoothing=0: cells differ so much that only the average over all of them tells the time left.
        self.bar = tqdm(total=total, bar_format=layout, unit_scale=bool(work), smoothing=0, disable=not shown)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *error: object) -> None:
        self.bar.close()

    def begin(self, cell: Cell) -> None:
        number = len(self.weights) - len(self.untold) + 1
        self.bar.set_description(
            f"{number} of {len(self.weights)}: {cell.task} {cell.num_fewshot}-shot seed {cell.seed}"
        )

    def tell(self, cell: Cell, line: str) -> None:
        """Count a cell once, also if it fails here and another worker finishes it later."""
        if cell in self.untold:
            self.untold.remove(cell)
            self.bar.update(self.weights[cell])
        if not self.bar.disable:
            self.bar.write(line)


def _line(outcome: Outcome) -> str:
    if outcome.failure is not None:
        return f"{outcome.cell.name}: FAILED: {outcome.failure.sentence}"
    accuracy = "  ".join(f"{name} {value:.3f}" for name, value in outcome.accuracy.items())
    return f"{outcome.cell.name}: {accuracy}  ({outcome.seconds:.0f} s)"


# ------------------------------------------------------------------ the ordinary cell


def load_task(cell: Cell, metadata: Mapping[str, Any]) -> CalibratedTask:
    settings = {f"proca.{key}": value for key, value in cell.settings}
    if cell.generated:  # a task whose estimate set is yet to be written needs no split to draw it from
        settings.setdefault("proca.estimate_file", "generated")
    task = cell.file.load({**metadata, **settings})
    if not isinstance(task, CalibratedTask):
        raise TaskError(
            f"{cell.task} is not a calibrated task and gives no score table; add `class: !function "
            f"lm_eval_proca.CalibratedTask` and a `calibration:` block to a copy of {cell.file.path.name}."
        )
    return task


def evaluate_cell(cell: Cell, model: Model, folder: Path) -> dict[str, float]:
    """What `lm_eval --output_path … --log_samples --seed …` would do; the first process writes into `folder`."""
    args = public(model.model_args)
    task = load_task(cell, {**args, "proca.scores_dir": str(folder / "scores")})
    tracker = EvaluationTracker(output_path=str(folder / "results.json"))
    seeds = ("random_seed", "numpy_random_seed", "torch_random_seed", "fewshot_random_seed")
    with patch.multiple(evaluator, **_environment()):
        results = simple_evaluate(
            model=model.load(),
            model_args=args,
            tasks=[task],
            task_manager=TaskManager(include_defaults=False),
            num_fewshot=cell.num_fewshot,
            limit=cell.limit,
            batch_size=model.batch_size,
            device=model.device,
            **dict.fromkeys(seeds, cell.seed),
            log_samples=True,
            fewshot_as_multiturn=None,  # this and the next as lm_eval's command line hands them over by default
            gen_kwargs={},
            evaluation_tracker=tracker,
        )
    if results is None or not is_first_process():
        return {}
    # lm-eval was given a loaded model and does not know its name.
    results["config"]["model"] = tracker.general_config_tracker.model_source = model.model
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for name in results["configs"]:
        tracker.save_results_samples(task_name=name, samples=samples[name])
    tables = results["configs"][cell.task]["metadata"]["proca"]["prompts"]
    _check_written(folder, len(samples[cell.task]), tables)
    metrics = results["results"][cell.task]
    return {key.removeprefix("acc,"): value for key, value in metrics.items() if key.startswith("acc,")}


@cache
def _environment() -> dict[str, Any]:
    """lm-eval asks pip, git and the driver in every run what the environment is: seconds per cell, for one answer."""
    info: dict[str, Any] = {}
    add_env_info(info)
    commit = get_git_commit_hash()
    return {"add_env_info": lambda to: to.update(info), "get_git_commit_hash": lambda: commit}


def _check_written(folder: Path, samples: int, tables: int) -> None:
    """lm-eval only logs that it could not write a file: look at what is there."""
    try:
        (result,) = folder.glob("results_*.json")
        json.loads(result.read_text(encoding="utf-8"))
        (logged,) = folder.glob("samples_*.jsonl")
        with open(logged, encoding="utf-8") as lines:
            complete = sum(line.endswith("}\n") for line in lines) == samples
        complete = complete and len(list(folder.glob("scores/*.parquet"))) == tables
    except ValueError:
        complete = False
    if not complete:
        raise OSError(errno.ENOSPC, "its files are not complete; is the disk full or read-only?")
