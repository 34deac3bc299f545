"""Several prompts of one task: what each method makes of every prompt and of all of them together.

A score table is one prompt's. Tables of the same documents, by the same model, fitted on the same unlabeled rows, are a
set; an ensemble is made of such a set. Prompts are judged by each other, without labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import log_softmax

from lm_eval_proca.calibration.ensemble import mean_of_prompts
from lm_eval_proca.metrics import labeled
from lm_eval_proca.scores.fitting import RAW, Fit
from lm_eval_proca.scores.score_table import ScoreTable

REFERENCE = "bc"
"""The method that hardly ever goes wrong: others are measured against it."""

TOLERATED_LOSS = 0.01
"""A prompt has gone wrong if its labels are less probable than those of the reference by more than this."""

LEAST_KAPPA = 0.4
"""Below this, prompts do not agree: chance alone would give a good part of what they have in common."""


@dataclass(frozen=True, eq=False)
class Prompts:
    """What one method makes of the evaluation documents under every prompt."""

    log_proba: np.ndarray
    """Of shape (prompts, documents, labels)."""

    @cached_property
    def together(self) -> np.ndarray:
        """Log-probabilities of all prompts together, (documents, labels)."""
        return mean_of_prompts(self.log_proba)

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
        by_chance = np.square(votes.mean(axis=0) / prompts).sum()
        return 1.0 if by_chance == 1 else float((alike - by_chance) / (1 - by_chance))

    def right(self, gold: np.ndarray) -> np.ndarray:
        """Right or wrong, (prompts, documents with a gold label)."""
        return np.stack([np.equal(*labeled(gold, found)) for found in self.predicted])

    def probability_of(self, predicted: np.ndarray) -> np.ndarray:
        """Labels (prompts, documents) of any method: how probable the prompts of this one find them on average.

        Of its own labels this is an estimate of each prompt's accuracy.
        """
        averaged = np.exp(self.log_proba).mean(axis=0)
        return np.take_along_axis(averaged, predicted.T, axis=1).mean(axis=0)


def methods_of(tables: Sequence[ScoreTable], fits: Sequence[Mapping[str, Fit]]) -> dict[str, Prompts]:
    """The raw scores of each prompt, and every method that was fitted under all of them."""
    scores = [table.scores_of("eval") for table in tables]
    with np.errstate(invalid="ignore"):  # of scores that are not finite, which have no probabilities
        found = {RAW: Prompts(np.stack([log_softmax(one, axis=1) for one in scores]))}
    common = [name for name in fits[0] if all(name in of_prompt for of_prompt in fits)]
    return found | {name: Prompts(np.stack([of_prompt[name].log_proba for of_prompt in fits])) for name in common}


def report(methods: Mapping[str, Prompts], gold: np.ndarray) -> dict[str, Any]:
    """By method, ready for JSON: lists over prompts, and sentences about prompts that cannot be trusted.

    `accuracy` needs gold labels. Without them: `agreement` with all prompts together, and `estimated_accuracy`, the
    mean probability that the prompts give to a prompt's labels. `kappa` says how far all of them agree.
    """
    return {
        name: {
            "accuracy": right.mean(axis=1).tolist() if (right := prompts.right(gold)).shape[1] else None,
            "agreement": prompts.agreement.tolist(),
            "estimated_accuracy": prompts.probability_of(prompts.predicted).tolist(),
            "kappa": prompts.kappa,
            "warnings": [] if name == RAW else list(_doubts(prompts, methods.get(REFERENCE, prompts))),
        }
        for name, prompts in methods.items()
    }


def doubtful(prompts: Prompts, reference: Prompts) -> list[int]:
    """Prompts that have gone wrong: what all of them say together speaks for the reference's labels against theirs."""
    loss = prompts.probability_of(reference.predicted) - prompts.probability_of(prompts.predicted)
    return np.flatnonzero(loss > TOLERATED_LOSS).tolist()


def _doubts(prompts: Prompts, reference: Prompts) -> Iterator[str]:
    own, others = (prompts.probability_of(one.predicted) for one in (prompts, reference))
    for k in doubtful(prompts, reference):
        yield (
            f"Prompt {k} has gone wrong: all prompts together find its labels {own[k]:.0%} probable, those of batch "
            f"calibration under the same prompt {others[k]:.0%}."
        )
    if prompts.kappa < LEAST_KAPPA:
        yield f"The prompts do not agree with each other (kappa {prompts.kappa:.2f}); trust none of them alone."
