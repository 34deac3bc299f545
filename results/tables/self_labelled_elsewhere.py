"""Self-labelled demonstrations on another model, and without any data: one draw, three tasks each, run once."""

from __future__ import annotations

from collections.abc import Sequence

from lm_eval_proca.metrics import grouped
from results.markdown import TASKS, markdown, percent
from results.results_file import Row
from results.sweeps import SMOLLM2_ARGS, Sweep
from results.table import Measured, Table
from results.tables.self_labelled import METHODS, ONE, TOGETHER, ZERO, by_draw, rows_of
from results.tables.sizes import GEMMA_ARGS

COMMON = "--num_fewshot 6 --seeds 10 --limit 200 --metadata proca.estimate_size=200"
SWEEPS = {
    "Gemma 3 270M": f"lm-eval-proca sweep --demonstrations self --model_args {GEMMA_ARGS} "
    f"--tasks proca_sst2 proca_subj proca_trec {COMMON} --output_path .results/self",
    "SmolLM2-135M, no data at all": f"lm-eval-proca sweep --demonstrations self --estimate described --model_args "
    f"{SMOLLM2_ARGS} --tasks proca_sst2 proca_agnews proca_trec {COMMON} --output_path .results/nothing",
}
COLUMNS = (ZERO, ONE, TOGETHER)


def measure(sweeps: Sequence[Sweep]) -> Measured:
    return Measured(
        [
            {"what": sweep.model, **row}
            for sweep in sweeps
            for tables in by_draw(sweep.tables()).values()
            for row in rows_of(tables)
        ]
    )


def tasks(rows: Sequence[Row]) -> str:
    lines = []
    for (what, task), alike in grouped(rows, lambda row: (row["what"], row["task"])).items():
        by_method = {row["method"]: row for row in alike}
        numbers = [percent(by_method[method][column]) for method in METHODS for column in COLUMNS]
        lines.append([what, TASKS[task], *numbers, f"{by_method[METHODS[-1]]['kappa']:.2f}"])
    header = [f"`{method}`: {column}" for method in METHODS for column in COLUMNS]
    return markdown(["", "", *header, "kappa"], lines)


TABLE = Table(
    "self-labelled-elsewhere", [Sweep(command, what) for what, command in SWEEPS.items()], measure, {"tasks": tasks}
)
