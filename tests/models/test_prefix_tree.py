"""A plan computes, for every request, exactly the tokens before each prediction: nothing else and nothing missing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_proca.models.prefix_tree import Group, Limits, Request, plan

# Few distinct tokens, so that sequences begin alike, repeat, and are prefixes of each other.
token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=12)
prefixes = st.sampled_from([[], [7] * 9, [7] * 5 + [8] * 4, [9]])


@st.composite
def requests(draw: st.DrawFn) -> Request:
    tokens = draw(prefixes) + draw(token_lists)
    scored = draw(st.integers(1, min(3, len(tokens))))
    return Request(tokens, draw(st.lists(st.integers(0, 2), min_size=scored, max_size=scored)))


limits = st.builds(Limits, st.integers(1, 30), st.integers(1, 8), st.none() | st.integers(1, 4))


def computed(groups: list[Group]) -> int:
    """Tokens that all passes together compute, the encoding of prefixes included."""
    return sum(group.prefix + sum(len(pack.tokens) for pack in group.packs) for group in groups)


@given(st.lists(requests(), max_size=40), limits)
def test_every_prediction_is_made_from_the_tokens_before_it(requests: list[Request], limits: Limits) -> None:
    answered = []
    for group in plan(requests, range(len(requests)), limits):
        for pack in group.packs:
            follows = pack.ancestry()
            prefix = pack.last_branch.tokens[: group.prefix].tolist()
            assert pack.is_chain == bool((follows == np.tri(len(follows), dtype=bool)).all())
            for answer in pack.answers:
                request = requests[answer.request]
                assert len(answer.rows) == len(request.continuation)
                for end, row in enumerate(answer.rows, start=request.first_scored + 1):
                    seen = follows[pack.scored[row]]
                    assert prefix + pack.tokens[seen].tolist() == list(request.tokens[:end])
                    assert pack.positions[seen].tolist() == list(range(group.prefix, end))
                answered.append(answer.request)
    assert sorted(answered) == list(range(len(requests)))


@given(st.lists(requests(), max_size=40), limits)
def test_a_pass_stays_within_its_limits_unless_one_document_exceeds_them(
    requests: list[Request], limits: Limits
) -> None:
    for group in plan(requests, range(len(requests)), limits):
        for pack in group.packs:
            contexts = {tuple(requests[a.request].tokens[: requests[a.request].first_scored + 1]) for a in pack.answers}
            roots = {c for c in contexts if not any(c[: len(other)] == other for other in contexts - {c})}
            if len(roots) > 1:
                assert len(pack.tokens) <= limits.tokens
                assert len(pack.scored) <= limits.scored
            if limits.documents is not None:
                assert len(roots) <= limits.documents


@given(st.lists(requests(), max_size=40), limits)
def test_sharing_never_costs_more_tokens_than_it_saves(requests: list[Request], limits: Limits) -> None:
    distinct = {tuple(request.tokens) for request in requests}
    assert computed(plan(requests, range(len(requests)), limits)) <= sum(len(tokens) for tokens in distinct)


def prompts(prefix: list[int], documents: int, labels: list[list[int]], start: int = 1000) -> list[Request]:
    return [
        Request([*prefix, start + d, 5, *label[:-1]], label)
        for d in range(documents)
        for label in labels
    ]  # fmt: skip


def test_labels_of_a_document_cost_only_their_own_tokens() -> None:
    """Fourteen labels, two of them of two tokens: prefix once, two tokens a document, one token for each long label."""
    labels = [[i] for i in range(12)] + [[20, 1], [21, 1]]
    (group,) = plan(prompts(list(range(100)), 50, labels), range(50 * 14), Limits(64, 1000))
    assert group.prefix == 100
    assert computed([group]) == 100 + 50 * (2 + 2)
    assert [len(pack.tokens) for pack in group.packs] == [64, 64, 64, 8]


def test_labels_that_are_prefixes_of_each_other_share_a_branch() -> None:
    (group,) = plan(prompts([], 1, [[1], [1, 2], [1, 2, 3]]), range(3), Limits(64, 64))
    assert group.packs[0].is_chain
    assert len(group.packs[0].tokens) == 4


def test_tasks_mixed_in_one_list_are_told_apart() -> None:
    """Both begin with the same instruction, but each has demonstrations worth a cache of its own."""
    first, second = [0] * 5 + [1] * 60, [0] * 5 + [2] * 80
    mixed = [
        r for pair in zip(prompts(first, 30, [[3], [4]]), prompts(second, 30, [[3], [4]]), strict=True) for r in pair
    ]
    groups = plan(mixed, range(len(mixed)), Limits(32, 1000))
    assert sorted(group.prefix for group in groups) == [65, 85]
    assert computed(groups) == 65 + 85 + 60 * 2


def test_a_prefix_that_saves_little_is_not_cached() -> None:
    assert [group.prefix for group in plan(prompts([0, 1], 10, [[3]]), range(10), Limits(32, 1000))] == [0]


def test_a_prefix_never_contains_a_prediction() -> None:
    """Requests of one context: the position before the continuation must still be computed in a pass."""
    requests = [Request([*range(50), i], [i, 3]) for i in range(100, 200)]
    for group in plan(requests, range(len(requests)), Limits(16, 1000)):
        assert group.prefix <= 49


def test_deep_nesting_needs_no_recursion() -> None:
    requests = [Request([1] * length + [2], [0]) for length in range(1, 1500)]
    groups = plan(requests, range(len(requests)), Limits(64, 1000))
    assert sum(len(pack.answers) for group in groups for pack in group.packs) == len(requests)


@pytest.mark.parametrize("documents", [1, 3])
def test_documents_of_a_pass_are_bounded(documents: int) -> None:
    (group,) = plan(prompts(list(range(100)), 7, [[1], [2, 3], [3, 3]]), range(21), Limits(512, 1000, documents))
    assert max(len({a.request // 3 for a in pack.answers}) for pack in group.packs) == documents
