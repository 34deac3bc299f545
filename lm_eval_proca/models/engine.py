"""Models that leave common prefixes to an engine with its own cache: questions in, answers out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import torch
from tqdm import tqdm

from lm_eval_proca.models.next_tokens import Prediction, Question, questions, read_answers
from lm_eval_proca.models.prefix_tree import Request
from lm_eval_proca.models.sharing import TOLERANCE, CannotShare, LogLikelihood, SharedPrefix, TokenizedRequest, logger

BLOCK_SIZE = 32
"""Tokens of the blocks in which an engine keeps prefixes; it computes again what does not fill one."""


class EngineLM(SharedPrefix):
    """Asks an engine for the next tokens behind prompts, one question for each document and one-token labels."""

    _longest_input: int
    """Tokens of context and continuation that stock sends at most; it cuts the beginning of longer ones."""
    _tolerance = TOLERANCE[torch.bfloat16]
    """How far log-probabilities of one token may lie apart when the engine, whose precision may be unknown, computes
    them in two ways."""
    _longest_checked = 0
    """Tokens of the longest continuation that was checked."""

    @abstractmethod
    def _predictions(self, asked: Sequence[Question]) -> Iterator[tuple[int, Prediction]]:
        """The answers of the engine with the places of their questions, in any order."""

    def _is_cut(self, context: Sequence[int], continuation: Sequence[int]) -> bool:
        return len(context) + len(continuation) > self._longest_input

    def _answers(self, requests: list[TokenizedRequest], disable_tqdm: bool) -> Iterator[tuple[int, LogLikelihood]]:
        inputs = [
            Request((context + continuation)[-self._longest_input :][:-1], continuation)
            for _, context, continuation in requests
        ]
        numbers = [number for number, request in enumerate(inputs) if _saves(request)]
        longest = max((len(inputs[number].continuation) for number in numbers), default=0)
        if longest > self._longest_checked:
            self._check(requests, inputs, numbers)
            self._longest_checked = longest
        plan = questions(inputs, numbers)
        with tqdm(total=len(numbers), disable=disable_tqdm, desc="Running loglikelihood requests") as progress:
            for number, answer in read_answers(plan, inputs, self._complete_predictions(plan.asked)):
                self.cache_hook.add_partial("loglikelihood", requests[number][0], answer)
                progress.update(1)
                yield number, answer
        logger.info(f"{self.NAME}: {len(plan.asked)} prompts answered {len(numbers)} of {len(requests)} requests.")

    def _check(self, requests: list[TokenizedRequest], inputs: list[Request], numbers: list[int]) -> None:
        """Ask for a few requests in both ways: the first, the last, and one with the longest continuation."""
        longest = max(numbers, key=lambda number: len(inputs[number].continuation))
        sample = sorted({numbers[0], longest, numbers[-1]})
        plan = questions(inputs, sample)
        ours = dict(read_answers(plan, inputs, self._complete_predictions(plan.asked)))
        stock = self._stock([requests[number] for number in sample], disable_tqdm=True)
        for number, (expected, _) in zip(sample, stock, strict=True):
            difference = abs(ours[number][0] - expected)
            if difference > self._tolerance * len(inputs[number].continuation):
                raise CannotShare(f"scores behind cached prefixes differ by up to {difference:.2g} from those of stock")

    def _complete_predictions(self, asked: Sequence[Question]) -> Iterator[tuple[int, Prediction]]:
        for place, prediction in self._predictions(asked):
            if not prediction.keys() >= set(asked[place].tokens):
                raise CannotShare("the engine does not return the log-probabilities of the tokens that it is asked for")
            yield place, prediction


def _saves(request: Request) -> bool:
    """Whether questions cost less than stock: each further token of a label costs up to a block, stock the prompt."""
    there = len(request.continuation) > 0 and request.first_scored >= 0
    return there and (len(request.continuation) - 1) * BLOCK_SIZE <= len(request.tokens)
