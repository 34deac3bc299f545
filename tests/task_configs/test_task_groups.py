"""The groups: their members, and averages over tasks, not over documents, one row per filter."""

from __future__ import annotations

import lm_eval
import pytest
from lm_eval.tasks import TaskManager
from lm_eval.utils import make_table

NINE = ["sst2", "sst5", "mr", "subj", "ap", "agnews", "dbpedia", "rte", "trec"]
MEMBERS = {
    "proca": [f"proca_{name}" for name in NINE],
    "proca_sst2_templates": [f"proca_sst2_template{number}" for number in range(1, 10)],
}
FILTERS = ["bc", "conca", "none", "proca"]


def test_lm_eval_lists_exactly_these_tasks(task_configs):
    manager = TaskManager(include_path=str(task_configs), include_defaults=False)
    assert sorted(manager.all_subtasks) == sorted([*MEMBERS["proca"], *MEMBERS["proca_sst2_templates"], "proca_demo"])
    assert manager.all_groups == sorted(MEMBERS)
    assert manager.all_tags == []


@pytest.mark.parametrize("group", MEMBERS)
def test_group_averages_tasks_equally_for_every_filter(group, task_configs, real_data):
    """A fraction as limit gives the tasks of `proca` different sizes, so that a weighted mean would differ."""
    metadata = {"proca.data_dir": str(real_data), "proca.estimate_size": 60}
    results = lm_eval.simple_evaluate(
        model="dummy",
        tasks=[group],
        task_manager=TaskManager(include_path=str(task_configs), include_defaults=False, metadata=metadata),
        limit=0.02,
        bootstrap_iters=0,
        log_samples=False,
    )
    assert results["group_subtasks"][group] == MEMBERS[group]
    for name in FILTERS:
        scores = [results["results"][task][f"acc,{name}"] for task in MEMBERS[group]]
        assert results["groups"][group][f"acc,{name}"] == pytest.approx(sum(scores) / 9)
    if group == "proca":
        assert len({results["n-samples"][task]["effective"] for task in MEMBERS[group]}) > 1
    assert [row[3] for row in printed_cells(make_table(results, "groups"))] == FILTERS


def printed_cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")] for line in table.splitlines()[2:]]
