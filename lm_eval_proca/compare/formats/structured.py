"""For programs: everything, as JSON. Accuracies are fractions, as in lm-eval."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

from lm_eval_proca.compare.blocks import Accuracy
from lm_eval_proca.compare.comparison import Report
from lm_eval_proca.compare.leaderboard import Comparison, Standing, Tally


def render(report: Report) -> str:
    return json.dumps(as_dict(report), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_dict(report: Report) -> dict[str, Any]:
    """The report as plain data."""
    return {
        "format": "lm-eval-proca compare 1",
        "models": [{"name": model, "full_name": report.full_names[model]} for model in report.models],
        "methods": report.methods,
        "accuracies": list(accuracies(report)),
        "leaderboards": [
            {
                "shots": board.shots,
                "datasets": [dataset.name for dataset in board.datasets],
                "standings": [_standing(one) for one in board.standings],
                "order_changes": [one._asdict() for one in board.order_changes],
            }
            for board in report.leaderboards
        ],
        "preferences": [one._asdict() for one in report.preferences],
        "notices": [notice._asdict() for notice in report.notices],
    }


def accuracies(report: Report) -> Iterator[dict[str, Any]]:
    """Every method on every dataset, also for the page."""
    for block in report.blocks:
        for dataset, method in product(block.datasets, block.methods):
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
                "by_seed": found and {str(prompt): value for prompt, value in found.values.items()},
                "fewer_seeds": bool(found and found.fewer_seeds),
                "best": method in block.best(dataset),
                **(_prompts(found) if report.several_prompts else {}),
            }


def _prompts(found: Accuracy | None) -> dict[str, Any]:
    """What is known of several prompts; `together` says that it is an ensemble of them."""
    together = found is not None and found.together
    return {"prompts": found and len(found.by_prompt), "worst": found and found.worst, "together": together}


def _standing(one: Standing) -> dict[str, Any]:
    return {
        "model": one.model,
        "method": one.method,
        "rank": one.rank,
        "model_rank": one.model_rank,
        "average": one.average.mean,
        "interval": one.interval,
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
    found = []
    for one in comparisons:
        test = one.test._asdict() if one.test else {}
        said = {"dataset": one.dataset.name, "difference": one.difference, "p_holm": one.p_holm, **test}
        changes = {} if one.order_changes is None else {"prompts": one.prompts, "order_changes": one.order_changes}
        found.append({**said, **changes})
    return found
