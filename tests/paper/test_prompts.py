"""`analyze prompts`: what it measures, against loops over prompts and arithmetic by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata

from lm_eval_proca.errors import ProcaError
from lm_eval_proca.metrics import Observation
from lm_eval_proca.paper.observations import runs_of
from lm_eval_proca.paper.prompts import Prompts
from lm_eval_proca.scores.fitting import accuracies, make_calibrators
from tests.score_tables import made_prompts


@pytest.fixture(scope="module")
def calibrators() -> dict[str, Any]:
    return make_calibrators(["bc", "conca"])


def observation(method: str, number: int, prompt: int, accuracy: float, **more: Any) -> Observation:
    known = {"model": "m", "task": "t", "num_fewshot": 4, "seed": 0, "eval_rows": 100}
    judged = {"agreement": 0.9, "estimated_accuracy": 0.8, "kappa": 0.5, "doubtful": False, "failed": False}
    of_set = {"set": number, "prompt": prompt, "calibrator": method, "accuracy": accuracy, "together": 0.9}
    return {**known, **of_set, **judged, **more}


def test_every_prompt_alone_and_all_together(calibrators: dict[str, Any]) -> None:
    tables = made_prompts(4)
    observed = Prompts.observe(tables, calibrators)
    assert len(observed) == 4 * 3
    for k, table in enumerate(tables):
        alone = {one["calibrator"]: one["accuracy"] for one in observed if one["prompt"] == k}
        assert alone == pytest.approx(accuracies(table, calibrators))
    # A mean of log-probabilities over prompts has the labels of a mean of scores: normalising shifts whole rows.
    summed = np.sum([table.scores_of("eval") for table in tables], axis=0)
    expected = np.mean(summed.argmax(axis=1) == tables[0].gold_of("eval"))
    assert {one["together"] for one in observed if one["calibrator"] == "none"} == {expected}


def test_a_failure_is_five_points_or_more_below_batch_calibration(calibrators: dict[str, Any]) -> None:
    observed = Prompts.observe(made_prompts(5, noise=0.5), calibrators)
    bc = {one["prompt"]: one["accuracy"] for one in observed if one["calibrator"] == "bc"}
    for one in observed:
        assert one["failed"] == (round(200 * (bc[one["prompt"]] - one["accuracy"])) >= 10)
    assert {one["failed"] for one in observed} == {True, False}
    assert not any(one["doubtful"] for one in observed if one["calibrator"] in ("none", "bc"))


def test_the_prompts_of_one_run_reach_the_analysis(calibrators: dict[str, Any]) -> None:
    """They have one seed, and a table each; the labels of a template may be its own words."""
    tables = [
        replace(one, record=replace(one.record, seed=0, prompts=3, prompt=k, vary="templates", labels=words))
        for k, (one, words) in enumerate(zip(made_prompts(3), (("a", "b"), ("c", "d"), ("e", "f")), strict=True))
    ]
    runs, repeated = runs_of(tables)
    assert (len(runs), repeated) == (3, [])
    assert {one["prompt"] for one in Prompts.observe(runs, calibrators)} == {0, 1, 2}


def test_summary_by_hand() -> None:
    observed = [observation("bc", 0, k, value) for k, value in enumerate((0.6, 0.8))]
    observed += [observation("bc", 1, k, value, together=0.7) for k, value in enumerate((0.5, 0.5, 0.8))]
    [row] = Prompts(observed).summary()
    assert row["one prompt"] == pytest.approx((0.7 + 0.6) / 2)
    assert row["sd"] == pytest.approx((np.sqrt(0.02) + np.sqrt(0.03)) / 2)
    assert row["worst"] == pytest.approx(0.55)
    assert row["together"] == pytest.approx(0.8)
    assert (row["prompts"], row["sets"]) == (5, 2)
    other = [{**one, "task": "u", "set": 2, "accuracy": 0.4, "together": 0.4} for one in observed[:2]]
    of_one_task = [{**one, "calibrator": "proca_a"} for one in other]
    *rows, average = Prompts(observed + other + of_one_task).summary()
    assert [row["task"] for row in rows] == ["t", "u", "u"]  # and no average of a method that not every task has
    assert (average["task"], average["calibrator"], average["sets"]) == ("average", "bc", 3)
    assert average["one prompt"] == pytest.approx((0.65 + 0.4) / 2)  # a task counts once, however many sets it has


def test_judging_without_labels_by_hand() -> None:
    truth = [[0.5, 0.6, 0.7, 0.9], [0.9, 0.8, 0.7, 0.6]]
    judged = [[0.4, 0.5, 0.8, 0.7], [0.9, 0.7, 0.8, 0.6]]
    doubts, failures = [True, False, True, False], [True, True, False, False]
    observed = [
        observation("conca", s, k, truth[s][k], estimated_accuracy=judged[s][k], doubtful=doubts[k], failed=failures[k])
        for s in (0, 1)
        for k in range(4)
    ]
    [row] = Prompts(observed).further()
    ranks = [1 - 6 * np.sum((rankdata(a) - rankdata(b)) ** 2) / (4 * 15) for a, b in zip(truth, judged, strict=True)]
    assert row["rank correlation of estimated accuracy"] == pytest.approx(np.mean(ranks))
    assert row["rank correlation of agreement"] is None  # which is the same everywhere
    assert (row["failures named"], row["false alarms"]) == ("2 of 4", "2 of 4")


def test_tables_of_no_set_are_told(calibrators: dict[str, Any]) -> None:
    first, second = made_prompts(2)
    [alone] = made_prompts(1, task="proca_mr")
    made = Prompts.from_tables([first, second, alone], calibrators)
    assert made.note.startswith("proca_mr (somewhere/made-model, 4 shots, seed 0) is in no set: it has another task")
    with pytest.raises(ProcaError, match="There are no two prompts of one task on the same documents"):
        Prompts.from_tables([first, alone], calibrators)


def test_the_figure_has_a_dot_per_prompt_and_a_bar_per_set() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    observed = [observation(name, s, k, 0.5 + 0.1 * k) for name in ("none", "bc") for s in (0, 1) for k in range(3)]
    observed[-1]["doubtful"] = True
    drawn = Prompts(observed).plot()
    bars = [bar.get_height() for container in drawn.ax_.containers for bar in container]
    assert bars == pytest.approx([90.0] * 4)
    dots = [line for line in drawn.ax_.get_lines() if line.get_marker() == "o" and len(line.get_xdata())]
    assert sorted(float(line.get_ydata()[0]) for line in dots) == pytest.approx([50.0] * 4 + [60.0] * 4 + [70.0] * 4)
    assert sum(line.get_markerfacecolor() == "white" for line in dots) == 1
    assert [text.get_text() for text in drawn.ax_.get_xticklabels()] == ["raw", "BC"]
    assert drawn.footnote().endswith("sets of 3 prompts, a bar each")
    matplotlib.pyplot.close("all")
