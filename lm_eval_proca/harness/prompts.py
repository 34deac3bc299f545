"""The prompts of a run. A prompt is a value: which demonstrations, in which order, in which template.

Prompt 0 is the one that a run with a single prompt has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import factorial
from random import Random
from typing import Any

from lm_eval_proca.errors import TaskError

DEMONSTRATIONS, ORDERS, TEMPLATES = KINDS = ("demonstrations", "orders", "templates")
"""What may differ between the prompts of a run."""

SEED_STEP = 1000
"""Prompt k draws the demonstrations that `--seed` s + 1000 k draws, so that each can be run alone."""

CANDIDATES = 200
"""Of so many orders the one is taken that repeats the fewest places."""


@dataclass(frozen=True)
class Prompt:
    """One way to ask."""

    number: int = 0
    seed_shift: int = 0
    """Added to the seed of the demonstrations."""
    order: tuple[int, ...] | None = None
    """Places of the drawn demonstrations; None leaves them as they were drawn."""
    template: int | None = None
    """Which template of the task, counted from 1, its own; None is the task's own too."""


def kind_of_prompts(task: str, *, asked: str | None, shots: int, fixed: bool, templates: int) -> str:
    """What differs between several prompts: what was asked for, else what can.

    `fixed` demonstrations are not drawn; `templates` is how many the task has beside its own.
    """
    usual = ORDERS if fixed else DEMONSTRATIONS
    kind = asked or (usual if shots else TEMPLATES)
    if kind == TEMPLATES and not templates:
        at_none = "at 0 shots only templates differ, and " if not (shots or asked) else ""
        raise TaskError(
            f"{task}: {at_none}the task has no further template; list some as `templates` in its `calibration:` "
            f"block, or ask for shots."
        )
    if kind != TEMPLATES and not shots:
        raise TaskError(f"{task}: at 0 shots there are no {kind} to vary; only templates differ there.")
    if kind == DEMONSTRATIONS and fixed:
        raise TaskError(f"{task}: its demonstrations are fixed, so that only {ORDERS} of them differ.")
    return kind


def make_prompts(task: str, kind: str, count: int, *, shots: int, seed: int | None, templates: int) -> list[Prompt]:
    """`count` different prompts."""
    if kind == DEMONSTRATIONS:
        return [Prompt(k, seed_shift=SEED_STEP * k) for k in range(count)]
    if kind == ORDERS:
        if count > factorial(shots):
            raise TaskError(
                f"{task}: {shots} demonstrations have only {factorial(shots)} orders; set proca.prompts to no more."
            )
        orders = stratified_orders(shots, count, seed)
        return [Prompt(k, order=order if k else None) for k, order in enumerate(orders)]
    if count > templates + 1:
        raise TaskError(f"{task}: it has {templates + 1} templates; set proca.prompts to that or less.")
    return [Prompt(k, template=k + 1 if k else None) for k in range(count)]


def stratified_orders(size: int, count: int, seed: int | None) -> list[tuple[int, ...]]:
    """`count` different orders, the first as things stand; each thing is at each place about equally often.

    Rotations would do that too, but they keep neighbours together.
    """
    rnd = Random(f"orders-{seed}")
    everything = list(permutations(range(size))) if factorial(size) <= CANDIDATES else None
    orders = [tuple(range(size))]
    while len(orders) < count:
        drawn = everything or [tuple(rnd.sample(range(size), size)) for _ in range(CANDIDATES)]
        candidates = [order for order in rnd.sample(drawn, len(drawn)) if order not in orders]
        orders += [min(candidates, key=lambda order: _repeated_places(order, orders))] if candidates else []
    return orders


def _repeated_places(order: Sequence[int], others: Sequence[Sequence[int]]) -> int:
    return sum(a == b for other in others for a, b in zip(order, other, strict=True))


def template_of(task: str, templates: Sequence[Mapping[str, Any]], number: int | None) -> dict[str, Any]:
    """What a template, counted from 1, the task's own, changes in the configuration of the task."""
    if number in (None, 1):
        return {}
    if number > len(templates) + 1:
        raise TaskError(f"{task}: there is no template {number}; the task has {len(templates) + 1}.")
    return dict(templates[number - 2])


def read_templates(task: str, given: Sequence[Any]) -> tuple[dict[str, Any], ...]:
    """The `templates` of a `calibration:` block: each has a `doc_to_text`, a `doc_to_choice`, or both."""
    for template in given:
        if not isinstance(template, Mapping) or not template or set(template) - {"doc_to_text", "doc_to_choice"}:
            raise TaskError(f"{task}: a template has doc_to_text, doc_to_choice or both, got {template!r}.")
        words = template.get("doc_to_choice", [])
        if not isinstance(template.get("doc_to_text", ""), str) or not isinstance(words, (list, tuple)):
            raise TaskError(f"{task}: a template has a text and a list of label words, got {template!r}.")
    return tuple(dict(template) for template in given)
