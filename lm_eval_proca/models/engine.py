"""Models that leave common prefixes to an engine with its own cache: what to ask it, and how to read its answers.

An engine that serves many users (vLLM) keeps the beginnings of prompts by itself. It reads them when it is asked for
the *next* token, not when it is asked to score the tokens *of* a prompt, which is how lm-eval asks. So the prefix tree
of the requests (see `prefix_tree`) is asked node by node: one question for each prompt, with all tokens that any
label continues it with. Labels of one token need one question for a document, whatever their number; a label of
several tokens needs one more for each further token, a little longer than the document that the engine just read.

An engine keeps its hidden states to itself. A task that wants a representation gets log-probabilities of probe tokens
(see `probes`), which are named in the question that the labels need anyway.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch

from lm_eval_proca.models.prefix_tree import Answer, Request, Tokens, branches, sort_key
from lm_eval_proca.models.probes import MAX_TOKENS, Probes
from lm_eval_proca.models.sharing import TOLERANCE, CannotShare, SharedPrefix, TokenizedRequest, logger
from lm_eval_proca.representations import Answered, Representation, scaled

BLOCK_SIZE = 32
"""Tokens of the blocks in which an engine keeps prefixes; it computes again what does not fill one."""
Prediction = Mapping[int, float]
"""Log-probabilities by token: of those that were asked for, and of the most likely one."""


class Question(NamedTuple):
    """A prompt, and the tokens whose log-probabilities behind it are wanted."""

    prompt: Tokens
    tokens: list[int]


class Questions(NamedTuple):
    """In lexicographic order, so that an engine finds what it has just read. `answers` say by place which of the
    questions hold the predictions of a request, `probed` which one holds those of its probes."""

    asked: list[Question]
    answers: list[Answer]
    probed: Mapping[int, int]

    def needs(self, answer: Answer) -> set[int]:
        """The places of all questions that a request waits for."""
        probed = self.probed.get(answer.request)
        return set(answer.places.tolist()) | (set() if probed is None else {probed})


class EngineLM(SharedPrefix):
    """Asks an engine for the next tokens behind prompts, one question for each document and one-token labels."""

    _tolerance = TOLERANCE[torch.bfloat16]
    """How far log-probabilities of one token may differ; the precision of the engine may be unknown."""
    _longest_checked = 0  # tokens of a continuation

    @cached_property
    def _most_tokens(self) -> int:
        """How many tokens one question may name; 0 if it is too few for probes."""
        return MAX_TOKENS

    @cached_property
    def _probes(self) -> Probes:
        return Probes(self.tokenizer, self._most_tokens)

    @abstractmethod
    def _predictions(self, asked: Sequence[Question]) -> Iterator[tuple[int, Prediction]]:
        """The answers of the engine with the places of their questions, in any order."""

    def _answers(self, requests: list[TokenizedRequest]) -> Iterator[tuple[int, Answered]]:
        inputs = [self._input(context, continuation) for _, context, continuation in requests]
        numbers = [number for number, request in enumerate(inputs) if _saves(request)]
        longest = max(numbers, key=lambda number: len(inputs[number].continuation), default=None)
        if longest is not None and len(inputs[longest].continuation) > self._longest_checked:
            self._check(requests, inputs, sorted({numbers[0], longest, numbers[-1]}))
            self._longest_checked = len(inputs[longest].continuation)
        probes = {n: one for n in numbers if n in self._wanted and (one := self._probes_of(n))}
        plan = questions(inputs, numbers, self._most_tokens if probes else MAX_TOKENS, probes)
        for number, answer in read_answers(plan, inputs, self._predictions(plan.asked), probes):
            if number in self._wanted and number not in probes:
                answer.missing = self._why_no_probes or f"{self.NAME} gives probes (proca.representation=probes)"
            yield number, answer
        logger.info(f"{self.NAME}: {len(plan.asked)} prompts answered {len(numbers)} of {len(requests)} requests.")

    def _probes_of(self, number: int) -> tuple[int, ...]:
        """The probes of a request; none where they are not wanted or cannot be had."""
        wanted = self._wanted[number]
        return self._probes.beside(wanted.labels) if wanted.probes and not self._why_no_probes else ()

    @cached_property
    def _why_no_probes(self) -> str:
        """Why probe tokens cannot be had, in words; empty if they can."""
        if not hasattr(self.tokenizer, "get_vocab"):
            return f"{self.NAME} needs a tokenizer of transformers to choose probe tokens (tokenizer=NAME)"
        return "" if self._most_tokens else f"the engine of {self.NAME} does not return so many chosen tokens"

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


def questions(
    requests: Sequence[Request],
    numbers: Iterable[int],
    max_tokens: int = MAX_TOKENS,
    probes: Mapping[int, Sequence[int]] | None = None,
) -> Questions:
    """All that must be asked to answer the requests of the given numbers; a question names at most `max_tokens`.

    The `probes` of a request, at most as many, go with the first question behind its context.
    """
    prompts: dict[bytes, Question] = {}
    probed: dict[int, bytes] = {}
    for number, tokens in (probes or {}).items():
        prompt = np.asarray(requests[number].tokens[: requests[number].first_scored + 1], dtype=np.int64)
        probed[number] = sort_key(prompt)
        prompts.setdefault(probed[number], Question(prompt, list(tokens)))
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
    return Questions(list(asked.values()), answers, {number: places[key, 0] for number, key in probed.items()})


def read_answers(
    plan: Questions,
    requests: Sequence[Request],
    predictions: Iterable[tuple[int, Prediction]],
    probes: Mapping[int, tuple[int, ...]] | None = None,
) -> Iterator[tuple[int, Answered]]:
    """Log-likelihoods with the numbers of their requests, each as soon as all its predictions are there.

    Predictions are forgotten once no request waits for them: with probes, those of all documents would fill memory.
    """
    known: dict[int, Prediction] = {}
    waiting: dict[int, dict[int, Answer]] = defaultdict(dict)
    for answer in plan.answers:
        for place in plan.needs(answer):
            waiting[place][answer.request] = answer
    for place, prediction in predictions:
        if not prediction.keys() >= set(plan.asked[place].tokens):
            raise CannotShare("the engine does not return the log-probabilities of the tokens that it is asked for")
        known[place] = prediction
        for answer in [one for one in waiting[place].values() if known.keys() >= plan.needs(one)]:
            yield answer.request, _answered(answer, plan, requests[answer.request], known, probes or {})
            for needed in plan.needs(answer):
                del waiting[needed][answer.request]
                if not waiting[needed]:
                    del known[needed], waiting[needed]


def _answered(
    answer: Answer,
    plan: Questions,
    request: Request,
    known: Mapping[int, Prediction],
    probes: Mapping[int, tuple[int, ...]],
) -> Answered:
    behind = zip(request.continuation, (known[place] for place in answer.places), strict=True)
    values = [(found[token], max(found.values())) for token, found in behind]
    answered = Answered((sum(value for value, _ in values), all(value == best for value, best in values)))
    if (tokens := probes.get(answer.request)) is not None:
        found = known[plan.probed[answer.request]]
        answered.representation = Representation(probes=tokens)
        answered.values = scaled(np.array([[found[token] for token in tokens]]), answered.representation)
    return answered
