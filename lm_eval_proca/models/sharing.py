"""What every `…-shared-prefix` model promises: the numbers of the stock model, or the stock model itself.

A model of ours is a stock model of lm-eval with another way to score. It answers the requests that it can answer from
shared computations, and leaves the others to stock. It compares its numbers with stock's when it computes something
for the first time; where they differ, one log line says why, and stock scores everything.
"""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from tqdm import tqdm

from lm_eval_proca.models.prefix_tree import Request
from lm_eval_proca.representations import Answered, Asked, Wanted

logger = logging.getLogger("lm_eval.proca.models")

# How far log-probabilities of one request, anywhere in the vocabulary, may differ between two ways to compute them.
TOLERANCE = {torch.float64: 1e-3, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 1.0}

LogLikelihood = tuple[float, bool]  # and whether the continuation is the greedy one
TokenizedRequest = tuple[tuple[str, str], list[int], list[int]]


class CannotShare(Exception):
    """This model's predictions cannot be had from shared computations; the message says why."""


class SharedPrefix(TemplateLM):
    """The first base of a class, before a stock model; `NAME` and `STOCK` are what `--model` calls the two."""

    NAME: str
    STOCK: str
    _longest_input: int
    """Tokens of context and continuation that stock reads at most; it cuts the beginning of longer ones."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._cannot_share: str | None = None
        self._warn_once = functools.cache(logger.warning)
        self._cut: list[bool] = []
        self._wanted: dict[int, Wanted] = {}
        # For each label lm-eval encodes prompt + label, then the prompt again: the last two hold the prompt.
        self._encode = functools.lru_cache(maxsize=2)(super().tok_encode)

    def tok_encode(self, string: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(string, str) and not args and not kwargs:
            return self._encode(string)
        return super().tok_encode(string, *args, **kwargs)

    @abstractmethod
    def _answers(self, requests: list[TokenizedRequest]) -> Iterator[tuple[int, Answered]]:
        """Answers, with the numbers of their requests, for all requests that can share; CannotShare where none can.

        Those of requests in `_wanted` have a representation or the reason why there is none.
        """

    def _is_cut(self, context: Sequence[int], continuation: Sequence[int]) -> bool:
        """Whether the model sees this prompt without its beginning."""
        return len(context) + len(continuation) > self._longest_input

    def _input(self, context: list[int], continuation: list[int]) -> Request:
        """What the model reads of a request, cut as stock cuts it."""
        return Request((context + continuation)[-self._longest_input :][:-1], continuation)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[LogLikelihood]:
        """As stock; the answers also say whether the model saw the prompt without its beginning, and hold the
        representations that requests ask for (:class:`Asked`)."""
        asked = {number: request.args for number, request in enumerate(requests)}
        self._cut, self._wanted = [], {n: args.wanted for n, args in asked.items() if isinstance(args, Asked)}
        answers = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        if any(self._cut):
            logger.warning(
                f"{sum(self._cut)} of {len(requests)} prompts were longer than the model's {self.max_length} tokens "
                "and lost their beginning."
            )
        return answers

    def _stock(self, requests: list[TokenizedRequest], disable_tqdm: bool, **options: Any) -> list[LogLikelihood]:
        """The stock model's own way."""
        return super()._loglikelihood_tokens(requests, disable_tqdm=disable_tqdm, **options)

    def _left_to_stock(self, requests: dict[int, TokenizedRequest], disable_tqdm: bool) -> Iterable[Answered]:
        """Stock's answers to requests of these numbers, which cannot share."""
        why = f"{self.NAME} scored them like {self.STOCK}, which gives none (its log line says why)"
        return [Answered.of(pair, missing=why) for pair in self._stock(list(requests.values()), disable_tqdm)]

    def _loglikelihood_tokens(
        self, requests: list[TokenizedRequest], disable_tqdm: bool = False, **options: Any
    ) -> list[LogLikelihood]:
        if any(text is None for text, _, _ in requests):  # the windows of loglikelihood_rolling: nothing to share
            return self._stock(requests, disable_tqdm, **options)
        self._cut = [self._is_cut(context, continuation) for _, context, continuation in requests]
        answers: dict[int, Answered] = {}
        try:
            if self._cannot_share is not None:
                raise CannotShare(self._cannot_share)
            silent = disable_tqdm or self.rank != 0
            with tqdm(total=len(requests), disable=silent, desc="Running loglikelihood requests") as progress:
                for number, answer in self._answers(requests):
                    answer.truncated = self._cut[number]
                    answers[number] = answer
                    self.cache_hook.add_partial("loglikelihood", requests[number][0], answer)
                    progress.update(1)
        except CannotShare as reason:
            if not answers:  # else it is not the model that cannot share
                self._cannot_share = str(reason)
            self._warn_once(f"{self.NAME} scores like {self.STOCK}: {reason}.")
        rest = {number: requests[number] for number in range(len(requests)) if number not in answers}
        for number, answer in zip(rest, self._left_to_stock(rest, disable_tqdm) if rest else (), strict=True):
            answer.truncated = self._cut[number]
            answers[number] = answer
        return [answers[number] for number in range(len(requests))]
