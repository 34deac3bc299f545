"""Whether a task of lm-eval has one fixed list of labels, which calibration needs: as far as its YAML tells."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PYTHON = "a task written in Python"
SEVERAL_INPUTS = "several inputs per document"
SEVERAL_TARGETS = "several gold labels per document"


class Obstacle(Exception):
    """What stands in the way of calibrating a task; it then runs unchanged."""


@dataclass(frozen=True)
class Verdict:
    """The labels of a task, or what stands in the way of calibrating it."""

    labels: tuple[str, ...] | None = None
    obstacle: str | None = None
    final: bool = True
    """False where the choices are known only once the requests are: a run then decides from these."""


def judge(config: Mapping[str, Any]) -> Verdict:
    """Of a resolved configuration, with functions as such or as lm-eval's index has them: absolute paths."""
    if "class" in config and not str(config["class"]).endswith("lm_eval_proca.CalibratedTask"):
        return Verdict(obstacle=PYTHON)
    kind = config.get("output_type") or "generate_until"
    if kind != "multiple_choice":
        return Verdict(obstacle="generates text" if kind == "generate_until" else f"output_type is {kind}")
    if isinstance(config.get("doc_to_text"), int):
        return Verdict(obstacle=SEVERAL_INPUTS)
    if isinstance(config.get("doc_to_target"), list):
        return Verdict(obstacle=SEVERAL_TARGETS)
    choices = config.get("doc_to_choice")
    if choices is None:
        return Verdict(obstacle="no doc_to_choice")
    if callable(choices) or (isinstance(choices, str) and os.path.isabs(choices)):
        return Verdict(obstacle="choices come from a function", final=False)
    if isinstance(choices, str):
        return Verdict(obstacle="choices come from each document", final=False)
    labels = tuple(str(word) for word in (choices.values() if isinstance(choices, Mapping) else choices))
    try:
        check_words(labels)
    except Obstacle as obstacle:
        return Verdict(obstacle=str(obstacle))
    return Verdict(labels)


def check_words(labels: tuple[str, ...]) -> None:
    """Labels must be told apart."""
    if len(labels) < 2:
        raise Obstacle("fewer than two labels")
    if len({word.strip() for word in labels}) < len(labels):
        raise Obstacle("two labels are written alike")
