"""Tasks x shots x seeds: which cells that is, and how many tokens they cost."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import mean
from typing import Any, NamedTuple

from lm_eval_proca.harness.documents import CONTENT_FREE_TEXTS, DOMAIN_TEXTS
from lm_eval_proca.metrics import grouped
from lm_eval_proca.sweep.cell import SPLIT, Cell, GivenSettings, Model
from lm_eval_proca.sweep.runner import Failure, load_task
from lm_eval_proca.sweep.self_labelled import prompts_of
from lm_eval_proca.sweep.task_files import find_task_files

PROMPTS_RENDERED = 8
CHARACTERS_PER_TOKEN = 4
TOKENIZER_ARGS = ("revision", "subfolder", "trust_remote_code", "gguf_file")


@dataclass(frozen=True)
class Grid:
    """Every task at every number of shots under every seed, with the same settings."""

    tasks: Sequence[str]
    """Names of tasks or groups, or patterns."""
    shots: Sequence[int] = (4,)
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    settings: GivenSettings = ()
    estimate: str = SPLIT
    self_labelled: bool = False
    orders: int = 0
    """If any: every proportion of positive demonstrations in so many orders, a cell for each (two labels)."""

    def cells(self, include_path: Sequence[str] = (), limit: int | None = None) -> list[Cell]:
        """Each cell once; seeds vary fastest, so that a table fills row by row."""
        files = find_task_files(self.tasks, include_path)
        cells = [
            Cell(task, file, shots, seed, limit, (*self.settings, *varied), self.estimate, self.self_labelled)
            for (task, file), shots, seed in product(files.items(), self.shots, self.seeds)
            for varied in self._proportions(shots) or [()]
        ]
        return list(dict.fromkeys(cells))

    def _proportions(self, shots: int) -> list[GivenSettings]:
        return [
            (("demonstration_counts", f"{shots - positives}/{positives}"), ("order_seed", order))
            for positives, order in product(range(shots + 1), range(self.orders))
        ]


@dataclass(frozen=True)
class Prompts:
    """What one cell sends to a model: how many documents and labels, and a few of its texts, all under prompt 0."""

    prompts: int
    documents: int
    """Counted once for every prompt."""
    labels: int
    rendered: list[str]


def render_prompts(cells: Sequence[Cell]) -> dict[Cell, Prompts | Failure]:
    """A few prompts of each cell, or why there are none. A task is loaded once, whatever its shots and seeds.

    All seeds of one task and number of shots count as the first of them: another draw of demonstrations is about as
    long.
    """
    tasks: dict[Any, Any] = {}
    rendered: dict[Cell, Prompts | Failure] = {}
    groups = grouped(cells, lambda cell: (cell.task, cell.settings, cell.num_fewshot, cell.limit))
    for (name, settings, _, _), alike in groups.items():
        try:
            if (name, settings) not in tasks:
                tasks[name, settings] = load_task(alike[0], {})
            rendered |= dict.fromkeys(alike, _render(tasks[name, settings], alike[0]))
        except Exception as error:  # an estimate must not stop the sweep: the cell itself will tell
            rendered |= dict.fromkeys(alike, Failure.of(error))
    return rendered


def _render(task: Any, cell: Cell) -> Prompts:
    docs = task.eval_docs
    task.set_fewshot_seed(cell.seed)
    rows = range(0, len(docs), max(1, len(docs) // PROMPTS_RENDERED))
    evaluated = min(cell.limit or len(docs), len(docs))
    prompts = prompts_of(cell) if cell.self_labelled else task.settings.prompts
    random_words = any(one.fits_on == "domain" for one in task.calibrators.values()) * DOMAIN_TEXTS
    return Prompts(
        prompts=prompts,
        documents=prompts * (evaluated + task.settings.estimate_size + len(CONTENT_FREE_TEXTS) + random_words),
        labels=len(task.labels),
        rendered=[task.fewshot_context(docs[i], num_fewshot=cell.num_fewshot) for i in rows[:PROMPTS_RENDERED]],
    )


class Cost(NamedTuple):
    """What a backend is sent for one cell: one request per document and label, and how many tokens that is.

    `tokens` are those of prompts that are read in full, once for all labels; `tokens_prefix_once` if what all of them
    begin with is read only once, as the shared-prefix models do.
    """

    documents: int
    requests: int
    tokens: int
    tokens_prefix_once: int


def estimate_cost(prompts: Prompts, count: Callable[[str], int]) -> Cost:
    """Estimated from the mean length of the rendered prompts, plus one token for the label."""
    prompt = mean(count(text) for text in prompts.rendered) + 1
    shared = os.path.commonprefix(prompts.rendered)  # noqa: RUF071  (of texts, not of paths)
    prefix = count(shared) if len(prompts.rendered) > 1 else 0
    return Cost(
        documents=prompts.documents,
        requests=prompts.documents * prompts.labels,
        tokens=round(prompts.documents * prompt),
        tokens_prefix_once=round(prompts.prompts * prefix + prompts.documents * (prompt - prefix)),
    )


def token_counter(model: Model) -> tuple[Callable[[str], int], str]:
    """A function that counts tokens, and what it counts with; the weights are never loaded for this."""
    args = model.model_args
    name = args.get("tokenizer") or args.get("pretrained") or args.get("model")
    try:
        from transformers import AutoTokenizer

        options = {key: args[key] for key in TOKENIZER_ARGS if key in args}
        tokenizer = AutoTokenizer.from_pretrained(str(name), **options)
    except Exception:  # no network, no such tokenizer, an API's model: any of these leaves the rule of thumb
        counted_with = f"characters / {CHARACTERS_PER_TOKEN}, no tokenizer could be loaded"
        return lambda text: len(text) // CHARACTERS_PER_TOKEN, counted_with
    return lambda text: len(tokenizer(text, verbose=False)["input_ids"]), "the model's own tokenizer"
