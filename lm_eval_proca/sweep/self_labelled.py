"""Demonstrations without labels: rows that the model has labeled itself, in a first pass without demonstrations.

The first pass is an ordinary cell at 0 shots. Its calibrator labels the estimate set. The more confident half of each
label's rows become the demonstrations of several prompts. In the second pass, prompt 0 has no demonstrations, the
others have theirs, and all of them are calibrated together. No gold label is read anywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import lm_eval_proca
from lm_eval_proca.calibration.registry import make_calibrator
from lm_eval_proca.distributed import compute_once
from lm_eval_proca.errors import TaskError
from lm_eval_proca.files import replacing
from lm_eval_proca.harness.documents import ESTIMATE_FILE_KEY
from lm_eval_proca.scores.fitting import label_documents
from lm_eval_proca.scores.record import fingerprint
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.cell import Cell, Model, cell_scores
from lm_eval_proca.sweep.generation import evaluate_generating, with_generated_rows
from lm_eval_proca.sweep.runner import evaluate_cell, load_task

PROMPTS = 5
"""Prompts of the second pass, if `proca.prompts` does not say otherwise: one without demonstrations, and four with."""
CONFIDENT = 0.5
"""Share of each label's rows that demonstrations are drawn from, the most confident ones."""
ALIKE = 0.8
"""Two texts that share more of their words than this are not both shown in one prompt."""

Words = frozenset[str]


@dataclass(frozen=True)
class Picked:
    """A row of the estimate set, the label that it is shown with, and how probable the calibrator finds that."""

    row: int
    label: int
    probability: float


def prompts_of(cell: Cell) -> int:
    """How many prompts the second pass of a cell has, with the one that has no demonstrations."""
    count = int(dict(cell.settings).get("prompts", PROMPTS))
    if count < 2 or cell.num_fewshot < 1:
        raise TaskError(
            f"{cell.task}: self-labelled demonstrations need --num_fewshot 1 or more and proca.prompts 2 or more."
        )
    return count


def first_pass(cell: Cell) -> Cell:
    """The ordinary cell at 0 shots that labels the rows of a self-labelled one."""
    settings = tuple(pair for pair in cell.settings if pair[0] != "prompts")
    return replace(cell, num_fewshot=0, settings=settings, self_labelled=False)


def passes(cells: Sequence[Cell]) -> list[list[Cell]]:
    """What is run one after the other: the first passes that some cells need, then the cells themselves."""
    needed = dict.fromkeys(first_pass(cell) for cell in cells if cell.self_labelled)
    return [some for some in (list(needed), list(cells)) if some]


def evaluate(cell: Cell, model: Model, folder: Path) -> Mapping[str, float]:
    """Evaluate a cell of any kind."""
    if cell.self_labelled:
        return evaluate_self_labelled(cell, model, folder)
    return evaluate_generating(cell, model, folder) if cell.generated else evaluate_cell(cell, model, folder)


def evaluate_self_labelled(cell: Cell, model: Model, folder: Path) -> Mapping[str, float]:
    """Evaluate a cell with demonstrations that its first pass has labeled; the file stays in the cell's folder."""
    file, home, first = folder / "demonstrations.jsonl", folder.parent, first_pass(cell)
    ready = with_generated_rows(first, model, home) if cell.generated else first
    written = compute_once(lambda: demonstrations(cell, ready, model, cell_scores(home.parent, model, first)))
    if not file.exists():  # on every node that has a disk of its own
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as unfinished:
            unfinished.write_text(written, encoding="utf-8")
    settings = (*ready.settings, ("demonstration_file", str(file)))
    return evaluate_cell(replace(cell, settings=settings), model, folder)


def demonstrations(cell: Cell, first: Cell, model: Model, scores: Sequence[ScoreTable]) -> str:
    """The text of the demonstration file of a cell; `scores` are those of its first pass."""
    shown_in = prompts_of(cell) - 1
    (table,) = scores
    task = load_task(first, {})
    task.set_fewshot_seed(first.seed)
    docs = task.unlabeled_rows().docs
    if fingerprint(map(task.text_of, docs)) != table.record.unlabeled_hash:
        raise TaskError(f"{cell.task}: the unlabeled rows have changed since {first.name} was scored; delete it.")
    name = "bc" if table.representations is None else "proca_h"
    log_proba = label_documents(make_calibrator(name, {}), table, "estimate")
    texts = list(map(task.text_of, docs))
    chosen = pick(log_proba, texts, prompts=shown_in, shots=cell.num_fewshot, seed=cell.seed)
    provenance = {
        "kind": "self-labelled demonstrations",
        "task": cell.task,
        "model": model.name,
        "labels": task.labels,
        "calibrator": name,
        "shots": cell.num_fewshot,
        "prompts": shown_in,
        "seed": cell.seed,
        "unlabeled_hash": table.record.unlabeled_hash,
        "first_pass_prompt_hash": table.record.prompt_hash,
        "lm_eval_proca": lm_eval_proca.__version__,
    }
    rows = [
        {
            "prompt": number,
            **dict(zip(task.settings.text_fields, texts[one.row], strict=True)),
            "label": task.labels[one.label],
            "probability": round(one.probability, 4),
            "row": one.row,
        }
        for number, of_prompt in enumerate(chosen, start=1)
        for one in of_prompt
    ]
    lines: list[Mapping[str, Any]] = [{ESTIMATE_FILE_KEY: provenance}, *rows]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def pick(
    log_proba: np.ndarray, texts: Sequence[Sequence[str]], *, prompts: int, shots: int, seed: int
) -> list[list[Picked]]:
    """Demonstrations of each prompt: balanced over labels, from the confident part, diverse, in a drawn order.

    `log_proba` are calibrated log-probabilities (rows, labels). Labels take turns, also from prompt to prompt, so that
    all are shown about equally often if there are more of them than shots. A row is shown once, as long as there are
    enough.
    """
    rnd = Random(f"self-labelled-{seed}")
    pools = _confident_rows(log_proba)
    labels = [label for label in range(log_proba.shape[1]) if pools[label]]
    rnd.shuffle(labels)
    for label in labels:
        rnd.shuffle(pools[label])
    words = [frozenset(re.findall(r"\w+", " ".join(text).lower())) for text in texts]
    shown: set[int] = set()
    found, turn = [], 0
    for _ in range(prompts):
        rows: list[int] = []
        of_prompt: list[Picked] = []
        for _ in range(shots):
            label = labels[turn % len(labels)]
            turn += 1
            row = _next_row(pools[label], shown, [words[i] for i in rows], words)
            rows.append(row)
            shown.add(row)
            of_prompt.append(Picked(row, label, float(np.exp(log_proba[row, label]))))
        rnd.shuffle(of_prompt)
        found.append(of_prompt)
    return found


def _confident_rows(log_proba: np.ndarray) -> list[list[int]]:
    """Of each label, the more confident half of the rows that get it."""
    given, confidence = log_proba.argmax(axis=1), log_proba.max(axis=1)
    pools = []
    for label in range(log_proba.shape[1]):
        rows = np.flatnonzero(given == label)
        best = rows[np.argsort(-confidence[rows], kind="stable")]
        pools.append(best[: int(np.ceil(CONFIDENT * len(best)))].tolist())
    return pools


def _next_row(pool: Sequence[int], shown: set[int], beside: Iterable[Words], words: Sequence[Words]) -> int:
    """The first row that no prompt shows and that is unlike those beside it; if there is none, one that is most so."""

    def preference(row: int) -> tuple[bool, bool]:
        return row in shown, any(_overlap(words[row], other) > ALIKE for other in beside)

    beside = list(beside)
    return min(pool, key=preference)


def _overlap(one: Words, other: Words) -> float:
    return len(one & other) / max(1, len(one | other))
