"""One prompt: the same demonstrations for every evaluation, estimate and content-free document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from lm_eval.api.samplers import ContextSampler

from lm_eval_proca.errors import TaskError

Doc = dict[str, Any]


class OnePromptSampler(ContextSampler):
    """Draws demonstrations once per seed and number of shots, and gives them to every document.

    The draw is the one that lm-eval's default sampler makes for its first document with the same seed. Rows that
    are evaluated are never demonstrations: `allowed` says which rows may be used.

    Parameters
    ----------
    pool : sequence of documents
        The labeled rows; a `datasets.Dataset` is read row by row, never copied.
    allowed : callable
        False for rows that must not become demonstrations.
    label_of : callable
        Label id of a row; only needed with `counts`.
    counts : sequence of int, optional
        Number of demonstrations per label id (their sum is then the number of shots).
    order_seed : int, optional
        Shuffles the drawn demonstrations with a seed of its own.
    first : bool
        Take the first rows instead of drawing (lm-eval's `sampler: first_n`).
    """

    def __init__(
        self,
        pool: Sequence[Doc],
        *,
        task: str,
        allowed: Callable[[Doc], bool],
        label_of: Callable[[Doc], int],
        counts: Sequence[int] | None = None,
        order_seed: int | None = None,
        first: bool = False,
    ) -> None:
        self.df = pool
        self.task = task
        self.allowed = allowed
        self.label_of = label_of
        self.counts = counts
        self.order_seed = order_seed
        self.first = first

    def set_rnd(self, rnd: int) -> OnePromptSampler:
        self.seed = rnd
        self._drawn: dict[int, list[int]] = {}
        return self

    def sample(self, n: int, eval_doc: Doc | None = None, df: Sequence[Doc] | None = None, **kwargs: Any) -> list[Doc]:
        """The `n` demonstrations of this seed, whatever document they are for."""
        return [self.df[i] for i in self.indices(n)]

    def indices(self, n: int) -> list[int]:
        """Rows of the pool that are the demonstrations, in prompt order."""
        if n not in self._drawn:
            self._drawn[n] = self._draw(n)
        return self._drawn[n]

    def _draw(self, n: int) -> list[int]:
        if n == 0:
            return []
        if self.counts is not None:
            drawn = self._draw_by_label(n)
        elif self.first:
            drawn = [i for i in range(len(self.df)) if self.allowed(self.df[i])][:n]
        else:
            drawn = self._draw_any(n)
        if len(drawn) < n:
            raise TaskError(
                f"{self.task}: {n} demonstrations were asked for, but only {len(drawn)} rows of the few-shot split "
                f"are not evaluated themselves; use fewer shots or another fewshot_split."
            )
        if self.order_seed is not None:
            Random(self.order_seed).shuffle(drawn)
        return drawn

    def _draw_any(self, n: int) -> list[int]:
        rnd, size = Random(self.seed), len(self.df)
        candidates = rnd.sample(range(size), min(n, size))
        drawn = [i for i in candidates if self.allowed(self.df[i])]
        tried = set(candidates)
        while len(drawn) < n and len(tried) < size:
            i = rnd.randrange(size)
            if i not in tried:
                tried.add(i)
                if self.allowed(self.df[i]):
                    drawn.append(i)
        return drawn

    def _draw_by_label(self, n: int) -> list[int]:
        wanted = list(self.counts or ())
        if sum(wanted) != n:
            raise TaskError(
                f"{self.task}: proca.demonstration_counts={'/'.join(map(str, wanted))} makes {sum(wanted)} "
                f"demonstrations, but --num_fewshot is {n}; make the two agree."
            )
        rnd = Random(self.seed)
        drawn: list[int] = []
        for i in rnd.sample(range(len(self.df)), len(self.df)):
            row = self.df[i]
            label = self.label_of(row)
            if label >= len(wanted):
                raise TaskError(
                    f"{self.task}: proca.demonstration_counts has {len(wanted)} counts, one per label is needed."
                )
            if wanted[label] and self.allowed(row):
                wanted[label] -= 1
                drawn.append(i)
                if not any(wanted):
                    break
        return drawn
