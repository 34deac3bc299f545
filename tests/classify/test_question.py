from __future__ import annotations

from typing import Any

import datasets
import pytest
from lm_eval.api.task import ConfigurableTask

from lm_eval_proca.classify.question import Question, TextTask, Unusable, is_harmless
from lm_eval_proca.errors import TextsError
from lm_eval_proca.harness.documents import Document
from lm_eval_proca.harness.filters import ScoringPlan
from lm_eval_proca.scores.score_table import NO_GOLD

TICKETS = [{"Ticket body": " my parcel is late ", "2nd": "Oslo"}, {"Ticket body": "charged twice", "2nd": "Rome"}]
SHOWN = [
    ({"Ticket body": "broken on arrival", "2nd": "Bern"}, "Returns"),
    ({"Ticket body": "a refund", "2nd": "Pisa"}, "Billing"),
]
LABELS = ("Billing", "Shipping", "Returns")


def asked(question: Question, rows: list[dict]) -> list[tuple[str, str]]:
    """The contexts and continuations that a model gets, prompt after prompt."""
    task = TextTask(question, {})
    assert task.plan is not None
    plan = ScoringPlan({i: Document("eval", i, NO_GOLD) for i in range(len(rows))}, {}, task.plan.records)
    docs = [(i, question.doc(row)) for i, row in enumerate(rows)]
    return [one.args for prompt in task.prompts for one in task.requests_under(prompt, plan, docs, {})]


def stock_requests(**config: Any) -> list[tuple[str, str]]:
    """What lm-eval asks for a task of the same words, written as a YAML would have it."""
    rows = [{"body": row["Ticket body"], "place": row["2nd"], "team": 0} for row in TICKETS]
    task = ConfigurableTask(
        config={
            "task": "stock",
            "custom_dataset": lambda **_: {"test": datasets.Dataset.from_list(rows)},
            "test_split": "test",
            "output_type": "multiple_choice",
            "doc_to_target": "team",
            "doc_to_choice": list(LABELS),
            **config,
        }
    )
    task.build_all_requests(rank=0, world_size=1)
    return [one.args for one in task.instances]


def test_prompts_are_those_that_lm_eval_builds_from_a_yaml():
    samples = [{"body": row["Ticket body"], "place": row["2nd"], "team": LABELS.index(label)} for row, label in SHOWN]
    expected = stock_requests(
        description="Who answers?\n\n",
        doc_to_text="{{place}}: {{body.strip()}}\nTeam:",
        fewshot_config={"sampler": "first_n", "samples": samples},
        num_fewshot=2,
    )
    question = Question(
        labels=LABELS,
        templates=("{2nd}: {Ticket body}\nTeam:",),
        description="Who answers?\n\n",
        demonstrations=tuple(SHOWN),
    )
    assert asked(question, TICKETS) == expected


def test_a_template_in_jinja_is_lm_evals_own():
    rows = [{"body": row["Ticket body"]} for row in TICKETS]
    question = Question(labels=LABELS, templates=("{% if body %}{{body|upper}}{% endif %} ->",))
    assert question.columns == ("body",)
    assert asked(question, rows)[0] == ("MY PARCEL IS LATE ->", " Billing")


@pytest.mark.parametrize(
    ("template", "harmless"),
    [
        ("Ticket: {body}", True),
        ("{{body.strip()}} {{body | upper}}", True),
        ("{% if body %}{{ body.replace('a', 'b') }}{% else %}none{% endif %}", True),
        ("{{ body.__class__.__mro__ }}", False),
        ("{{ body['__class__'] }}", False),
        ("{{ body | attr('__class__') }}", False),
        ("{{ lipsum() }}", False),
        ("{{ lipsum.__globals__ }}", False),
        ("{{ '{0.__class__}'.format(body) }}", False),
        ("{% for x in body %}{{ x }}{% endfor %}", False),
        ("{% include 'file' %}", False),
        ("{{ body.strip()['__class__'] }}", False),
        ("{{ (body.__init__)() }}", False),
    ],
)
def test_templates_of_strangers_may_only_show_texts(template: str, harmless: bool):
    assert is_harmless(template) is harmless


def test_prompts_differ_in_templates_orders_or_draws():
    of_templates = Question(labels=LABELS, templates=("{2nd}:", "{2nd} =", "Place {2nd}:"))
    assert [context for context, _ in asked(of_templates, TICKETS[:1])[::3]] == ["Oslo:", "Oslo =", "Place Oslo:"]

    of_orders = Question(labels=LABELS, templates=("{2nd}:",), demonstrations=tuple(SHOWN), prompts=2)
    assert [context for context, _ in asked(of_orders, TICKETS[:1])[::3]] == [
        "Bern: Returns\n\nPisa: Billing\n\nOslo:",
        "Pisa: Billing\n\nBern: Returns\n\nOslo:",
    ]

    pool = tuple(({"2nd": f"Town{i}"}, LABELS[i % 3]) for i in range(30))
    of_draws = Question(labels=LABELS, templates=("{2nd}:",), demonstrations=pool, num_fewshot=2, prompts=4)
    contexts = [context for context, _ in asked(of_draws, TICKETS[:1])[::3]]
    assert len(set(contexts)) == 4
    assert {context.count("Town") for context in contexts} == {2}


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        (None, "is empty"),
        (float("nan"), "is empty"),
        (["a"], "is not text: body holds a list"),
        (True, "is not text: body holds a bool"),
        ("caf\udce9", "is not text: body holds bytes that are not UTF-8"),
    ],
)
def test_a_row_that_is_no_text_is_unusable(value: Any, why: str):
    with pytest.raises(Unusable, match=why):
        Question(labels=LABELS, templates=("{body}:",)).doc({"body": value})


def test_a_row_needs_its_text_and_not_every_column():
    question = Question(labels=LABELS, templates=("{place} {body}:",), text=("body",))
    assert question.doc({"place": None, "body": 7}) == {"place": "", "body": "7"}
    with pytest.raises(Unusable, match="is empty"):
        question.doc({"place": "Oslo", "body": ""})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"templates": ()}, "needs a template"),
        ({"templates": ("Team:",)}, "shows no column"),
        ({"templates": ('{"text": {body}}',)}, "brace that is not around a column"),
        ({"templates": ("{{body:",)}, "not valid Jinja"),
        ({"templates": ("{a b} {a_b}",)}, "too much alike"),
        ({"labels": ("good", " ")}, "is no word"),
        ({"text": ("title",)}, "No template shows the text column title"),
        ({"prompts": 3}, "Several prompts need demonstrations or several templates"),
        ({"demonstrations": (({"body": "x"}, "ugly"),)}, "label 'ugly'; the labels are good, bad"),
        ({"demonstrations": (({"body": " "}, "bad"),)}, "A demonstration is empty"),
        ({"num_fewshot": 1}, "1 demonstrations are wanted in a prompt, but there are 0"),
    ],
)
def test_mistakes_are_told_in_a_sentence(wrong: dict[str, Any], sentence: str):
    with pytest.raises(TextsError, match=sentence):
        Question(**{"labels": ("good", "bad"), "templates": ("{body}:",), **wrong})
