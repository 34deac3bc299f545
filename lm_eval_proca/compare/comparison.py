"""Everything that result folders say together, ready to be drawn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lm_eval_proca.compare.blocks import Block, blocks_of, method_order
from lm_eval_proca.compare.columns import Dataset, Measurement, measurements_of
from lm_eval_proca.compare.leaderboard import Comparison, Leaderboard, Standing, Tally, leaderboard
from lm_eval_proca.compare.preferences import Preference, preferences_of
from lm_eval_proca.compare.results import Notice, Run, read_results, short_model_names
from lm_eval_proca.errors import ProcaError, ResultsError
from lm_eval_proca.metrics import grouped
from lm_eval_proca.runs.answers import Correct, joined, read_correct

NAMED_FITS = 3
"""So many doubtful fits of a method are named in a notice; the results files have all."""


@dataclass(frozen=True)
class Report:
    """The tables of all models, one leaderboard per number of shots, and what the reader must know."""

    blocks: Sequence[Block]
    leaderboards: Sequence[Leaderboard]
    notices: Sequence[Notice]
    full_names: Mapping[str, str]
    preferences: Sequence[Preference] = ()

    @property
    def models(self) -> list[str]:
        return sorted(self.full_names)

    @property
    def methods(self) -> list[str]:
        return sorted({method for block in self.blocks for method in block.methods}, key=method_order)

    @property
    def shots(self) -> list[int]:
        return [board.shots for board in self.leaderboards]

    @property
    def damaged(self) -> bool:
        return any(notice.kind == "damaged" for notice in self.notices)

    def blocks_of(self, model: str) -> list[Block]:
        return [block for block in self.blocks if block.model == model]

    def datasets_of(self, model: str) -> list[Dataset]:
        """Columns of one model's table."""
        return sorted({dataset for block in self.blocks_of(model) for dataset in block.datasets})


@dataclass(frozen=True)
class Calibrated:
    """What was calibrated for a comparison alone: results files as they would be written, and their logged answers."""

    documents: dict[Path, dict[str, Any]] = field(default_factory=dict)
    answers: dict[Path, Correct] = field(default_factory=dict)
    """By the sample logs that they stand in place of."""
    notices: list[Notice] = field(default_factory=list)


def compare(
    folders: Iterable[str | Path],
    tasks: Iterable[str] = ("*",),
    calibrated: Calibrated | None = None,
    *,
    groups: bool = False,
) -> Report:
    """Read result folders and work out everything the tables show."""
    known = calibrated or Calibrated()
    try:
        results = read_results(folders, tasks, groups=groups, documents=known.documents)
    except ResultsError as error:  # what was skipped may be what was wanted
        raise ResultsError(" ".join([str(error), *(notice.text for notice in known.notices)])) from error
    short = short_model_names(run.model for run in results.runs)
    runs = [replace(run, model=short[run.model]) for run in results.runs]
    measurements, about_columns = measurements_of(runs)
    blocks, about_gaps = blocks_of(measurements)
    answers = _Answers(known.answers)
    boards = [
        leaderboard([block for block in blocks if block.shots == shots], answers)
        for shots in sorted({block.shots for block in blocks})
    ]
    about_fits = list(_about_fits(measurements))
    notices = [*known.notices, *results.notices, *answers.notices(), *about_columns, *about_gaps, *about_fits]
    names = {name: full for full, name in short.items()}
    preferences = preferences_of(measurements)
    preferences.sort(key=lambda one: (one.tasks, one.labels, one.shots, one.model, method_order(one.method)))
    return Report(blocks, boards, notices, names, preferences)


def _about_fits(measurements: Iterable[Measurement]) -> Iterator[Notice]:
    """What fits said against themselves: a sentence per method, with its first few cases."""
    of_method = grouped(measurements, lambda one: one.method)
    for method in sorted(of_method, key=method_order):
        warned = [one for one in of_method[method] if one.filter_name in one.run.warnings]
        cases = [
            f"{one.run.model} on {one.run.task}, {one.run.shots} shots, seed {one.run.seed}: "
            f"{' '.join(one.run.warnings[one.filter_name])}"
            for one in warned[:NAMED_FITS]
        ]
        if warned:
            more = f" And {len(warned) - NAMED_FITS} more." if len(warned) > NAMED_FITS else ""
            text = f"{method} warns of {len(warned)} of {len(of_method[method])} fits. {' '.join(cases)}{more}"
            yield Notice("fit", text)


class _Answers:
    """The logged documents of measurements, each log read once, and what could not be read."""

    def __init__(self, known: Mapping[Path, Correct]) -> None:
        self._known = known
        self._read: dict[tuple[Path, ...], Correct | None] = {}
        self._damaged: dict[Path, str] = {}
        self._not_logged: dict[Path, None] = {}

    def __call__(self, measurement: Measurement) -> Correct | None:
        run = measurement.run
        files = tuple(run.samples_files)
        if files not in self._read:
            self._read[files] = self._joined(run, files)
        return self._read[files]

    def _joined(self, run: Run, files: Sequence[Path]) -> Correct | None:
        found = [self._of_file(file) for file in files]
        if any(one is None for one in found):
            return None
        correct = joined([one for one in found if one is not None])
        for name, accuracy in run.accuracy.items():
            logged = correct.by_filter.get(name)
            if logged is None or abs(logged.mean() - accuracy) > 1e-6:
                # The average of a group need not weigh its tasks by size; a test over documents would not be its test.
                if not run.members:
                    text = f"{files[0]} does not give the accuracies of {run.file}; its paired tests are left out."
                    self._damaged[files[0]] = text
                return None
        return correct

    def _of_file(self, file: Path) -> Correct | None:
        if file in self._known:
            return self._known[file]
        if not file.is_file():
            self._not_logged[file] = None
            return None
        try:
            return read_correct(file)
        except ProcaError as error:
            self._damaged[file] = f"{str(error).rstrip('.')}; its paired tests are left out."
            return None

    def notices(self) -> list[Notice]:
        notices = [Notice("damaged", text) for text in self._damaged.values()]
        if self._not_logged:
            some = ", ".join(str(file.parent) for file in list(self._not_logged)[:3])
            more = f" and {len(self._not_logged) - 3} more" if len(self._not_logged) > 3 else ""
            notices.append(
                Notice(
                    "no test",
                    f"Documents of {len(self._not_logged)} results are not logged, so their paired tests are left out "
                    f"(run lm_eval with --log_samples): {some}{more}.",
                )
            )
        return notices


def as_dict(report: Report) -> dict[str, Any]:
    """The report as plain data: `--format json`, and what the page draws. Accuracies are fractions, as in lm-eval."""
    return {
        "format": "lm-eval-proca compare 1",
        "models": [{"name": model, "full_name": report.full_names[model]} for model in report.models],
        "methods": report.methods,
        "accuracies": [one for block in report.blocks for one in _accuracies(block)],
        "leaderboards": [
            {
                "shots": board.shots,
                "datasets": [dataset.name for dataset in board.datasets],
                "standings": [_standing(one) for one in board.standings],
                "order_changes": [
                    {"method": one.method, "raw_order": one.raw_order, "order": one.order, "kendall_tau": one.tau}
                    for one in board.order_changes
                ],
            }
            for board in report.leaderboards
        ],
        "preferences": [
            {**asdict(one), "predicted_minus_gold": one.predicted_minus_gold} for one in report.preferences
        ],
        "notices": [notice._asdict() for notice in report.notices],
    }


def _accuracies(block: Block) -> Iterable[dict[str, Any]]:
    for dataset in block.datasets:
        best = block.best(dataset)
        for method in block.methods:
            found = block.accuracies.get((method, dataset))
            yield {
                "model": block.model,
                "shots": block.shots,
                "method": method,
                "dataset": dataset.name,
                "task": dataset.task,
                "in_average": dataset in block.averaged,
                "mean": found and found.mean,
                "sd": found and found.sd,
                "by_seed": found and {str(seed): value for seed, value in found.values.items()},
                "fewer_seeds": bool(found and found.fewer_seeds),
                "best": method in best,
            }


def _standing(one: Standing) -> dict[str, Any]:
    return {
        "model": one.model,
        "method": one.method,
        "rank": one.rank,
        "model_rank": one.model_rank,
        "average": one.average.mean,
        "datasets": one.average.present,
        "of": one.average.expected,
        "fewer_seeds": one.average.fewer_seeds,
        "gain": one.gain,
        "against_raw": _tally(one.raw_tally, _tests(one.against_raw)),
        "against_models": _tally(one.model_tally, {other: _tests(some) for other, some in one.against_models.items()}),
    }


def _tally(tally: Tally | None, tests: Any) -> dict[str, Any]:
    return {} if tally is None else {**vars(tally), "tests": tests}


def _tests(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    return [
        {
            "dataset": one.dataset.name,
            "difference": one.difference,
            "p_holm": one.p_holm,
            **(one.test._asdict() if one.test else {}),
        }
        for one in comparisons
    ]
