"""Looking at what an engine is asked, and comparing what it answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

LogLikelihood = tuple[float, bool]


def assert_same(actual: Sequence[LogLikelihood], expected: Sequence[LogLikelihood], atol: float = 1e-3) -> None:
    assert [value for value, _ in actual] == pytest.approx([value for value, _ in expected], abs=atol)
    assert [greedy for _, greedy in actual] == [greedy for _, greedy in expected]


@contextmanager
def counted(model: Any) -> Iterator[list[tuple[list[int], int]]]:
    """Every prompt that vLLM gets, with the number of its tokens that came from the prefix cache."""
    seen: list[tuple[list[int], int]] = []
    plain = model._model_generate

    def generate(requests: list[list[int]], **options: Any) -> Any:
        outputs = plain(requests=requests, **options)
        seen.extend(
            (list(request), output.num_cached_tokens or 0) for request, output in zip(requests, outputs, strict=True)
        )
        return outputs

    model._model_generate = generate
    try:
        yield seen
    finally:
        del model._model_generate
