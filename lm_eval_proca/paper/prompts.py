"""Several prompts of one task: each alone, all together, and how well they judge each other without labels."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from lm_eval_proca.errors import ProcaError
from lm_eval_proca.metrics import Observation, accuracy, grouped, mean, standard_deviation
from lm_eval_proca.paper.analysis import Analysis
from lm_eval_proca.paper.display import distinct, looks_of
from lm_eval_proca.paper.observations import PROMPT, Calibrators, Observations, Tables, run_of
from lm_eval_proca.scores.fitting import RAW
from lm_eval_proca.scores.prompt_sets import OnePrompt, Together, calibrate_together, sets_of
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.scores.together import REFERENCE, doubts
from lm_eval_proca.sweep.grid import Grid

FAILURE = 0.05
"""A method has failed under a prompt where batch calibration is better by this much."""

ROUNDING = 1e-9
AVERAGE = "average"


class Prompts(Analysis):
    """Every method under every prompt of a set, and the ensemble of all prompts."""

    plan = Grid(("proca",), seeds=(0,), settings=(("prompts", 5),))  # the group of the nine
    needs = (REFERENCE,)
    panel_size = (4.2, 3.2)

    @classmethod
    def from_tables(cls, tables: Tables, calibrators: Calibrators) -> Prompts:
        sets, reasons = _calibrated(tables, calibrators)
        made = cls([one for number, together in enumerate(sets) for one in _observed(number, together)])
        made.note = " ".join(reasons)  # type: ignore[misc]
        return made

    @classmethod
    def observe(cls, tables: Tables, calibrators: Calibrators) -> list[Observation]:
        """One observation per set, method and prompt; `together` is the accuracy of the set's ensemble."""
        return cls.from_tables(tables, calibrators).observed

    def summary(self) -> list[Observation]:
        """By task and method, and on average over tasks: mean over sets of what one set shows."""
        rows = [
            {**dict(zip((*PROMPT, "calibrator"), key, strict=True)), **_of_sets(alike)}
            for key, alike in grouped(self.observed, lambda one: (*_prompt(one), one["calibrator"])).items()
        ]
        for (model, shots), some in grouped(rows, lambda row: (row["model"], row["num_fewshot"])).items():
            tasks = len({row["task"] for row in some})
            about = {"model": model, "task": AVERAGE, "num_fewshot": shots}
            for name, alike in grouped(some, lambda row: row["calibrator"]).items():
                if len(alike) == tasks > 1:  # an average over other tasks is not comparable
                    rows.append({**about, "calibrator": name, **_average(alike)})
        return rows

    def further(self) -> list[Observation]:
        """Judging prompts without labels: ranks within sets, and failures that are named."""
        rows = []
        for name, observed in grouped(self.observed, lambda one: one["calibrator"]).items():
            sets = list(grouped(observed, _set).values())
            row = {
                "judged without labels": name,
                "rank correlation of estimated accuracy": _rank_correlation(sets, "estimated_accuracy"),
                "rank correlation of agreement": _rank_correlation(sets, "agreement"),
                "failures named": "",
                "false alarms": "",
            }
            if name not in (RAW, REFERENCE):
                failed, good = ([one for one in observed if one["failed"] is wanted] for wanted in (True, False))
                row["failures named"] = f"{sum(one['doubtful'] for one in failed)} of {len(failed)}"
                row["false alarms"] = f"{sum(one['doubtful'] for one in good)} of {len(good)}"
            rows.append(row)
        return rows

    def draw(self, ax: Any, observed: Observations, panel: Any) -> None:
        """Dots of single prompts, hollow where the others doubt them; a bar for the ensemble of each set."""
        here = {one["calibrator"] for one in observed}
        looks = {name: look for name, look in looks_of(self.observed).items() if name in here}
        sets = distinct(one["set"] for one in observed)
        width = 0.8 / len(sets)
        ax.set_xticks(range(len(looks)), [look["label"] for look in looks.values()])
        ax.grid(axis="x", visible=False)
        for (place, (method, look)), (k, number) in (
            (column, one) for column in enumerate(looks.items()) for one in enumerate(sets)
        ):
            dots = [one for one in observed if one["calibrator"] == method and one["set"] == number]
            if dots:
                _draw_set(ax, dots, place + (k - (len(sets) - 1) / 2) * width, 0.42 * width, look["color"])
        ax.set_ylim(0, 102)
        for name, style in KEY.items():
            ax.plot([], [], color="#444444", label=name, **style)

    def footnote(self) -> str:
        counts = {len({one["prompt"] for one in some}) for some in grouped(self.observed, _set).values()}
        several = max(len(set(map(_set, some))) for some in self.panels().values()) > 1
        sizes = " or ".join(map(str, sorted(counts)))
        return f"{super().footnote()}; sets of {sizes} prompts" + ", a bar each" * several


DOT: dict[str, Any] = {"marker": "o", "markersize": 5.5, "linestyle": "none", "markeredgewidth": 0.8, "zorder": 3}
ONE, DOUBTED, ALL = "one prompt", "one that the others doubt", "all prompts together"
KEY: dict[str, dict[str, Any]] = {
    ONE: {**DOT, "markeredgecolor": "white"},
    DOUBTED: {**DOT, "markerfacecolor": "white", "markeredgewidth": 1.3, "markersize": 5},
    ALL: {"linewidth": 3.5, "solid_capstyle": "butt"},
}


def _draw_set(ax: Any, dots: Observations, place: float, half: float, colour: str) -> None:
    together = 100 * dots[0]["together"]
    ax.bar(place, together, 2 * half, color=colour, alpha=0.18, linewidth=0)
    ax.plot([place - half, place + half], [together, together], color=colour, **KEY[ALL])
    offsets = np.linspace(-0.6, 0.6, len(dots)) * half
    for one, offset in zip(dots, offsets, strict=True):
        ax.plot(place + offset, 100 * one["accuracy"], color=colour, **KEY[DOUBTED if one["doubtful"] else ONE])


def _calibrated(tables: Tables, calibrators: Calibrators) -> tuple[list[Together], list[str]]:
    """The sets, and why a table or a set is left out: all methods are measured against batch calibration."""
    sets, reasons = sets_of([OnePrompt(_named(table), table, table.record.prompt_hash) for table in tables])
    if not sets:
        raise ProcaError(f"There are no two prompts of one task on the same documents. {' '.join(reasons[:3])}")
    found = [calibrate_together([one.table for one in prompts], calibrators) for prompts in sets]
    for prompts, together in zip(sets, found, strict=True):
        reasons += [f"{prompts[0].name}: {why}" for name, why in together.failures.items() if name == REFERENCE]
    return [together for together in found if REFERENCE in together.methods], reasons


def _named(table: ScoreTable) -> str:
    record = table.record
    prompt = f", prompt {record.prompt}" if record.prompts > 1 else ""
    return f"{record.task} ({record.model}, {record.num_fewshot} shots, seed {record.seed}{prompt})"


def _observed(number: int, together: Together) -> list[Observation]:
    """What one set shows."""
    reference = together.methods[REFERENCE]
    best = np.array(together.report[REFERENCE]["accuracy"])
    found: list[Observation] = []
    for name, prompts in together.methods.items():
        said = together.report[name]
        doubted = {} if name == RAW else doubts(prompts, reference)
        ensemble = accuracy(together.gold, prompts.predicted_together)
        for k, table in enumerate(together.tables):
            found.append(
                {
                    **run_of(table),
                    "set": number,
                    "prompt": k,
                    "calibrator": name,
                    "accuracy": said["accuracy"][k],
                    "together": ensemble,
                    "agreement": said["agreement"][k],
                    "estimated_accuracy": said["estimated_accuracy"][k],
                    "kappa": said["kappa"],
                    "doubtful": k in doubted,
                    "failed": bool(said["accuracy"][k] <= best[k] - FAILURE + ROUNDING),
                }
            )
    return found


def _set(one: Observation) -> int:
    return int(one["set"])


def _prompt(one: Observation) -> tuple[Any, ...]:
    return tuple(one[column] for column in PROMPT)


def _of_sets(observed: Observations) -> dict[str, Any]:
    by_set = list(grouped(observed, _set).values())
    sets = [[one["accuracy"] for one in some] for some in by_set]
    return {
        "one prompt": mean(map(fmean, sets)),
        "sd": mean(standard_deviation(some) or 0.0 for some in sets),
        "worst": mean(map(min, sets)),
        "together": mean(some[0]["together"] for some in by_set),
        "prompts": sum(map(len, sets)),
        "sets": len(sets),
    }


def _average(rows: Observations) -> dict[str, Any]:
    """Over tasks, each of which counts once."""
    means = {key: mean(row[key] for row in rows) for key in ("one prompt", "sd", "worst", "together")}
    return {**means, **{key: sum(row[key] for row in rows) for key in ("prompts", "sets")}}


def _rank_correlation(sets: Sequence[Observations], key: str) -> float | None:
    """Spearman's, of a judgement and the truth: mean over the sets in which both of them differ between prompts."""
    pairs = [[[one[column] for one in some] for column in (key, "accuracy")] for some in sets]
    found = [float(spearmanr(a, b).statistic) for a, b in pairs if len(set(a)) > 1 and len(set(b)) > 1]
    return mean(found) if found else None
