"""What a model is asked about a text: labels, templates and demonstrations, and the task of the harness that asks it.

There is one way to build a prompt, that of :class:`CalibratedTask`. A question only writes its configuration.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import datasets
from jinja2 import Environment, TemplateError, meta, nodes

from lm_eval_proca.errors import TextsError
from lm_eval_proca.harness.documents import CONTENT_FREE_TEXTS, UnlabeledDoc
from lm_eval_proca.harness.prompts import TEMPLATES
from lm_eval_proca.harness.task import DEFAULT_SEED, CalibratedTask
from lm_eval_proca.scores.fitting import RAW

Row = Mapping[str, Any]

_COLUMN = re.compile(r"\{([^{}]+)\}")
HARMLESS = (nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.If, nodes.CondExpr)
HARMLESS_METHODS = {"strip", "lstrip", "rstrip", "trim", "lower", "upper", "title", "capitalize", "replace", "truncate"}
"""Methods and filters of texts."""

_GOLD = "gold label"
"""The column of a demonstration's label; the name of a text column has no blank, see :func:`_name`."""


class Unusable(Exception):
    """Why a row can have no label, as it follows the number of the row: "is empty"."""


class DamagedRow(dict[str, Any]):
    """A row of a file that cannot be read, with what is known of it; `reason` says why."""

    def __init__(self, reason: str, known: Row | None = None) -> None:
        super().__init__(known or {})
        self.reason = reason


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a model is asked about each text.

    Attributes
    ----------
    labels : tuple of str
        The label words.
    templates : tuple of str
        One for each prompt, or one for all: `"Ticket: {body}\\nTeam:"`, or with `{{` in lm-eval's own form, Jinja.
    description : str
        What stands before everything else.
    demonstrations : tuple of (row, label)
        Labeled examples, which a prompt shows in this order.
    num_fewshot : int or None
        How many of them a prompt shows, drawn by `seed`; None shows all of them.
    prompts : int or None
        How many prompts; None is one for each template.
    vary : str or None
        What differs between prompts, as in `proca.vary`; None is the first of templates, draws and orders that can.
    text : tuple of str
        The columns of the text proper: a row in which all of them are blank is unusable. () is all of the templates'.
    seed : int
        Of the draw of demonstrations.
    """

    labels: tuple[str, ...]
    templates: tuple[str, ...]
    description: str = ""
    demonstrations: tuple[tuple[Row, str], ...] = ()
    num_fewshot: int | None = None
    prompts: int | None = None
    vary: str | None = None
    text: tuple[str, ...] = ()
    seed: int = DEFAULT_SEED

    def __post_init__(self) -> None:
        if not self.templates:
            raise TextsError("A classifier needs a template, such as 'Ticket: {body}\\nTeam:'.")
        if blank := [label for label in self.labels if not (isinstance(label, str) and label.strip())]:
            raise TextsError(f"The label {blank[0]!r} is no word; give label words, such as Billing,Shipping.")
        if unshown := [column for column in self.text if column not in self.columns]:
            raise TextsError(
                f"No template shows the text column {unshown[0]}; they show {', '.join(self.columns)}, so write "
                f"{{{unshown[0]}}} where the text shall stand."
            )
        if len(set(map(_name, self.columns))) < len(self.columns):
            raise TextsError(f"Two of the columns {', '.join(self.columns)} are too much alike; rename one.")
        if self.n_prompts > 1 and len(self.templates) == 1 and not self.demonstrations:
            raise TextsError(
                "Several prompts need demonstrations or several templates; give one of them, or one prompt."
            )
        if (self.num_fewshot or 0) > len(self.demonstrations):
            raise TextsError(
                f"{self.num_fewshot} demonstrations are wanted in a prompt, but there are {len(self.demonstrations)}."
            )
        for row, label in self.demonstrations:
            self._shown(row)
            if label not in self.labels:
                raise TextsError(f"A demonstration has the label {label!r}; the labels are {', '.join(self.labels)}.")

    @property
    def n_prompts(self) -> int:
        return len(self.templates) if self.prompts is None else self.prompts

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that the templates show, in the order in which they appear."""
        return columns_of(self.templates)

    def doc(self, row: Row) -> UnlabeledDoc:
        """The document of a row, without the blanks around its texts; raises Unusable."""
        if isinstance(row, DamagedRow):
            raise Unusable(row.reason)
        texts = {column: _text(column, row.get(column)) for column in self.columns}
        if not any(texts[column] for column in self.text or self.columns):
            raise Unusable("is empty")
        return UnlabeledDoc({_name(column): text for column, text in texts.items()})

    def can_ask(self, row: Row) -> bool:
        """Whether a row has a text; the model may still find it too long."""
        try:
            self.doc(row)
        except Unusable:
            return False
        return True

    @property
    def config(self) -> dict[str, Any]:
        """Of a task whose only evaluated document is content-free: it stands for texts, which come later."""
        first, *others = ({"doc_to_text": _jinja(template)} for template in self.templates)
        drawn = self.num_fewshot is not None and self.num_fewshot < len(self.demonstrations)
        shots = len(self.demonstrations) if self.num_fewshot is None else self.num_fewshot
        vary = self.vary or (TEMPLATES if len(self.templates) > 1 else None)
        return {
            **first,
            "task": "classify",
            "custom_dataset": self._dataset,
            "test_split": "test",
            "fewshot_split": "demonstrations" if self.demonstrations else None,
            "fewshot_config": {"sampler": "default" if drawn else "first_n"},
            "num_fewshot": shots,
            "output_type": "multiple_choice",
            "description": self.description,
            "doc_to_target": _GOLD,
            "doc_to_choice": list(self.labels),
            "filter_list": [{"name": RAW, "filter": [{"function": "take_first"}]}],
            "calibration": {
                "text_fields": [_name(column) for column in self.columns],
                "estimate_split": "test",
                "estimate_size": len(self.labels),
                "prompts": self.n_prompts,
                "templates": others,
                **({"vary": vary} if vary and self.n_prompts > 1 else {}),
            },
        }

    def _dataset(self, **metadata: Any) -> datasets.DatasetDict:
        blank = {_name(column): CONTENT_FREE_TEXTS[0] for column in self.columns}
        splits = {"test": [{**blank, _GOLD: 0}]}
        if self.demonstrations:
            splits["demonstrations"] = [
                {**self._shown(row), _GOLD: self.labels.index(label)} for row, label in self.demonstrations
            ]
        return datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})

    def _shown(self, row: Row) -> UnlabeledDoc:
        try:
            return self.doc(row)
        except Unusable as reason:
            raise TextsError(f"A demonstration {reason}; leave it out.") from None


class TextTask(CalibratedTask):
    """The task of the harness that asks a question, with its prompts and their records.

    `metadata` are the arguments of the model, as lm-eval hands them to a task.
    """

    def __init__(self, question: Question, metadata: Row) -> None:
        self.question = question
        super().__init__(config={**question.config, "metadata": dict(metadata)})
        self.set_fewshot_seed(question.seed)
        self.prompts = self._make_prompts()
        self.plan = self._make_plan(None, None, {})


def _text(column: str, value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise Unusable(f"is not text: {column} holds a {type(value).__name__}")
    text = str(value).strip()
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unusable(f"is not text: {column} holds bytes that are not UTF-8") from None
    return text


def rows_of_texts(texts: Any, columns: Sequence[str]) -> list[Row]:
    """Texts, or rows with a text in each column, as rows: a sequence or an array, or a data frame."""
    if isinstance(texts, (str, bytes, Mapping)):
        raise TextsError("Give a list of texts, not a single one.")
    listed = texts.to_dict("records") if hasattr(texts, "columns") else list(texts)
    if len(columns) > 1 and (bare := [one for one in listed if not isinstance(one, Mapping)]):
        raise TextsError(
            f"The template shows the columns {', '.join(columns)}, but there is a bare {type(bare[0]).__name__} among "
            f"the texts; give dictionaries with these keys, or a data frame."
        )
    return [one if isinstance(one, Mapping) else {columns[0]: one} for one in listed]


# ------------------------------------------------------------------ templates


def columns_of(templates: Sequence[str]) -> tuple[str, ...]:
    """The columns that templates show, in the order in which they appear."""
    return tuple(dict.fromkeys(column for template in templates for column in _columns(template)))


def _is_jinja(template: str) -> bool:
    return "{{" in template or "{%" in template


def _columns(template: str) -> list[str]:
    if _is_jinja(template):
        try:
            found = meta.find_undeclared_variables(Environment().parse(template))
        except TemplateError as error:
            raise TextsError(f"The template {template!r} is not valid Jinja ({error}).") from None
        names = sorted(found, key=template.index)
    else:
        names = list(dict.fromkeys(_COLUMN.findall(template)))
        if {"{", "}"} & set(_COLUMN.sub("", template)):
            raise TextsError(
                f"The template {template!r} has a brace that is not around a column; for braces in the text write it "
                f"in Jinja, with {{{{column}}}}."
            )
    if not names:
        raise TextsError(f"The template {template!r} shows no column; write one in braces, such as {{text}}.")
    return names


def _jinja(template: str) -> str:
    return template if _is_jinja(template) else _COLUMN.sub(lambda found: f"{{{{{_name(found[1])}}}}}", template)


def is_harmless(template: str) -> bool:
    """Whether a template only shows and trims texts. lm-eval renders any Jinja, which can run any code."""
    return all(map(_is_harmless, Environment().parse(template).find_all(nodes.Node)))


def _is_harmless(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Call):
        return isinstance(node.node, nodes.Getattr)  # which is a node of its own
    if isinstance(node, nodes.Getattr):
        return node.attr in HARMLESS_METHODS
    return node.name in HARMLESS_METHODS if isinstance(node, nodes.Filter) else isinstance(node, HARMLESS)


def _name(column: str) -> str:
    """What Jinja can call a column of any name."""
    return re.sub(r"\W|^(?=\d)", "_", column)
