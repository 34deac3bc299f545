"""A plan computes, for every request, exactly the tokens before each prediction: nothing else and nothing missing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_proca.models.prefix_tree import Group, Limits, Request, Row, plan

# Few distinct tokens, so that sequences begin alike, repeat, and are prefixes of each other.
token_lists = st.lists(st.integers(0, 2), min_size=1, max_size=12)
prefixes = st.sampled_from([[], [7] * 9, [7] * 5 + [8] * 4, [9]])


@st.composite
def requests(draw: st.DrawFn) -> Request:
    tokens = draw(prefixes) + draw(token_lists)
    scored = draw(st.integers(1, min(3, len(tokens))))
    return Request(tokens, draw(st.lists(st.integers(0, 2), min_size=scored, max_size=scored)))


limits = st.builds(Limits, st.integers(1, 30), st.integers(1, 8), st.none() | st.integers(1, 4))


def rows_of(groups: list[Group]) -> Iterator[tuple[Group, Row]]:
    return ((group, row) for group in groups for scored in group.passes for row in scored.rows)


def computed(groups: list[Group]) -> int:
    """Tokens that all passes together compute, without padding, the encoding of prefixes included."""
    return sum(group.prefix for group in groups) + sum(len(row) for _, row in rows_of(groups))


def contexts_of(row: Row, requests: list[Request]) -> int:
    """Contexts of a row none of which begins with another: what a document is, told from the requests alone."""
    contexts = {tuple(requests[a.request].tokens[: requests[a.request].first_scored + 1]) for a in row.answers}
    return sum(not any(c[: len(other)] == other for other in contexts - {c}) for c in contexts)


@given(st.lists(requests(), max_size=40), limits, st.none() | st.integers(1, 12))
def test_every_prediction_is_made_from_the_tokens_before_it(
    requests: list[Request], limits: Limits, window: int | None
) -> None:
    answered = []
    for group in plan(requests, range(len(requests)), limits):
        first = group.passes[0].answers[0].request
        prefix = list(requests[first].tokens[: group.prefix])
        for scored in group.passes:
            tokens, positions, visible = scored.tokens(), scored.positions(), scored.visible(group.prefix, window)
            assert scored.longest == max(len(requests[answer.request].tokens) for answer in scored.answers)
            for answer in scored.answers:
                request = requests[answer.request]
                assert len(answer.places) == len(request.continuation)
                for end, place in enumerate(answer.places, start=request.first_scored + 1):
                    row, i = divmod(place, len(scored.scored))
                    seen = visible[row, scored.scored[i]]
                    begin = 0 if window is None else max(0, end - window)
                    assert np.array([*prefix, *tokens[row]])[seen].tolist() == list(request.tokens[begin:end])
                    assert np.array([*range(group.prefix), *positions[row]])[seen].tolist() == list(range(begin, end))
                    if scored.is_plain:
                        stop = group.prefix + scored.scored[i]
                        assert seen.tolist() == [begin <= j <= stop for j in range(len(seen))]
                answered.append(answer.request)
    assert sorted(answered) == list(range(len(requests)))


@given(st.lists(requests(), max_size=40), limits)
def test_a_pass_stays_within_its_limits_unless_one_document_exceeds_them(
    requests: list[Request], limits: Limits
) -> None:
    for group in plan(requests, range(len(requests)), limits):
        for scored in group.passes:
            documents = sum(contexts_of(row, requests) for row in scored.rows)
            if len(scored.rows) > 1:
                assert len(scored.rows) * max(map(len, scored.rows)) <= limits.tokens
                assert len(scored.rows) * len(scored.scored) <= limits.scored
            if limits.prompts is not None:
                assert documents <= limits.prompts
            for row in scored.rows:
                if contexts_of(row, requests) > 1:
                    assert len(row) <= limits.row(group.prefix)
                    assert len(row.scored) <= limits.scored


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
    assert [scored.shape for scored in group.passes] == [(2, 32)] * 3 + [(1, 8)]


def test_labels_that_are_prefixes_of_each_other_share_a_branch() -> None:
    (group,) = plan(prompts([], 1, [[1], [1, 2], [1, 2, 3]]), range(3), Limits(64, 64))
    assert group.passes[0].is_plain
    assert group.passes[0].shape == (1, 4)


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
    assert sum(len(row.answers) for _, row in rows_of(groups)) == len(requests)


@pytest.mark.parametrize("documents", [1, 3])
def test_documents_of_a_pass_are_bounded(documents: int) -> None:
    (group,) = plan(prompts(list(range(100)), 7, [[1], [2, 3], [3, 3]]), range(21), Limits(512, 1000, documents))
    assert max(len({a.request // 3 for a in scored.answers}) for scored in group.passes) == documents


def test_rows_of_similar_length_are_padded_little() -> None:
    lengths = [3, 50, 4, 49, 5, 48, 6, 47]
    requests = [Request([100 + i] * n, [1]) for i, n in enumerate(lengths)]
    (group,) = plan(requests, range(8), Limits(200, 1000, 16))
    padded = sum(rows * width for rows, width in (scored.shape for scored in group.passes))
    assert padded <= 1.1 * sum(lengths)
