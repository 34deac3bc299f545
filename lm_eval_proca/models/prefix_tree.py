"""Which tokens a list of scoring requests needs, and in which forward pass: a plan made without a model.

A request is a token sequence whose last positions predict its continuation. Sequences that begin alike need their
common beginning only once. In lexicographic order the list is a prefix tree, read depth first, and the common
prefixes of neighbours are all one has to know of it:

- a *prompt tree* is a run of sequences that share a whole context: a prompt with its labels;
- a *row* holds prompt trees one after the other, flattened;
- a *pass* is what one forward pass computes: a few rows of similar length;
- a *group* is all passes behind the same prefix, whose keys and values are computed once and kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]


class Request(NamedTuple):
    """What the model reads, and what it is asked to predict: the continuation, from the last positions of the input."""

    tokens: Sequence[int]
    continuation: Sequence[int]

    @property
    def first_scored(self) -> int:
        return len(self.tokens) - len(self.continuation)


class Limits(NamedTuple):
    """Bounds of one forward pass; a single request that exceeds them still gets a pass of its own."""

    tokens: int
    scored: int
    prompts: int | None = None

    def halved(self) -> Limits:
        prompts = None if self.prompts is None else max(1, self.prompts // 2)
        return Limits(max(1, self.tokens // 2), max(1, self.scored // 2), prompts)

    def row(self, prefix: int) -> int:
        """Most tokens of a row. Matrix products gain from long passes, but attention costs a row's length squared, and
        each row a copy of the prefix: short rows where there is little to copy."""
        return max(self.tokens // 4, min(prefix, self.tokens // 2), 1)


@dataclass
class Branch:
    """A distinct input sequence, with the requests that read exactly this: number and length of the continuation."""

    tokens: Tokens
    first_scored: int
    requests: list[tuple[int, int]]

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass
class PromptTree:
    """A prompt and its labels: branches of a common context. From `first_scored` on, positions are predictions, which
    no cached prefix may hold."""

    branches: list[Branch]
    size: int
    first_scored: int
    scored: int

    @classmethod
    def of(cls, branch: Branch) -> PromptTree:
        return cls([branch], len(branch), branch.first_scored, len(branch) - branch.first_scored)

    def shared_with(self, following: PromptTree) -> int:
        """Tokens of the beginning that the next tree in lexicographic order has as well."""
        return common_prefix(self.branches[-1].tokens, following.branches[0].tokens)

    def takes(self, branch: Branch, limits: Limits) -> bool:
        """Add the branch if it shares a whole context with the one before it and the pass stays within its limits."""
        shared = common_prefix(self.branches[-1].tokens, branch.tokens)
        new, scored = len(branch) - shared, len(branch) - branch.first_scored
        if (
            shared <= min(self.first_scored, branch.first_scored)
            or self.size - len(self.branches[0]) + new > limits.row(0)
            or self.scored + scored > limits.scored
        ):
            return False
        self.branches.append(branch)
        self.size += new
        self.first_scored = min(self.first_scored, branch.first_scored)
        self.scored += scored
        return True


class Answer(NamedTuple):
    """Where a request finds its predictions, one for each token of its continuation."""

    request: int
    places: Tokens


@dataclass
class Row:
    """Prompt trees one after the other. Every token follows its ancestors: the beginning of its own prompt."""

    tokens: Tokens
    positions: Tokens
    chains: list[tuple[Tokens, int, int]]  # (ancestors, start, stop): tokens start..stop-1 follow each other
    answers: list[Answer]  # places are those of tokens in the row
    prompts: int

    @classmethod
    def of(cls, trees: Sequence[PromptTree], prefix: int) -> Row:
        tokens, positions, chains, answers = [], [], [], []
        path = np.empty(0, np.int64)  # where the tokens of the current branch stand in the row
        previous, size = path, 0
        for branch in (branch for tree in trees for branch in tree.branches):
            shared = max(prefix, common_prefix(previous, branch.tokens))
            stop = size + len(branch) - shared
            ancestors = path[: shared - prefix]
            chains.append((ancestors, size, stop))
            tokens.append(branch.tokens[shared:])
            positions.append(np.arange(shared, len(branch)))
            path = np.concatenate([ancestors, np.arange(size, stop)])
            answers += [Answer(number, path[-length:]) for number, length in branch.requests]
            previous, size = branch.tokens, stop
        return cls(np.concatenate(tokens), np.concatenate(positions), chains, answers, len(trees))

    def __len__(self) -> int:
        return len(self.tokens)

    def foreign_before(self, place: int, prefix: int) -> int:
        """Tokens of the row that stand between this one and the beginning of its prompt, and are no part of it."""
        ancestors, start, _ = next(chain for chain in self.chains if place < chain[2])
        begin = 0 if prefix else ancestors[0] if len(ancestors) else start
        return int(start - begin - len(ancestors))

    @cached_property
    def scored(self) -> Tokens:
        """The tokens whose logits are wanted."""
        return np.unique(np.concatenate([answer.places for answer in self.answers]))


@dataclass
class Pass:
    """Rows that are computed together, padded at the end to the length of the longest."""

    rows: list[Row]

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.rows), max(map(len, self.rows))

    def fits(self, limits: Limits) -> bool:
        rows, width = self.shape
        if rows * width > limits.tokens or rows * len(self.scored) > limits.scored:
            return False
        return limits.prompts is None or sum(row.prompts for row in self.rows) <= limits.prompts

    @cached_property
    def is_plain(self) -> bool:
        """Whether in every row each token follows all tokens before it, as in plain text."""
        return all(len(ancestors) == start for row in self.rows for ancestors, start, _ in row.chains)

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest prompt, prefix included."""
        return max(int(row.positions.max()) for row in self.rows) + 1

    def tokens(self) -> Tokens:
        return self._padded([row.tokens for row in self.rows])

    def positions(self) -> Tokens:
        return self._padded([row.positions for row in self.rows])

    def _padded(self, rows: list[Tokens]) -> Tokens:
        padded = np.zeros(self.shape, np.int64)
        for line, row in zip(padded, rows, strict=True):
            line[: len(row)] = row
        return padded

    def visible(self, prefix: int, window: int | None = None) -> NDArray[np.bool_]:
        """What each token attends to, (rows, tokens, prefix + tokens): all that it follows, itself included, or of that
        the last `window` tokens."""
        count, width = self.shape
        seen = np.ones((count, width, prefix + width), bool)
        seen[:, :, prefix:] = np.eye(width)
        for follows, row in zip(seen[:, :, prefix:], self.rows, strict=True):
            for ancestors, start, stop in row.chains:
                follows[start:stop, ancestors] = True
                follows[start:stop, start:stop] = np.tri(stop - start)
        if window is not None:
            positions = self.positions()
            keys = np.hstack([np.tile(np.arange(prefix), (count, 1)), positions])
            seen &= keys[:, None] > positions[:, :, None] - window
        return seen

    @cached_property
    def scored(self) -> Tokens:
        """Places in a row where logits are wanted, in one row at least: models compute the same places of all rows."""
        return np.unique(np.concatenate([row.scored for row in self.rows]))

    @cached_property
    def answers(self) -> list[Answer]:
        """With places among the logits of all rows, one row after the other."""
        return [self.answer(number, answer) for number, row in enumerate(self.rows) for answer in row.answers]

    def answer(self, number: int, answer: Answer) -> Answer:
        """An answer of the row of this number, with places among the logits of all rows."""
        places = number * len(self.scored) + np.searchsorted(self.scored, answer.places)
        return Answer(answer.request, places)


@dataclass
class Group:
    """Passes whose prompts all begin with the same `prefix` tokens; 0 where no prefix is worth keeping."""

    prefix: int
    passes: list[Pass]


def plan(requests: Sequence[Request], numbers: Iterable[int], limits: Limits) -> list[Group]:
    """Groups of passes that answer the requests of the given numbers."""
    trees = _prompt_trees(branches(requests, numbers), limits)
    return [
        Group(prefix, list(_passes(_rows(members, prefix, limits), limits)))
        for prefix, members in _groups(trees, limits)
    ]


def common_prefix(a: Tokens, b: Tokens) -> int:
    n = min(len(a), len(b))
    differ = a[:n] != b[:n]
    first = int(differ.argmax()) if n else 0
    return first if n and differ[first] else n


def sort_key(tokens: Tokens) -> bytes:
    """Big-endian bytes sort like the tokens they hold: a beginning right before all that begins with it."""
    return tokens.astype(">u4").tobytes()


def branches(requests: Sequence[Request], numbers: Iterable[int]) -> list[Branch]:
    """Distinct inputs in lexicographic order."""
    distinct: dict[bytes, Branch] = {}
    for number in numbers:
        request = requests[number]
        tokens = np.asarray(request.tokens, dtype=np.int64)
        branch = distinct.setdefault(sort_key(tokens), Branch(tokens, request.first_scored, []))
        branch.first_scored = min(branch.first_scored, request.first_scored)
        branch.requests.append((number, len(request.continuation)))
    return [distinct[key] for key in sorted(distinct)]


def _prompt_trees(branches: Iterable[Branch], limits: Limits) -> list[PromptTree]:
    trees: list[PromptTree] = []
    for branch in branches:
        if not trees or not trees[-1].takes(branch, limits):
            trees.append(PromptTree.of(branch))
    return trees


def _rows(trees: Iterable[PromptTree], prefix: int, limits: Limits) -> Iterator[Row]:
    row: list[PromptTree] = []
    size = scored = 0
    for tree in trees:
        shared = max(prefix, row[-1].shared_with(tree)) if row else prefix
        if row and (
            size + tree.size - shared > limits.row(prefix)
            or scored + tree.scored > limits.scored
            or len(row) == limits.prompts
        ):
            yield Row.of(row, prefix)
            row, size, scored, shared = [], 0, 0, prefix
        row.append(tree)
        size, scored = size + tree.size - shared, scored + tree.scored
    if row:
        yield Row.of(row, prefix)


def _passes(rows: Iterable[Row], limits: Limits) -> Iterator[Pass]:
    """The longest rows first: similar rows need little padding, and what does not fit into memory fails at once."""
    filled = Pass([])
    for row in sorted(rows, key=len, reverse=True):
        grown = Pass([*filled.rows, row])
        if filled.rows and not grown.fits(limits):
            yield filled
            grown = Pass([row])
        filled = grown
    if filled.rows:
        yield filled


class _Run(NamedTuple):
    """Neighbouring prompt trees, and the cheapest way to compute them: prefixes to cache, each with the trees behind
    it; a prefix of 0 is none."""

    trees: list[PromptTree]
    tokens: int
    cost: int  # tokens to compute
    groups: list[tuple[int, list[PromptTree]]]

    def behind(self, prefix: int) -> int:
        """Tokens to compute when `prefix` of them are cached for every tree."""
        return self.tokens - len(self.trees) * prefix


def _joined(parts: Sequence[_Run], prefix: int, pass_cost: int) -> _Run:
    """Runs that all begin with `prefix` tokens; these are cached if that saves more than a pass."""
    trees = [tree for part in parts for tree in part.trees]
    inside = [part for part in parts if part.behind(prefix) <= part.cost]
    others = [part for part in parts if part.behind(prefix) > part.cost]
    cost = prefix + pass_cost + sum(part.behind(prefix) for part in inside) + sum(part.cost for part in others)
    groups = [(prefix, [tree for part in inside for tree in part.trees])]
    if (apart := sum(part.cost for part in parts)) <= cost:
        cost, groups, others = apart, [], list(parts)
    groups += [group for part in others for group in part.groups]
    return _Run(trees, sum(part.tokens for part in parts), cost, groups)


def _groups(trees: Sequence[PromptTree], limits: Limits) -> list[tuple[int, list[PromptTree]]]:
    """Prompt trees by the prefix they are computed behind.

    A prefix is cached when that saves more than one full pass; below that, rows share enough by themselves. Prefixes
    nest (an instruction, then the demonstrations of a task), so the choice is made bottom-up over the tree.
    """
    if not trees:
        return []
    shared = [min(a.shared_with(b), a.first_scored, b.first_scored) for a, b in pairwise(trees)]
    unfinished: list[tuple[int, list[_Run]]] = [(0, [])]  # prefixes and their runs, each within the one before
    for tree, prefix in zip(trees, [*shared, -1], strict=True):  # the prefix shared with the next tree
        run = _Run([tree], tree.size, tree.size, [(0, [tree])])
        while unfinished and unfinished[-1][0] > prefix:
            common, parts = unfinished.pop()
            run = _joined([*parts, run], common, limits.tokens)
        if unfinished:
            if unfinished[-1][0] < prefix:
                unfinished.append((prefix, []))
            unfinished[-1][1].append(run)
    uncached = [tree for prefix, members in run.groups if not prefix for tree in members]
    cached = [group for group in run.groups if group[0]]
    return [(0, uncached), *cached] if uncached else cached
