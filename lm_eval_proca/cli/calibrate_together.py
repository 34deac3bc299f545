"""``lm-eval-proca calibrate --together``: score tables or sample logs of several prompts, put together."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.cli.wording import Interval, folds_in_words, headline, number
from lm_eval_proca.compare.formats.tabular import check_rows_file, text_table, write_rows
from lm_eval_proca.errors import CalibrationError, ResultsError
from lm_eval_proca.metrics import mean
from lm_eval_proca.runs.processes import cores, processes
from lm_eval_proca.runs.score_files import find_score_tables, read_prompt
from lm_eval_proca.scores.fitting import in_words, role_to_fit
from lm_eval_proca.scores.prompt_sets import OnePrompt, PromptSet, Together, calibrate_together, sets_of
from lm_eval_proca.scores.score_table import NO_GOLD, ScoreTable

REASONS = 3
"""So many tables that are in no set are told one by one in an error."""

CalibratorsOf = Callable[[ScoreTable], Mapping[str, Calibrator]]


def calibrate_sets(args: argparse.Namespace, calibrators_of: CalibratorsOf) -> int:
    """One table for every set among the files; 1 if a file is in none, or has scores that are not finite."""
    check_rows_file(args.output)
    sets, reasons = sets_of([read_prompt(path) for path in find_score_tables(args.files)])
    if not sets:
        raise ResultsError(f"There is nothing to put together. {_some(reasons)}")
    chosen = [calibrators_of(one[0].table) for one in sets]
    if args.save is not None and (count := sum(map(len, chosen))) != 1:
        raise CalibrationError(
            f"--save keeps the ensemble of one calibrator, these would be {count}; name the files of one set and one "
            f"calibrator, e.g. --calibrators proca."
        )
    problems = list(reasons)
    with processes(min(args.jobs or cores(), len(sets))) as submit:
        begun = [
            submit(calibrate_together, [one.table for one in prompts], calibrators)
            for prompts, calibrators in zip(sets, chosen, strict=True)
        ]
        found: Iterable[Together] = (finish() for finish in begun)
        if args.output is not None:  # before anything is printed, which a pipe to `head` would end
            found = list(found)
            _write(
                [row for one, together in zip(sets, found, strict=True) for row in _rows(one, together)], args.output
            )
        for prompts, together in zip(sets, found, strict=True):
            _print(prompts, together, by_prompt=len(sets) == 1)
            problems += [
                f"{one.name} lacks calibrated rows. {reason}." for one in prompts if (reason := one.table.not_finite())
            ]
    if args.save is not None:
        _save(together, next(iter(chosen[0])), args.save)
    for problem in problems:
        print(f"lm-eval-proca calibrate: {problem}", file=sys.stderr)
    return 1 if problems else 0


def could_be_together(tables: Sequence[tuple[Any, ScoreTable]]) -> Iterator[str]:
    """A note for each set among tables that are calibrated one by one."""
    for one in sets_of([OnePrompt(str(path), table, table.record.prompt_hash) for path, table in tables])[0]:
        yield (
            f"{one[0].name} and {len(one) - 1} more are prompts of one task on the same documents; --together puts "
            f"them together."
        )


def _some(reasons: Sequence[str]) -> str:
    more = len(reasons) - REASONS
    return " ".join(reasons[:REASONS]) + (f" Likewise {more} more." if more > 0 else "")


def _print(prompts: PromptSet, together: Together, *, by_prompt: bool) -> None:
    first = prompts[0].table
    print(headline(first, f"{len(prompts)} prompts"))
    print(*_files(prompts), sep="\n")
    print(text_table([_printed(together, name) for name in together.methods]))
    for note in _notes(prompts, together):
        print(f"note: {note}")
    if by_prompt:
        print("\nEach prompt: accuracy, agreement with all prompts together, estimated accuracy")
        print(text_table([_of_prompt(together, k) for k in range(len(prompts))]))
    print()


def _files(prompts: PromptSet) -> list[str]:
    """The folder of all files, if they are in one, and the name of each."""
    paths = [Path(one.name) for one in prompts]
    folders = {path.parent for path in paths}
    shown = [path.name for path in paths] if len(folders) == 1 else list(map(str, paths))
    return [*(map(str, folders) if len(folders) == 1 else ()), *(f"{k}: {name}" for k, name in enumerate(shown))]


def _printed(together: Together, name: str) -> dict[str, Any]:
    prompts, said = together.methods[name], together.report[name]
    over = prompts.over_prompts(together.gold)
    shown: dict[str, Any] = {"mean over prompts": "", "sd": None, "worst": None, "together": ""}
    if over is not None:
        shown = {
            "mean over prompts": number(Interval(over.mean, over.low, over.high)),
            "sd": over.sd,
            "worst": over.worst,
            "together": number(prompts.measures_together(together.gold)["accuracy"]),
        }
    return {"calibrator": name, **shown, "agreement": mean(said["agreement"]), "kappa": said["kappa"]}


def _of_prompt(together: Together, k: int) -> dict[str, Any]:
    """One column per method, with three numbers."""
    cells = {}
    for name, said in together.report.items():
        of_each = [said[key] for key in ("accuracy", "agreement", "estimated_accuracy")]
        cells[name] = "  ".join(f"{column[k]:.3f}" for column in of_each if column is not None)
    return {"prompt": k, **cells}


def _notes(prompts: PromptSet, together: Together) -> Iterator[str]:
    folds = max((fit.folds for fits in together.fits for fit in fits.values()), default=1)
    yield from folds_in_words(folds)
    yield from in_words(together.failures)
    for name, said in together.report.items():
        yield from (f"{name}: {warning}" for warning in said["warnings"])
    if len({one.table.record.unlabeled_hash for one in prompts}) > 1:
        yield "each prompt is fitted on unlabeled rows of its own, which adds to the spread."
    if unlabeled := int((together.gold == NO_GOLD).sum()):
        yield f"{unlabeled} evaluation rows have no gold label; they are calibrated, but not measured."
    if prompts[0].table.record.labels_are_positions:
        yield "the choices differ from document to document, so what is calibrated is their position."


def _rows(prompts: PromptSet, together: Together) -> Iterator[dict[str, Any]]:
    """Everything that is known of a set, one row per method; lists are over prompts."""
    first = prompts[0].table
    for name, found in together.methods.items():
        over, fits = found.over_prompts(together.gold), [of_prompt.get(name) for of_prompt in together.fits]
        fit, said = fits[0], together.report[name]
        yield {
            "files": [one.name for one in prompts],
            **{key: getattr(first.record, key) for key in ("model", "task", "num_fewshot")},
            "seeds": [one.table.record.seed for one in prompts],
            "prompts": len(prompts),
            "eval_rows": int((first.role == "eval").sum()),
            "calibrator": name,
            "fitted_on": None if fit is None else role_to_fit(fit.calibrator, first),
            "folds": None if fit is None else fit.folds,
            "params": {} if fit is None else fit.calibrator.get_params(),
            "accuracy_prompts": over and over.mean,
            "accuracy_prompts_stderr": over and over.standard_error,
            "accuracy_prompts_low": over and over.low,
            "accuracy_prompts_high": over and over.high,
            "accuracy_sd": over and over.sd,
            "accuracy_worst": over and over.worst,
            **_measures_together(found.measures_together(together.gold)),
            **said,
            "fits": [one.calibrator.fit_report() for one in fits if one is not None] or None,
        }


def _measures_together(measures: Mapping[str, Interval]) -> dict[str, float | None]:
    return {
        f"{name}_together{suffix}": value
        for name, interval in measures.items()
        for suffix, value in zip(("", "_low", "_high"), interval, strict=True)
    }


def _write(rows: Sequence[dict[str, Any]], path: str) -> None:
    if path.endswith(".csv"):
        rows = [{key: value for key, value in row.items() if key != "fits"} for row in rows]
    print(f"numbers written to {write_rows(rows, path)}", file=sys.stderr)


def _save(together: Together, name: str, path: str) -> None:
    if name in together.failures:
        raise CalibrationError(f"Nothing was fitted, so {path} is not written; see the note above.")
    together.ensemble(name).save(path)
    print(f"ensemble of {len(together.tables)} prompts saved to {path}", file=sys.stderr)
