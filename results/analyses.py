"""The paper's analyses as tables: what `lm-eval-proca analyze` observes, in means, and the figure that it draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lm_eval_proca.calibration.registry import default_names
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.metrics import Observation, mean_by
from lm_eval_proca.paper import get_analysis
from lm_eval_proca.paper.analysis import Analysis
from lm_eval_proca.paper.display import short_name
from lm_eval_proca.paper.observations import usable
from lm_eval_proca.scores.fitting import make_calibrators
from results.results_file import Row
from results.sweeps import Runs
from results.table import Measured, Table, View

RowsOf = Callable[[Sequence[Observation]], Sequence[Row]]
OUR_NAMES = {"calibrator": "method", "num_fewshot": "shots"}
"""How results files call the columns of observations."""


def analysed(name: str, runs: Runs) -> Analysis:
    """An analysis of these runs, with the calibrators that the command has by default."""
    analysis = get_analysis(name)
    tables, reasons = usable(runs.tables(), analysis.requirements)
    if reasons:
        raise ResultsError(f"The analysis `{name}` cannot use all of its runs: {', '.join(reasons)}.")
    return analysis.from_tables(tables, make_calibrators(dict.fromkeys([*default_names(), *analysis.needs])))


def analysis_table(name: str, runs: Runs, rows_of: RowsOf, views: Mapping[str, View], figure: str) -> Table[Runs]:
    def measure(sources: Sequence[Runs]) -> Measured:
        [source] = sources
        found = analysed(name, source)
        return Measured(rows_of(found.observed), found.plot())

    return Table(name, [runs], measure, views, figure)


def means_by(*columns: str) -> RowsOf:
    """Mean accuracy, its spread and how many they are of, for all observations that agree in these columns."""

    def rows_of(observed: Sequence[Observation]) -> list[Row]:
        return [
            {OUR_NAMES.get(key, key): short_name(one) if key == "task" else one for key, one in mean.items()}
            for mean in mean_by(observed, *columns)
        ]

    return rows_of
