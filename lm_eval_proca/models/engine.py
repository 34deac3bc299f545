"""Models that leave common prefixes to an engine with its own cache: what to ask it, and how to read its answers.

An engine that serves many users (vLLM) keeps the beginnings of prompts by itself. It reads them when it is asked for
the *next* token, not when it is asked to score the tokens *of* a prompt, which is how lm-eval asks. So the prefix tree
of the requests (see `prefix_tree`) is asked node by node: one question for each prompt, with all tokens that any
label continues it with. Labels of one token need one question for a document, whatever their number; a label of
several tokens needs one more for each further token, a little longer than the document that the engine just read.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from lm_eval_proca.models.prefix_tree import Answer, Request, Tokens, branches, sort_key
from lm_eval_proca.models.sharing import TOLERANCE, CannotShare, LogLikelihood, SharedPrefix, TokenizedRequest, logger

BLOCK_SIZE = 32
"""Tokens of the blocks in which an engine keeps prefixes; it computes again what does not fill one."""
MAX_TOKENS = 128
"""vLLM's bound of the tokens that one question may name."""

Prediction = Mapping[int, float]
"""Log-probabilities by token: of those that were asked for, and of the most likely one."""


class Question(NamedTuple):
    """A prompt, and the tokens whose log-probabilities behind it are wanted."""

    prompt: Tokens
    tokens: list[int]


class Questions(NamedTuple):
    """In lexicographic order, so that an engine finds what it has just read. `answers` say by place which of the
    questions hold the predictions of a request."""

    asked: list[Question]
    answers: list[Answer]


class EngineLM(SharedPrefix):
    """Asks an engine for the next tokens behind prompts, one question for each document and one-token labels."""

    _tolerance = TOLERANCE[torch.bfloat16]
    """How far log-probabilities of one token may differ; the precision of the engine may be unknown."""
    _longest_checked = 0  # tokens of a continuation

    @abstractmethod
    def _predictions(self, asked: Sequence[Question]) -> Iterator[tuple[int, Prediction]]:
        """The answers of the engine with the places of their questions, in any order."""

    def _answers(self, requests: list[TokenizedRequest]) -> Iterator[tuple[int, LogLikelihood]]:
        inputs = [self._input(context, continuation) for _, context, continuation in requests]
        numbers = [number for number, request in enumerate(inputs) if _saves(request)]
        longest = max(numbers, key=lambda number: len(inputs[number].continuation), default=None)
        if longest is not None and len(inputs[longest].continuation) > self._longest_checked:
            self._check(requests, inputs, sorted({numbers[0], longest, numbers[-1]}))
            self._longest_checked = len(inputs[longest].continuation)
        plan = questions(inputs, numbers)
        yield from read_answers(plan, inputs, self._predictions(plan.asked))
        logger.info(f"{self.NAME}: {len(plan.asked)} prompts answered {len(numbers)} of {len(requests)} requests.")

    def _check(self, requests: list[TokenizedRequest], inputs: list[Request], sample: list[int]) -> None:
        """Ask for a few requests in both ways."""
        plan = questions(inputs, sample)
        ours = dict(read_answers(plan, inputs, self._predictions(plan.asked)))
        stock = self._stock([requests[number] for number in sample], disable_tqdm=True)
        for number, (expected, _) in zip(sample, stock, strict=True):
            difference = abs(ours[number][0] - expected)
            if difference > self._tolerance * len(inputs[number].continuation):
                raise CannotShare(f"scores behind cached prefixes differ by up to {difference:.2g} from those of stock")


def _saves(request: Request) -> bool:
    """Whether questions cost less than stock: each further token of a label costs up to a block, stock the prompt."""
    there = len(request.continuation) > 0 and request.first_scored >= 0
    return there and (len(request.continuation) - 1) * BLOCK_SIZE <= len(request.tokens)


def questions(requests: Sequence[Request], numbers: Iterable[int], max_tokens: int = MAX_TOKENS) -> Questions:
    """All that must be asked to answer the requests of the given numbers; a question names at most `max_tokens`."""
    prompts: dict[bytes, Question] = {}
    found: dict[int, list[tuple[bytes, int]]] = defaultdict(list)
    for branch in branches(requests, numbers):
        for number, length in branch.requests:
            ends = range(len(branch) - length + 1, len(branch) + 1)
            for end, token in zip(ends, requests[number].continuation, strict=True):
                prompt = branch.tokens[:end]
                tokens = prompts.setdefault(sort_key(prompt), Question(prompt, [])).tokens
                if token not in tokens:
                    tokens.append(token)
                found[number].append((sort_key(prompt), tokens.index(token) // max_tokens))
    asked = {
        (key, start // max_tokens): Question(prompts[key].prompt, prompts[key].tokens[start : start + max_tokens])
        for key in sorted(prompts)
        for start in range(0, len(prompts[key].tokens), max_tokens)
    }
    places = {key: place for place, key in enumerate(asked)}
    answers = [Answer(number, np.array([places[key] for key in keys])) for number, keys in found.items()]
    return Questions(list(asked.values()), answers)


def read_answers(
    plan: Questions, requests: Sequence[Request], predictions: Iterable[tuple[int, Prediction]]
) -> Iterator[tuple[int, LogLikelihood]]:
    """Log-likelihoods with the numbers of their requests, each as soon as all its predictions are there."""
    known: dict[int, Prediction] = {}
    waiting: dict[int, list[Answer]] = defaultdict(list)
    for answer in plan.answers:
        for place in answer.places:
            waiting[place].append(answer)
    for place, prediction in predictions:
        if not prediction.keys() >= set(plan.asked[place].tokens):
            raise CannotShare("the engine does not return the log-probabilities of the tokens that it is asked for")
        known[place] = prediction
        for answer in waiting[place]:
            if known.keys() >= set(answer.places):
                behind = zip(requests[answer.request].continuation, (known[p] for p in answer.places), strict=True)
                values = [(found[token], max(found.values())) for token, found in behind]
                yield answer.request, (sum(value for value, _ in values), all(value == best for value, best in values))
