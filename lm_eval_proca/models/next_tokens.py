"""What to ask an engine that predicts the next token of a prompt, and how its answers become log-likelihoods.

An engine that serves many users (vLLM) keeps the beginnings of prompts by itself. It reads them when it is asked for
the *next* token, not when it is asked to score the tokens *of* a prompt, which is how lm-eval asks. So the prefix tree
of the requests (see `prefix_tree`) is asked node by node: one question for each prompt, with all tokens that any
label continues it with. Labels of one token need one question for a document, whatever their number; a label of
several tokens needs one more for each further token, a little longer than the document that the engine just read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from lm_eval_proca.models.prefix_tree import Answer, Request, Tokens, branches, sort_key
from lm_eval_proca.models.sharing import LogLikelihood

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


def questions(requests: Sequence[Request], numbers: Iterable[int], max_tokens: int = MAX_TOKENS) -> Questions:
    """All that must be asked to answer the requests of the given numbers; a question names at most `max_tokens`."""
    asked: dict[tuple[bytes, int], Question] = {}
    found: dict[int, list[tuple[bytes, int]]] = {}
    for branch in branches(requests, numbers):
        for number, length in branch.requests:
            ends = range(len(branch) - length + 1, len(branch) + 1)
            found[number] = [
                _ask(asked, branch.tokens[:end], token, max_tokens)
                for end, token in zip(ends, requests[number].continuation, strict=True)
            ]
    order = sorted(asked)
    places = {key: place for place, key in enumerate(order)}
    return Questions(
        [asked[key] for key in order],
        [Answer(number, np.array([places[key] for key in keys])) for number, keys in found.items()],
    )


def _ask(asked: dict[tuple[bytes, int], Question], prompt: Tokens, token: int, max_tokens: int) -> tuple[bytes, int]:
    """Add a token to the question with this prompt, or to a further one where that is full; the key of the question."""
    start, part = sort_key(prompt), 0
    while True:
        question = asked.setdefault((start, part), Question(prompt, []))
        if token in question.tokens:
            return start, part
        if len(question.tokens) < max_tokens:
            question.tokens.append(token)
            return start, part
        part += 1


def read_answers(
    plan: Questions, requests: Sequence[Request], predictions: Iterable[tuple[int, Prediction]]
) -> Iterator[tuple[int, LogLikelihood]]:
    """Log-likelihoods with the numbers of their requests, each as soon as all its predictions are there.

    `predictions` come with the places of their questions, in any order.
    """
    known: dict[int, Prediction] = {}
    missing = Counter({answer.request: len(answer.places) for answer in plan.answers})
    waiting: dict[int, list[Answer]] = {}
    for answer in plan.answers:
        for place in answer.places.tolist():
            waiting.setdefault(place, []).append(answer)
    for place, prediction in predictions:
        known[place] = prediction
        for answer in waiting[place]:
            missing[answer.request] -= 1
            if not missing[answer.request]:
                behind = [known[place] for place in answer.places.tolist()]
                yield answer.request, _log_likelihood(requests[answer.request].continuation, behind)


def _log_likelihood(continuation: Sequence[int], predictions: Sequence[Prediction]) -> LogLikelihood:
    values = [prediction[token] for token, prediction in zip(continuation, predictions, strict=True)]
    greedy = all(value == max(each.values()) for value, each in zip(values, predictions, strict=True))
    return sum(values), greedy
