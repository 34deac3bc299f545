from __future__ import annotations

from collections import Counter

import pytest

from lm_eval_proca.paper import ANALYSES, get_analysis
from lm_eval_proca.sweep.cell import Cell


@pytest.fixture(scope="module")
def cells() -> dict[str, list[Cell]]:
    """The cells of every analysis; its tasks must exist."""
    return {name: get_analysis(name).plan.cells(limit=100) for name in ANALYSES}


def test_the_plans_are_as_large_as_in_the_paper(cells: dict[str, list[Cell]]) -> None:
    assert {name: len(set(some)) for name, some in cells.items()} == {
        "boundaries": 2,
        "thresholds": 4,
        "templates": 9 * 5,
        "imbalance": 2 * 5,
        "proportions": 9 * 12,
        "selection": 2 * 4 * 5,
        "size": 5,
        "formats": 3 * 2 * 5,
        "methods": 9 * 2 * 3,
        "prompts": 9,
    }


def test_proportions_run_from_all_negative_to_all_positive_in_twelve_orders(cells: dict[str, list[Cell]]) -> None:
    settings = [dict(cell.settings) for cell in cells["proportions"]]
    counts = Counter(setting["demonstration_counts"] for setting in settings)
    assert counts == {f"{8 - k}/{k}": 12 for k in range(9)}
    assert len({tuple(setting.items()) for setting in settings}) == 108
    assert {cell.num_fewshot for cell in cells["proportions"]} == {8}


def test_folders_of_all_cells_differ_and_common_cells_are_shared(cells: dict[str, list[Cell]]) -> None:
    every = [cell for some in cells.values() for cell in some]
    assert len({cell.name for cell in every}) == len(set(every)) < len(every)
