"""Probe tokens: a fixed set of the vocabulary whose log-probabilities stand for the hidden state behind them.

Logits are linear in the last hidden state, h: the logit of token t is w_t . h. The logits of a hundred tokens are a
projection of h onto a hundred directions of the output embedding. Random directions nearly keep the distances between
documents, and an engine that returns log-probabilities of chosen tokens needs no other door to its hidden states.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from typing import Any

import numpy as np

SEED = 0
MAX_TOKENS = 128
"""Labels and probes of one request: vLLM's bound, and ours where an engine has none, so that engines compare."""
LEAST = 1 / 4
"""Share of a request that probes have however many labels there are; labels that do not fit are asked for later."""


class Probes:
    """The probe tokens of a tokenizer, in a fixed random order."""

    def __init__(self, tokenizer: Any, most: int = MAX_TOKENS) -> None:
        self._tokenizer = tokenizer
        self._most = most
        self.beside = cache(self._beside)

    def _beside(self, labels: tuple[str, ...]) -> tuple[int, ...]:
        """As many as fit into one request with a token of each label; none is the beginning of a label."""
        size = max(self._most - len(labels), round(LEAST * self._most))
        words = [label.strip() for label in labels]
        fitting = (token for token, text in self._words if not any(word.startswith(text.strip()) for word in words))
        return tuple(token for token, _ in zip(fitting, range(size), strict=False))

    @property
    def _words(self) -> Iterator[tuple[int, str]]:
        """Tokens of letters alone, with their texts: no special or unused token, no byte of a character."""
        for token in self._order:
            text = self._tokenizer.decode([token])
            if text.strip().isalpha():
                yield token, text

    @cached_property
    def _order(self) -> list[int]:
        special = set(self._tokenizer.all_special_ids)
        ordinary = sorted(set(self._tokenizer.get_vocab().values()) - special)
        return np.random.default_rng(SEED).permutation(ordinary).tolist()
