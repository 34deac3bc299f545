"""Cells of a finished sweep, calibrated again from their score tables: hidden states are in these, not in the logs.

A cell is a folder with a results file, its sample log, identity.json and one score table for each prompt. The new cell
has the same files, with the rows of other calibrators in place of the calibrated ones that the run had.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.registry import CALIBRATORS, registered_name
from lm_eval_proca.errors import ResultsError, ScoreTableError
from lm_eval_proca.runs.finished import CalibratedRun, FittedTask, add_rows
from lm_eval_proca.runs.finished_together import add_rows_over_prompts
from lm_eval_proca.runs.output_folder import read_document, record_of, samples_file
from lm_eval_proca.runs.sample_logs import read_log
from lm_eval_proca.runs.writing import CannotWrite, write_results, write_samples
from lm_eval_proca.scores.fitting import recorded
from lm_eval_proca.scores.identity import IDENTITY_FILE
from lm_eval_proca.scores.prompt_sets import calibrate_together
from lm_eval_proca.scores.record import RunRecord
from lm_eval_proca.scores.score_table import ScoreTable

SCORES = "scores"

CalibratorsOf = Callable[[ScoreTable], Mapping[str, Calibrator]]


def is_cell(results: Path) -> bool:
    """Whether a results file is that of a cell: score tables lie beside it."""
    return any(results.parent.glob(f"{SCORES}/*.parquet"))


def recalibrate_cell(results: Path, calibrators_of: CalibratorsOf, target: Path) -> CalibratedRun:
    """Calibrate the cell of a results file again, and write it into the folder `target`."""
    document = read_document(results)
    tables = _tables(results, document)
    calibrators, name = calibrators_of(tables[0]), tables[0].record.task
    filters = _filters(calibrators)
    _refuse_other_filters(target / results.name, name, filters)
    together = calibrate_together(tables, calibrators)
    record = recorded(tables[0], together.fits[0], together.failures)
    several = len(tables) > 1
    record = replace(record, filters=filters, together=together.report if several else {})
    log = read_log(samples_file(results, name), document, name)
    before = _calibrated_before(record_of(document["configs"][name], name))
    prompts = together.methods if several else {}
    task = FittedTask(name, log, tables[0], together.fits[0], prompts, replaced=before)
    run = CalibratedRun(results, document)
    _forget(document, name, before)
    add_rows(run, task, record)
    if several:
        add_rows_over_prompts(run, task)
    document["configs"][name]["filter_list"] = [
        *(one for one in document["configs"][name].get("filter_list") or () if one.get("name") not in before),
        *({"name": filter_name, "filter": steps} for filter_name, steps in record.filters.items()),
    ]
    _link(results.parent, target)
    write_samples(task, target)
    write_results(run, target / results.name)
    return run


def _tables(results: Path, document: Mapping[str, Any]) -> list[ScoreTable]:
    """One for each prompt, if they are of the run that the results file is of."""
    folder = results.parent / SCORES
    tables = sorted(map(ScoreTable.load, folder.glob("*.parquet")), key=lambda table: table.record.prompt)
    first = tables[0].record
    if [table.record.prompt for table in tables] != list(range(first.prompts)):
        raise ScoreTableError(f"{folder} has {len(tables)} score tables of {first.prompts} prompts")
    if list(document["configs"]) != [first.task]:
        raise ResultsError(f"{results} is not about {first.task} alone, whose score table lies beside it")
    known = record_of(document["configs"][first.task], first.task)
    if (known.documents_hash, known.prompt_hash) != (first.documents_hash, first.prompt_hash):
        raise ResultsError(f"{results} and the score table beside it are not of one run")
    return tables


def _filters(calibrators: Mapping[str, Calibrator]) -> dict[str, Any]:
    """As the `filter_list` of a YAML would have them: parameters that are not the default stand there."""
    steps = {}
    for name, calibrator in calibrators.items():
        default = type(calibrator)().get_params()
        params = {key: value for key, value in calibrator.get_params().items() if value != default[key]}
        steps[name] = [{"function": registered_name(type(calibrator)), **params}]
    return steps


def _refuse_other_filters(there: Path, task: str, filters: Mapping[str, Any]) -> None:
    """A result that is there may be written again, but not be replaced by that of other calibrators."""
    if not there.exists():
        return
    before = record_of(read_document(there)["configs"].get(task, {}), task).filters
    if before != json.loads(json.dumps(filters)):  # as the file has them: lists for tuples
        raise CannotWrite(
            f"{there} was calibrated with other calibrators or parameters ({_in_words(before)}; now "
            f"{_in_words(filters)}) and is not replaced; name another --output, or ask for all of them in one command."
        )


def _in_words(filters: Mapping[str, Any]) -> str:
    """`bc, proca n_init=3`"""
    given = {
        name: [f" {key}={value}" for step in steps for key, value in step.items() if key != "function"]
        for name, steps in filters.items()
    }
    return ", ".join("".join([name, *params]) for name, params in given.items()) or "none"


def _calibrated_before(record: RunRecord) -> frozenset[str]:
    """The filters of the run that calibrated, whether their fits succeeded or not."""
    steps = {name: {step["function"] for step in steps} for name, steps in record.filters.items()}
    return frozenset(
        {name for name, functions in steps.items() if functions & set(CALIBRATORS)}
        | record.fits.keys()
        | record.not_calibrated.keys()
    )


def _forget(document: dict[str, Any], task: str, filters: frozenset[str]) -> None:
    """Take the rows of filters out of lm-eval's results."""
    metrics = document["results"][task]
    for key in [key for key in metrics if key.partition(",")[2] in filters]:
        del metrics[key]


def _link(cell: Path, target: Path) -> None:
    """Identity and score tables as they are; hidden states are large, so they get a second name where that works."""
    for file in [cell / IDENTITY_FILE, *(cell / SCORES).glob("*.parquet")]:
        place = target / file.relative_to(cell)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file.is_file() and not place.exists():
            try:
                os.link(file, place)
            except OSError:  # another file system
                shutil.copyfile(file, place)
