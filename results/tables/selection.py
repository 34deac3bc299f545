"""Which restart of ProCa is kept (Table 3): AGNews and DBPedia, 0 and 4 shots, three seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lm_eval_proca.paper.display import distinct
from results.analyses import analysis_table, means_by
from results.markdown import TASKS, markdown, mean_and_sd
from results.nine import part_of_nine
from results.results_file import Row

NAMES = {"likelihood": "highest likelihood", "assignment": "highest assignment score"}
PAPER = {
    ("agnews", 0): {"likelihood": "64.0 ±1.1", "assignment": "64.6 ±1.4"},
    ("agnews", 4): {"likelihood": "60.1 ±11.1", "assignment": "67.4 ±13.5"},
    ("dbpedia", 0): {"likelihood": "63.8 ±7.5", "assignment": "73.6 ±3.0"},
    ("dbpedia", 4): {"likelihood": "76.1 ±5.5", "assignment": "87.2 ±4.9"},
}
"""GPT-2-XL."""


def accuracies(rows: Sequence[Row]) -> str:
    """Mean ± sd over seeds; then what the paper has."""
    found = [PAPER[setting] for setting in settings_of(rows)]
    paper = [[f"*{words}, GPT-2-XL (paper)*", *(one[key] for one in found)] for key, words in NAMES.items()]
    return by_setting(rows, "selection", NAMES, paper)


def by_setting(rows: Sequence[Row], parameter: str, names: Mapping[str, str], others: Sequence[Sequence[str]]) -> str:
    """A line for each value of a parameter, a column for each task and number of shots; then other lines."""
    settings = settings_of(rows)
    lines = [
        [words, *(mean_and_sd(rows, task=task, shots=shots, **{parameter: key}) for task, shots in settings)]
        for key, words in names.items()
    ]
    return markdown(["", *(f"{TASKS[task]}, {shots} shots" for task, shots in settings)], [*lines, *others])


def settings_of(rows: Sequence[Row]) -> list[tuple[str, int]]:
    return distinct((row["task"], row["shots"]) for row in rows)


TABLE = analysis_table(
    "selection",
    part_of_nine("proca_agnews proca_dbpedia"),
    means_by("task", "num_fewshot", "selection"),
    {"accuracies": accuracies},
    figure="Accuracy of ProCa when the restart is chosen by likelihood or by assignment score",
)
