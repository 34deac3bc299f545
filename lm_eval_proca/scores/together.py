"""Several prompts of one task: what each method makes of every prompt and of all of them together.

A score table is one prompt's; :mod:`lm_eval_proca.scores.prompt_sets` says which of them are a set. Prompts are judged
by each other, without labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import log_softmax
from sklearn.base import clone

from lm_eval_proca.calibration.ensemble import PromptEnsemble, mean_of_prompts
from lm_eval_proca.crossed import CrossedMean, crossed_mean
from lm_eval_proca.metrics import Interval, labeled, measures
from lm_eval_proca.scores.fitting import RAW, Fit, fit
from lm_eval_proca.scores.score_table import ScoreTable

REFERENCE = "bc"
"""The method that hardly ever goes wrong: others are measured against it."""

LEAST_KAPPA = 0.4
"""Agreement beyond chance that prompts have at least: with all together (Cohen's), and with each other (Fleiss')."""

SURE = 2.0
"""Standard errors beyond which a difference is not taken for chance."""


@dataclass(frozen=True, eq=False)
class Prompts:
    """What one method makes of the evaluation documents under every prompt, and of all prompts together."""

    log_proba: np.ndarray
    """Of each prompt alone, of shape (prompts, documents, labels)."""
    ensemble: Fit | None = None
    """All prompts together, as a :class:`PromptEnsemble`; raw scores have no fit."""

    @cached_property
    def together(self) -> np.ndarray:
        """Log-probabilities of all prompts together, (documents, labels)."""
        return mean_of_prompts(self.log_proba) if self.ensemble is None else self.ensemble.log_proba

    @cached_property
    def predicted(self) -> np.ndarray:
        """The label of each document under every prompt, (prompts, documents)."""
        return self.log_proba.argmax(axis=2)

    @cached_property
    def predicted_together(self) -> np.ndarray:
        return self.together.argmax(axis=1)

    @property
    def agreement(self) -> np.ndarray:
        """Of each prompt, the share of documents to which it gives the label that all prompts together give."""
        return (self.predicted == self.predicted_together).mean(axis=1)

    @property
    def kappa(self) -> float:
        """Fleiss' kappa of the prompts: 1 if they always agree, 0 if only as often as chance would have it."""
        prompts, documents, labels = self.log_proba.shape
        votes = np.stack([np.bincount(column, minlength=labels) for column in self.predicted.T])
        alike = (votes * (votes - 1)).sum() / (documents * prompts * (prompts - 1))
        return _beyond_chance(alike, np.square(votes.mean(axis=0) / prompts).sum())

    @property
    def kappas(self) -> list[float]:
        """Cohen's kappa of each prompt and all prompts together."""
        shares = [np.bincount(one, minlength=self.log_proba.shape[2]) / len(one) for one in self.predicted]
        of_all = np.bincount(self.predicted_together, minlength=len(shares[0])) / len(self.predicted_together)
        return [_beyond_chance(a, float(one @ of_all)) for a, one in zip(self.agreement, shares, strict=True)]

    def right(self, gold: np.ndarray) -> np.ndarray:
        """Right or wrong, (prompts, documents with a gold label)."""
        return np.stack([np.equal(*labeled(gold, found)) for found in self.predicted])

    def over_prompts(self, gold: np.ndarray) -> CrossedMean | None:
        """The accuracy over prompts and documents; None where no document has a gold label."""
        right = self.right(gold)
        return crossed_mean(right) if right.shape[1] else None

    def measures_together(self, gold: np.ndarray) -> dict[str, Interval]:
        """How good all prompts together are, with intervals over documents."""
        return measures(gold, np.exp(self.together), self.predicted_together)

    def probability_of(self, predicted: np.ndarray) -> np.ndarray:
        """Labels (prompts, documents) of any method: how probable all prompts together find them, likewise.

        The mean of its own labels' is an estimate of each prompt's accuracy.
        """
        return np.take_along_axis(np.exp(self.together), predicted.T, axis=1).T


def _beyond_chance(agreement: float, by_chance: float) -> float:
    return 1.0 if by_chance == 1 else float((agreement - by_chance) / (1 - by_chance))


def methods_of(tables: Sequence[ScoreTable], fits: Sequence[Mapping[str, Fit]]) -> dict[str, Prompts]:
    """The raw scores of each prompt, and every method that was fitted under all of them."""
    scores = [table.scores_of("eval") for table in tables]
    with np.errstate(invalid="ignore"):  # of scores that are not finite, which have no probabilities
        found = {RAW: Prompts(np.stack([log_softmax(one, axis=1) for one in scores]))}
    for name in fits[0]:
        if all(name in of_prompt for of_prompt in fits):
            alone = [of_prompt[name] for of_prompt in fits]
            found[name] = Prompts(np.stack([one.log_proba for one in alone]), _ensemble(alone, tables))
    return found


def _ensemble(alone: Sequence[Fit], tables: Sequence[ScoreTable]) -> Fit:
    """The fits of single prompts, put together; or one fit on all prompts, where the method has one.

    Such a fit needs the same documents under every prompt. Seeds of a sweep may leave out different ones.
    """
    first = alone[0].calibrator
    same_rows = len({table.record.unlabeled_hash for table in tables}) == 1
    if first.fits_prompts_together and same_rows:
        return fit(PromptEnsemble(clone(first), n_prompts=len(tables)), side_by_side(tables))
    members = PromptEnsemble.of([one.calibrator for one in alone], origin=first.origin_)
    return replace(alone[0], calibrator=members, log_proba=mean_of_prompts(np.stack([one.log_proba for one in alone])))


def side_by_side(tables: Sequence[ScoreTable]) -> ScoreTable:
    """The scores and representations of all prompts as those of one table, as a :class:`PromptEnsemble` takes them."""
    orders = [np.lexsort((table.index, table.role)) for table in tables]
    ordered = list(zip(tables, orders, strict=True))
    states = [table.representations[order] for table, order in ordered if table.representations is not None]
    return ScoreTable(
        **{name: getattr(tables[0], name)[orders[0]] for name in ("role", "index", "gold", "estimate_gold")},
        scores=np.hstack([table.scores[order] for table, order in ordered]),
        record=tables[0].record,
        representations=np.hstack(states) if len(states) == len(tables) else None,
    )


def report(methods: Mapping[str, Prompts], gold: np.ndarray) -> dict[str, Any]:
    """By method, ready for JSON: lists over prompts, and sentences about prompts that cannot be trusted.

    `accuracy` needs gold labels. Without them: `agreement` with all prompts together, and `estimated_accuracy`, the
    mean probability that all together give to a prompt's labels; None if a score is not finite. `kappa` says how far
    all of them agree.
    """
    return {
        name: {
            "accuracy": right.mean(axis=1).tolist() if (right := prompts.right(gold)).shape[1] else None,
            "agreement": prompts.agreement.tolist(),
            "estimated_accuracy": estimated.tolist() if np.isfinite(estimated).all() else None,
            "kappa": prompts.kappa,
            "warnings": [] if name == RAW else list(_warnings(prompts, methods.get(REFERENCE, prompts))),
        }
        for name, prompts in methods.items()
        for estimated in [prompts.probability_of(prompts.predicted).mean(axis=1)]
    }


def doubts(prompts: Prompts, reference: Prompts) -> dict[int, str]:
    """Prompts that cannot be trusted, each in a sentence.

    All prompts together speak for the reference, by more than documents scatter; or the prompt hardly agrees with them.
    """
    own, others = (prompts.probability_of(one.predicted) for one in (prompts, reference))
    found = {}
    for k, kappa in enumerate(prompts.kappas):
        loss = others[k] - own[k]
        if loss.mean() > SURE * loss.std() / np.sqrt(len(loss)):
            found[k] = (
                f"Prompt {k} has gone wrong: all prompts together find its labels {own[k].mean():.1%} probable, those "
                f"of batch calibration under the same prompt {others[k].mean():.1%}."
            )
        elif kappa < LEAST_KAPPA:
            found[k] = (
                f"Prompt {k} stands apart: it gives only {prompts.agreement[k]:.0%} of the documents the label of all "
                f"prompts together."
            )
    return found


def _warnings(prompts: Prompts, reference: Prompts) -> Iterator[str]:
    yield from doubts(prompts, reference).values()
    if prompts.kappa < LEAST_KAPPA:
        yield f"The prompts do not agree with each other (kappa {prompts.kappa:.2f}); trust none of them alone."
