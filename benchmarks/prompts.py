"""Prompts of the project's own tasks, from real rows or, where there are none, from made ones."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment
from lm_eval.api.instance import Instance

from lm_eval_proca.representations import Asked, Layer, Wanted

TASKS = Path(__file__).parent.parent / "task_configs"
MADE_WORDS = {"proca_agnews": 38, "proca_ap": 70, "proca_dbpedia": 50, "proca_rte": 35}


@dataclass
class Prompts:
    """Requests for n documents behind one prompt, and the right label of each."""

    requests: list[Instance]
    labels: list[str]
    gold: list[int]

    def asking(self, layers: Sequence[Layer] = ()) -> list[Instance]:
        """The same requests; the first label of each document asks for these layers or, without any, for probes."""
        words = tuple(request.args[1] for request in self.requests[: len(self.labels)])
        asked = [copy(request) for request in self.requests]
        for request in asked[:: len(self.labels)]:
            request.arguments = Asked.of(request.args, Wanted(tuple(layers), not layers, words))
        return asked


def build(task: str, shots: int, documents: int, data_dir: Path | None, draw: int = 0) -> Prompts:
    """Another `draw` has the same documents behind other demonstrations."""
    config = yaml.safe_load((TASKS / f"{task}.yaml").read_text(encoding="utf-8"))
    template = Environment().from_string(config["doc_to_text"])
    labels, target = config["doc_to_choice"], config.get("doc_to_target", "label")
    evaluated, drawn = _rows(config, data_dir, documents, shots * (draw + 1))
    demonstrations = drawn[len(drawn) - shots :]
    prompt = config.get("description", "") + "".join(
        f"{template.render(row)} {labels[row[target]]}\n\n" for row in demonstrations
    )
    return Prompts(
        [
            Instance("loglikelihood", row, (prompt + template.render(row), f" {label}"), number)
            for row in evaluated
            for number, label in enumerate(labels)
        ],
        labels,
        [row[target] for row in evaluated],
    )


def _rows(config: dict[str, Any], data_dir: Path | None, documents: int, shots: int) -> tuple[list[dict], list[dict]]:
    calibration = config["calibration"]
    if data_dir is None:
        made = random.Random(0)
        target, labels = config.get("doc_to_target", "label"), len(config["doc_to_choice"])
        fields = calibration["text_fields"]
        length = MADE_WORDS.get(config["task"], 18)
        rows = [
            {**{field: _made_text(made, length // len(fields)) for field in fields}, target: made.randrange(labels)}
            for _ in range(documents + shots)
        ]
        return rows[:documents], rows[documents:]
    default = config.get("dataset_name") or config["dataset_path"].split("/")[-1]
    folder = data_dir / calibration.get("data_folder", default)
    split = config.get("test_split") or config["validation_split"]
    return _sample(folder / f"{split}.jsonl", documents), _sample(folder / "train.jsonl", shots)


def _sample(path: Path, n: int) -> list[dict]:
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return random.Random(0).sample(rows, n)


def _made_text(made: random.Random, words: int) -> str:
    syllables = ["ba", "ne", "ri", "to", "lum", "kes", "and", "over", "ing", "the", "point", "ly"]
    length = max(1, round(made.gauss(words, words / 3)))
    return " ".join("".join(made.choices(syllables, k=made.randint(1, 3))) for _ in range(length))
