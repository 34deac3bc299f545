"""Which score tables are prompts of one task, and what calibrators make of such a set.

An ensemble is a mean over prompts, document by document: the tables of a set have the same task, evaluated documents,
labels and shots, and are scored by the same model. Every prompt is fitted on its own unlabeled rows. These come from
one source and are as many, but need not be the same rows: each seed of a sweep leaves out the few that it demonstrates.
A method that is fitted on all prompts at once (proca_h) needs the same rows; on others it is a mean of single fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from lm_eval_proca.calibration.base import Calibrator
from lm_eval_proca.calibration.ensemble import PromptEnsemble
from lm_eval_proca.metrics import grouped
from lm_eval_proca.scores.fitting import Fit, fit_all
from lm_eval_proca.scores.record import RunRecord
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.scores.together import Prompts, methods_of, report


class OnePrompt(NamedTuple):
    """The scores of one prompt, where they stand, and a hash that tells the prompt from others."""

    name: str
    table: ScoreTable
    prompt: str | None


PromptSet = Sequence[OnePrompt]
"""Two prompts or more that an ensemble can be made of, in the order of the run, or else as they were given."""


def sets_of(given: Sequence[OnePrompt]) -> tuple[list[PromptSet], list[str]]:
    """The sets among the given tables, and of each table that is in none, a sentence why.

    A run with several prompts is a set of its own; runs with one prompt each, such as the seeds of a sweep, are put
    together.
    """
    known = [one for one in given if one.prompt is not None and one.table.record.documents_hash is not None]
    unknown = _less(given, known)
    reasons = [f"{one.name} does not say which prompt and documents it has; score again." for one in unknown]
    sets: list[PromptSet] = []
    for alike in grouped(known, lambda one: tuple(_common(one).values())).values():
        first: dict[str | None, OnePrompt] = {}
        for one in alike:
            if (twin := first.setdefault(one.prompt, one)) is not one:
                reasons.append(f"{one.name} has the same prompt as {twin.name}.")
        if len(first) > 1:
            sets.append(sorted(first.values(), key=lambda one: one.table.record.prompt))
        else:
            reasons.append(_why_alone(alike[0], _less(known, alike)))
    return sets, reasons


def _common(one: OnePrompt) -> dict[str, Any]:
    """What all prompts of a set share, by the words for one that does not."""
    record = one.table.record
    return {
        "another task": record.task,
        "another model": record.model_hash or record.model,
        "other evaluated documents": record.documents_hash,
        "another number of labels": len(one.table.labels),
        "another number of shots": record.num_fewshot,
        "other unlabeled rows": (record.estimate_source, record.estimate_size),
        "another representation": one.table.representation.views,
        "prompts of another run": _run(record) if record.prompts > 1 else None,
    }


def _run(record: RunRecord) -> tuple[Any, ...]:
    return (record.prompts, record.vary, record.seed, record.order_seed, record.demonstration_counts)


def _why_alone(one: OnePrompt, others: Sequence[OnePrompt]) -> str:
    """What parts a table from the one that is most like it."""
    if not others:
        return f"{one.name} is the only prompt; a set has two or more."
    ours = _common(one)
    apart = [(other, [what for what, value in _common(other).items() if value != ours[what]]) for other in others]
    nearest, differing = min(apart, key=lambda pair: len(pair[1]))
    return f"{one.name} is in no set: it has {' and '.join(differing)} than {nearest.name}."


def _less(some: Sequence[OnePrompt], others: Sequence[OnePrompt]) -> list[OnePrompt]:
    left_out = set(map(id, others))
    return [one for one in some if id(one) not in left_out]


# ------------------------------------------------------------------ fits


@dataclass(frozen=True, eq=False)
class Together:
    """A set, calibrated: the fits of each prompt, and why a method has no row."""

    tables: Sequence[ScoreTable]
    fits: Sequence[Mapping[str, Fit]]
    failures: Mapping[str, str]

    @cached_property
    def methods(self) -> dict[str, Prompts]:
        return methods_of(self.tables, self.fits)

    @cached_property
    def gold(self) -> np.ndarray:
        return self.tables[0].gold_of("eval")

    @cached_property
    def report(self) -> dict[str, Any]:
        return report(self.methods, self.gold)

    def ensemble(self, name: str) -> PromptEnsemble:
        """A method under all prompts as one calibrator; it knows what they share, and its members their prompts."""
        fitted = self.methods[name].ensemble
        assert fitted is not None, "raw scores have no fit"
        members = [copy(member) for member in fitted.calibrator.members_]
        for member, fits in zip(members, self.fits, strict=True):
            alone = fits[name].calibrator
            member.labels_, member.origin_ = alone.labels_, alone.origin_
        origins = [table.record.origin for table in self.tables]
        shared = {key: value for key, value in origins[0].items() if all(one.get(key) == value for one in origins)}
        return PromptEnsemble.of(members, origin=shared)


def calibrate_together(tables: Sequence[ScoreTable], calibrators: Mapping[str, Calibrator]) -> Together:
    """Fit the calibrators under every prompt of a set; one that fails under some prompt has no row."""
    found = [fit_all(table, calibrators) for table in tables]
    failures: dict[str, str] = {}
    for k, (_, failed) in enumerate(found):
        failures |= {name: f"prompt {k}: {why}" if k else why for name, why in failed.items() if name not in failures}
    everywhere = {name for name in calibrators if name not in failures}
    return Together(tables, [{name: fits[name] for name in fits if name in everywhere} for fits, _ in found], failures)
