"""Estimate sets that the model writes itself (section 4.5 of the paper, ProCa-g).

The model sees a few labeled demonstrations, each time in another order, and goes on with inputs of its own. Without any
demonstration it sees the task's description and a label word, and goes on with an input for that. What it writes is cut
into the task's fields at the borders of the task's template. Every round is kept, so an interrupted generation goes on
where it stopped and ends with the same file.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from lm_eval.api.instance import Instance
from tqdm import tqdm

import lm_eval_proca
from lm_eval_proca.distributed import compute_once
from lm_eval_proca.errors import TaskError
from lm_eval_proca.files import replacing
from lm_eval_proca.harness.documents import ESTIMATE_FILE_KEY, OnePromptSampler, without_label
from lm_eval_proca.harness.task import CalibratedTask
from lm_eval_proca.scores.identity import Identity, differences, digest, run_identity
from lm_eval_proca.sweep import claims
from lm_eval_proca.sweep.cell import DESCRIBED, Cell, Model
from lm_eval_proca.sweep.runner import evaluate_cell, load_task

Json = Mapping[str, Any]

PER_ORDER = 4
"""Continuations of one order of the demonstrations: backends that share equal prompts read them once."""
UNSEEN_LENGTH = 256
"""Characters that an input is taken to have at most where no example shows it."""


@dataclass(frozen=True)
class Generation:
    """What decides a generated estimate set, apart from the task and the model."""

    size: int
    seed: int = 0
    per_class: int = 2
    """Labeled examples that the model sees; with 0 it sees label words alone."""
    temperature: float = 1.0
    round_size: int = 64
    max_generations: int = 2000
    """After so many it ends, however few are usable."""

    def __post_init__(self) -> None:
        if not 0 < self.temperature < float("inf"):
            raise TaskError(
                f"The temperature is {self.temperature}, but sampling needs a finite number above 0, such as 1.0."
            )


class Template:
    """The literal text around a task's fields: `head field_1 border_1 … field_n border_n label`."""

    def __init__(self, task: CalibratedTask) -> None:
        names = task.settings.text_fields
        marks = {name: f"\u27e6{number}\u27e7" for number, name in enumerate(names)}
        text = str(task.doc_to_text({**without_label(task.eval_docs[0], None), **marks}))
        for name, mark in marks.items():
            if text.count(mark) != 1:
                raise TaskError(
                    f"{task.config.task}: doc_to_text shows the field {name} {text.count(mark)} times; inputs can be "
                    "generated only for templates that show every text field once."
                )
        self.fields = tuple(sorted(names, key=lambda name: text.index(marks[name])))
        self.head, *borders = re.split("|".join(marks.values()), text)
        self.head = self.head.rstrip()
        self.borders = [border.rstrip(" ") for border in borders]
        self.borders[-1] = self.borders[-1] or str(task.config.target_delimiter).rstrip(" ")
        self._check_borders(task)

    @property
    def question(self) -> str:
        """What stands before the label, e.g. "Sentiment:"."""
        return self.borders[-1].rpartition("\n")[2].strip()

    def _check_borders(self, task: CalibratedTask) -> None:
        config = task.config
        following = (*(f"the field {name}" for name in self.fields[1:]), "the label")
        for name, border, what in zip(self.fields, self.borders, following, strict=True):
            if not border:
                raise TaskError(
                    f"{config.task}: nothing stands between the field {name} and {what}, so what the model writes "
                    "cannot be cut there; add a word or a line break to doc_to_text."
                )
            if config.fewshot_delimiter in border:
                raise TaskError(
                    f"{config.task}: fewshot_delimiter ({config.fewshot_delimiter!r}) stands behind the field {name}, "
                    "so every text that the model writes would end there; choose another fewshot_delimiter."
                )

    def cut(self, continuation: str, *, open_end: bool = False) -> tuple[dict[str, str], str] | None:
        """Fields and label of a continuation of the head; None where a border is missing.

        With an open end, the last field goes on to the end of its line if its border is missing: a model that has seen
        no example does not know that something follows.
        """
        fields = {}
        rest = continuation
        for name, border in zip(self.fields, self.borders, strict=True):
            text, found, rest = rest.partition(border)
            if not found and (not open_end or name != self.fields[-1]):
                return None
            fields[name] = text.strip() if found else text.strip().partition("\n")[0]
        return fields, rest.strip().partition("\n")[0].strip()


def default_per_class(labels: int) -> int:
    """Two labeled examples per class; one from ten labels on, as in the paper for DBPedia (section 4.5)."""
    return 1 if labels >= 10 else 2


def generate(
    task: CalibratedTask, model: Model, wanted: Generation, path: str | os.PathLike[str], *, progress: bool = True
) -> dict[str, Any]:
    """Write an estimate set for `task` to `path`, or go on with one that was begun; returns its provenance."""
    path = Path(path)
    partial = path.parent / f"{path.name}.partial"
    identity = generation_identity(task, model, wanted)
    finished = _provenance(path)
    if finished is not None:
        _check_same(path, "holds", finished, identity)
        return finished
    template, demonstrations = Template(task), _demonstrations(task, wanted)
    longest = max((len(one["text"]) for one in demonstrations), default=UNSEEN_LENGTH // 2)
    origin = {
        "kind": "generated estimate set",
        "task": task.config.task,
        "model": model.name,
        "labels": task.labels,
        "demonstrations": demonstrations,
        **asdict(wanted),
        "max_gen_toks": max(32, longest // 2),  # a token has about four characters; an input may be twice as long
        "lm_eval_proca": lm_eval_proca.__version__,
        "identity": identity,
    }
    rounds = _begun(partial, origin)
    texts = [text for of_round in rounds for text in of_round]
    rows, counts = _select(texts, template, demonstrations, task)
    shown = {"desc": f"{task.config.task}: kept", "disable": not progress}
    with tqdm(total=wanted.size, initial=min(len(rows), wanted.size), **shown) as bar:
        while len(rows) < wanted.size and len(texts) < wanted.max_generations:
            prompts = _prompts(task, template, demonstrations, len(rounds), wanted)
            rounds.append(_continuations(model, task, prompts, len(rounds), origin))
            _append(partial, rounds[-1], mode="ab")
            texts += rounds[-1]
            rows, counts = _select(texts, template, demonstrations, task)
            bar.update(min(len(rows), wanted.size) - bar.n)
    rows = rows[: wanted.size]
    provenance = {**origin, "generations": len(texts), "rows": len(rows), "counts": counts}
    with _files_at(path), replacing(path) as unfinished, open(unfinished, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in [{ESTIMATE_FILE_KEY: provenance}, *rows])
    partial.unlink(missing_ok=True)  # another worker may have taken over from this one
    return provenance


def generation_identity(task: CalibratedTask, model: Model, wanted: Generation) -> Identity:
    """What decides the inputs that a model writes; rows of a batch share random numbers, so its size is part of it."""
    settings = asdict(replace(task.settings, estimate_file=None))
    source, template = task.config.metadata["config_source"], Template(task)
    shown = [task.config.description, template.head, *template.borders, *task.labels]  # a group may have changed them
    run = {**asdict(wanted), "batch_size": model.batch_size, "shown": digest(shown)}
    return run_identity(model.identity, source, settings, **run)


def _check_same(path: Path, does: str, origin: Json, identity: Identity) -> None:
    other = differences(origin.get("identity", {}), identity)
    if other:
        raise TaskError(f"{path} {does} an estimate set of another {other}; delete it or choose another file.")


def evaluate_generating(cell: Cell, model: Model, folder: Path) -> Mapping[str, float]:
    """Evaluate a cell with an estimate set that the model writes first, unless a cell of this task and seed has."""
    return evaluate_cell(with_generated_rows(cell, model, folder.parent), model, folder)


def with_generated_rows(cell: Cell, model: Model, home: Path) -> Cell:
    """The cell with the file of its estimate set, which is among the model's cells at `home`."""
    task = load_task(cell, {})
    size = task.settings.estimate_size
    per_class = 0 if cell.estimate == DESCRIBED else default_per_class(len(task.labels))
    wanted = Generation(size, seed=cell.seed, per_class=per_class, max_generations=4 * size)
    name = f"{cell.task}-seed{cell.seed}-{digest(generation_identity(task, model, wanted))}"
    file = home / "generated" / f"{name}.jsonl"
    # One process generates all: text that several processes sample would depend on their number.
    compute_once(lambda: _generate_alone(task, model, wanted, file))
    written = compute_once(file.read_bytes)
    if not file.exists():  # a node with a disk of its own
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as unfinished:
            unfinished.write_bytes(written)
    return replace(cell, settings=(*cell.settings, ("estimate_file", file)))


def _generate_alone(task: CalibratedTask, model: Model, wanted: Generation, file: Path) -> None:
    """Generate, or wait for the worker that does: cells that differ in their shots share a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    while (claim := claims.take(file.parent, file.stem.rpartition("-")[2], file.name)) is None:
        time.sleep(claims.POLL_SECONDS)
    with claims.kept(claim):
        generate(task, model, wanted, file, progress=False)


# ------------------------------------------------------------------ prompts


def _demonstrations(task: CalibratedTask, wanted: Generation) -> list[dict[str, str]]:
    """Labeled examples from the few-shot split, none of which is evaluated."""
    if not wanted.per_class:
        return []
    sampler = OnePromptSampler(
        task.sampler.df,
        task=str(task.config.task),
        allowed=task.sampler.allowed,
        label_of=task.sampler.label_of,
        counts=[wanted.per_class] * len(task.labels),
    ).set_rnd(wanted.seed)
    return [
        {
            **{name: str(row[name]).strip() for name in task.settings.text_fields},
            "text": str(task.doc_to_text(row)),
            "label": task.labels[task.sampler.label_of(row)],
        }
        for row in sampler.sample(wanted.per_class * len(task.labels))
    ]


def _prompts(
    task: CalibratedTask, template: Template, shown: Sequence[Json], number: int, wanted: Generation
) -> list[str]:
    rnd, config = Random(f"round-{wanted.seed}-{number}"), task.config
    examples = [f"{one['text']}{config.target_delimiter}{one['label']}{config.fewshot_delimiter}" for one in shown]
    # The label before the input: labels then are as frequent as calibrators take them to be.
    asked = [f"{template.question}{config.target_delimiter}{label}\n" for label in task.labels]
    prompts: list[str] = []
    while len(prompts) < wanted.round_size:
        begun = "".join(rnd.sample(examples, len(examples))) or asked[len(prompts) // PER_ORDER % len(asked)]
        prompts += [f"{config.description or ''}{begun}{template.head}"] * PER_ORDER
    return prompts[: wanted.round_size]


def _continuations(model: Model, task: CalibratedTask, prompts: Sequence[str], number: int, origin: Json) -> list[str]:
    import torch  # here, as it takes seconds that a finished file does not need

    options = {"until": [task.config.fewshot_delimiter], "do_sample": True}
    options |= {key: origin[key] for key in ("temperature", "max_gen_toks")}
    requests = [
        Instance(request_type="generate_until", doc={}, arguments=(prompt, dict(options)), idx=i)
        for i, prompt in enumerate(prompts)
    ]
    with _whole_rounds(model.load(), len(prompts)):
        torch.manual_seed(Random(f"sampling-{origin['seed']}-{number}").getrandbits(63))
        return list(model.load().generate_until(requests, disable_tqdm=True))


def _whole_rounds(lm: Any, round_size: int) -> AbstractContextManager[Any]:
    """Sample a round in one batch where the batch size is "auto".

    HFLM would look for the largest batch of full-length prompts that fits into memory. That takes minutes on a CPU, and
    the text would depend on the free memory, since rows of a batch share random numbers.
    """
    automatic = getattr(lm, "batch_size_per_gpu", None) == "auto"
    return patch.object(lm, "batch_size_per_gpu", round_size) if automatic else nullcontext()


# ------------------------------------------------------------------ rows


def _select(
    texts: Sequence[str], template: Template, demonstrations: Sequence[Json], task: CalibratedTask
) -> tuple[list[dict[str, str]], dict[str, int]]:
    """The usable inputs in the order they were written, and what became of each generation."""
    names = task.settings.text_fields
    copies = {tuple(one[name] for name in names) for one in demonstrations} | task.evaluated_texts
    counts: Counter[str] = Counter(kept=0, empty=0, truncated=0, copied=0, duplicate=0)
    kept: dict[tuple[str, ...], dict[str, str]] = {}
    for text in texts:
        fields, label = template.cut(text, open_end=not demonstrations) or (dict.fromkeys(names, "\n"), "")
        content = tuple(fields[name] for name in names)
        if "\n" in "".join(content):
            counts["truncated"] += 1
        elif not all(content):
            counts["empty"] += 1
        elif content in copies:
            counts["copied"] += 1
        elif content in kept:
            counts["duplicate"] += 1
        else:
            counts["kept"] += 1
            kept[content] = {**fields, "generated_label": label}
    return list(kept.values()), dict(counts)


@contextmanager
def _files_at(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TaskError(
            f"{path} cannot be written ({error.strerror}): mend that and repeat the command, which goes on with the "
            "rounds that are kept, or choose another place."
        ) from error


def _begun(path: Path, origin: Json) -> list[list[str]]:
    """What the model has written so far, one JSON line per round; a line that was cut off does not count."""
    with _files_at(path):
        content = path.read_bytes() if path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            path.parent.mkdir(parents=True, exist_ok=True)
            _append(path, origin, mode="wb")
            return []
        try:
            begun, *rounds = (json.loads(line) for line in whole.splitlines())
            begun = dict(begun)
        except (ValueError, TypeError) as error:
            raise TaskError(f"{path} is damaged; delete it and repeat the command.") from error
        _check_same(path, "was begun as", begun, origin["identity"])
        os.truncate(path, len(whole))
        return rounds


def _append(path: Path, value: Any, *, mode: str) -> None:
    with _files_at(path), open(path, mode) as file:
        file.write(json.dumps(value, ensure_ascii=False).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _provenance(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    with _files_at(path), open(path, encoding="utf-8") as file:
        try:
            return dict(json.loads(file.readline())[ESTIMATE_FILE_KEY])
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError(f"{path} is there but is no generated estimate set; choose another file.") from error
