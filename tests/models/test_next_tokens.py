"""Which questions an engine is asked for a list of requests, and how its answers are put together."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lm_eval_proca.models.engine import Questions, questions, read_answers
from lm_eval_proca.models.prefix_tree import Request

CONTEXT = [7, 8, 9]


def request(context: list[int], continuation: list[int]) -> Request:
    return Request([*context, *continuation][:-1], continuation)


def asked(requests: list[Request], max_tokens: int = 128) -> list[tuple[list[int], list[int]]]:
    return [(one.prompt.tolist(), one.tokens) for one in questions(requests, range(len(requests)), max_tokens).asked]


def test_labels_of_one_token_are_one_question_for_a_document() -> None:
    documents = [[*CONTEXT, n] for n in (3, 1, 2)]
    requests = [request(context, [label]) for context in documents for label in (20, 21, 22)]
    assert asked(requests) == [([7, 8, 9, n], [20, 21, 22]) for n in (1, 2, 3)]


def test_longer_labels_continue_behind_the_document() -> None:
    """DBPedia's way: most labels have one token, a few more, and some begin alike."""
    labels = [[20], [21, 5], [21, 6, 1], [22]]
    assert asked([request(CONTEXT, label) for label in labels]) == [
        ([7, 8, 9], [20, 22, 21]),
        ([7, 8, 9, 21], [5, 6]),
        ([7, 8, 9, 21, 6], [1]),
    ]


def test_a_label_that_begins_another_and_equal_requests_cost_nothing_more() -> None:
    labels = [[20], [20, 21], [20], [20, 21]]
    assert asked([request(CONTEXT, label) for label in labels]) == [([7, 8, 9], [20]), ([7, 8, 9, 20], [21])]


def test_a_document_that_continues_another_is_asked_after_it() -> None:
    requests = [request([*CONTEXT, 1], [20]), request(CONTEXT, [20])]
    assert [prompt for prompt, _ in asked(requests)] == [[7, 8, 9], [7, 8, 9, 1]]


def test_more_tokens_than_an_engine_takes_are_asked_in_parts() -> None:
    requests = [request(CONTEXT, [label]) for label in range(100, 105)]
    assert asked(requests, max_tokens=2) == [(CONTEXT, [100, 101]), (CONTEXT, [102, 103]), (CONTEXT, [104])]


def test_only_the_chosen_requests_are_asked() -> None:
    requests = [request([n], [20]) for n in range(4)]
    plan = questions(requests, [1, 3])
    assert [one.prompt.tolist() for one in plan.asked] == [[1], [3]]
    assert [answer.request for answer in plan.answers] == [1, 3]


def log_probability(prompt: list[int], token: int) -> float:
    """Something that depends on every token before it."""
    return -random.Random(f"{prompt} {token}").random()


def engine(plan: Questions, order: list[int]) -> list[tuple[int, dict[int, float]]]:
    """Answers as vLLM gives them: the tokens asked for and the most likely one, here of a vocabulary of six."""
    answers = []
    for place in order:
        prompt, tokens = plan.asked[place].prompt.tolist(), plan.asked[place].tokens
        everything = {token: log_probability(prompt, token) for token in range(6)}
        best = max(everything, key=everything.__getitem__)
        answers.append((place, {token: everything[token] for token in [best, *tokens]}))
    return answers


sequences = st.lists(st.integers(0, 5), min_size=1, max_size=4)


@given(st.lists(st.tuples(sequences, sequences), min_size=1, max_size=12), st.integers(1, 3), st.randoms())
def test_any_list_of_requests_gets_what_token_by_token_scoring_gives(
    pairs: list[tuple[list[int], list[int]]], max_tokens: int, rnd: random.Random
) -> None:
    requests = [request(context, continuation) for context, continuation in pairs]
    plan = questions(requests, range(len(requests)), max_tokens)
    order = list(range(len(plan.asked)))
    rnd.shuffle(order)
    answers = dict(read_answers(plan, requests, engine(plan, order)))
    assert sorted(answers) == list(range(len(requests)))
    for number, (context, continuation) in enumerate(pairs):
        total, greedy = 0.0, True
        for end, token in enumerate(continuation):
            prompt = [*context, *continuation[:end]]
            total += log_probability(prompt, token)
            greedy &= token == max(range(6), key=lambda other, prompt=prompt: log_probability(prompt, other))
        assert answers[number][0] == pytest.approx(total)
        assert answers[number][1] is greedy


def test_an_answer_is_there_as_soon_as_its_predictions_are() -> None:
    requests = [request([1], [3]), request([2], [3, 4])]
    plan = questions(requests, range(2))
    given = iter(engine(plan, [0, 1, 2]))
    answers = read_answers(plan, requests, given)
    assert next(answers)[0] == 0
    assert len(list(given)) == 2  # the engine was not asked for more


def test_equal_probabilities_count_as_greedy_as_in_stock() -> None:
    requests = [request([1], [3])]
    plan = questions(requests, range(1))
    assert dict(read_answers(plan, requests, [(0, {3: -1.0, 5: -1.0})])) == {0: (-1.0, True)}
    [(_, (value, greedy))] = read_answers(plan, requests, [(0, {3: -math.inf, 5: -1.0})])
    assert (value, greedy) == (-math.inf, False)
