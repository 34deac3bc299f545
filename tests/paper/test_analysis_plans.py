from __future__ import annotations

from collections import Counter

from lm_eval_proca.paper import ANALYSES
from lm_eval_proca.paper.plan import PAPER
from tests.conftest import ROOT


def test_every_analysis_has_a_plan_over_tasks_that_exist() -> None:
    assert set(PAPER) == set(ANALYSES)
    known = {path.stem for path in (ROOT / "task_configs").rglob("proca_*.yaml")}
    assert {task for plan in PAPER.values() for task in plan.tasks} <= known


def test_the_plans_are_as_large_as_in_the_paper() -> None:
    assert {name: len(set(plan.cells())) for name, plan in PAPER.items()} == {
        "boundaries": 2,
        "thresholds": 4,
        "templates": 9 * 5,
        "imbalance": 2 * 5,
        "proportions": 9 * 12,
        "selection": 2 * 4 * 5,
        "size": 5,
        "formats": 3 * 2 * 5,
        "prototypes": 9 * 2 * 3,
    }


def test_proportions_run_from_all_negative_to_all_positive_in_twelve_orders() -> None:
    settings = [dict(cell.settings) for cell in PAPER["proportions"].cells()]
    counts = Counter(setting["demonstration_counts"] for setting in settings)
    assert counts == {f"{8 - k}/{k}": 12 for k in range(9)}
    assert len({tuple(setting.items()) for setting in settings}) == 108
    assert {cell.num_fewshot for cell in PAPER["proportions"].cells()} == {8}


def test_folders_of_all_cells_differ_and_common_cells_are_shared() -> None:
    cells = [cell for plan in PAPER.values() for cell in plan.cells(limit=100)]
    assert len({cell.name for cell in cells}) == len(set(cells)) < len(cells)
