"""A cell: one lm-eval run of one task under one seed by one model, and the folder that keeps it.

A folder is `<output>/<model>/<task>-<shots>shot-seed<seed>[-limit<n>][-<setting>=<value>…]-<digest>/`. The digest is
of the run's whole identity, which the folder also holds as identity.json. So a finished cell is found by its digest,
and a run that differs in anything has another folder.
"""

from __future__ import annotations

import gc
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from lm_eval.api.model import LM

from lm_eval_proca.errors import ModelError, ScoreTableError, TaskError
from lm_eval_proca.harness.settings import DATA_DIR_VARIABLE, PREFIX, read_settings, settings_of_run
from lm_eval_proca.scores.identity import (
    BACKEND,
    FILE_SETTINGS,
    IDENTITY_FILE,
    Identity,
    Part,
    differences,
    digest,
    model_identity,
    run_identity,
    task_config,
    weights_and_rest,
)
from lm_eval_proca.scores.score_table import ScoreTable
from lm_eval_proca.sweep.task_files import TaskFile

GivenSettings = tuple[tuple[str, Any], ...]
"""`proca.*` settings as (key, value) pairs, e.g. `(("order_seed", 7),)`."""

SPLIT, GENERATED, DESCRIBED = ESTIMATES = ("split", "generated", "described")
"""Where unlabeled rows come from: a split, or a model that has seen labeled examples, or only the label words."""
PATH_SETTINGS = ("data_dir", *FILE_SETTINGS)
LONGEST_NAME = 200  # of the 255 bytes that file systems allow; the hidden folder and the log file add a few


@dataclass(frozen=True)
class Cell:
    """What decides a run, apart from the model.

    `estimate` says where the unlabeled rows come from, `self_labelled` that the model labels the demonstrations.
    """

    task: str
    file: TaskFile
    num_fewshot: int
    seed: int
    limit: int | None = None
    settings: GivenSettings = ()
    estimate: str = SPLIT
    self_labelled: bool = False

    @property
    def generated(self) -> bool:
        """Whether the model writes the estimate set itself."""
        return self.estimate != SPLIT

    def __post_init__(self) -> None:
        settings = dict(self.settings)
        for key in set(settings) & set(PATH_SETTINGS):
            settings[key] = str(Path(str(settings[key])).expanduser().resolve())
        object.__setattr__(self, "settings", tuple(sorted(settings.items())))

    @property
    def name(self) -> str:
        """For readers. Files are left out: their content is in the identity."""
        parts = [self.task, f"{self.num_fewshot}shot", f"seed{self.seed}"]
        parts += [] if self.limit is None else [f"limit{self.limit}"]
        parts += [self.estimate] if self.generated else []
        parts += ["self-labelled"] if self.self_labelled else []
        settings = (f"{key}={value}" for key, value in self.settings if key not in PATH_SETTINGS)
        return _readable([*parts, *settings])

    def identity(self, model: Model) -> Identity:
        """What decides the run of this cell by a model; reads the task's files as they are now."""
        block = task_config(self.file.path, self.file.overrides).get("calibration", {})
        settings = read_settings(self.task, block, {f"{PREFIX}.{key}": value for key, value in self.settings})
        run: Part = {"num_fewshot": self.num_fewshot, "seed": self.seed, "limit": self.limit}
        if self.generated:  # rows that are sampled together share random numbers
            run |= {"estimate_set": self.estimate, "batch_size": model.batch_size}
        if self.self_labelled:  # an earlier version let prompt 0 answer alone where prompts disagreed
            run["demonstrations"] = "self-labelled, all prompts answer"
        return run_identity(model.identity, self.file.path, asdict(settings), self.file.overrides, **run)


@dataclass(eq=False, repr=False)  # the arguments may hold keys
class Model:
    """A language model of lm-eval, loaded on first use and then kept."""

    model: str
    """lm-eval's name of the backend, e.g. "hf-shared-prefix"."""
    model_args: dict[str, Any]
    """What `--model_args` says."""
    batch_size: int | str = 1
    """This and `device` are lm-eval's options of these names. They do not decide the results."""
    device: str = "cuda:0"
    _lm: LM | None = field(default=None, init=False)

    @property
    def identity(self) -> Part:
        return model_identity(self.model_args, self.model)

    @property
    def name(self) -> str:
        """The folder's name: weights, backend, and every other argument that could change a score."""
        weights, others = weights_and_rest(self.identity)
        backend, weights = others.pop(BACKEND), weights or "default"
        short = Path(weights).name if os.path.isabs(weights) else weights
        name = _readable([short, backend, *(f"{key}={others[key]}" for key in sorted(others))])
        return f"{name}-{digest(self.identity)}"

    def load(self) -> LM:
        if self._lm is None:
            import lm_eval.models  # noqa: F401  (fills lm-eval's registry)
            from lm_eval.api.registry import get_model

            options = {"batch_size": self.batch_size, "device": self.device}
            try:
                self._lm = get_model(self.model).create_from_arg_obj(self.model_args, options)
            except Exception as error:
                raise ModelError(
                    f"The model {self.name} cannot be loaded ({type(error).__name__}: {error}); check --model and "
                    f"--model_args."
                ) from error
        return self._lm

    def unload(self) -> None:
        """Give the memory back, before the next model comes."""
        self._lm = None
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def cell_folder(output_dir: Path, model: Model, cell: Cell) -> Path:
    """Where a cell of a model is kept once it is finished; settings that say the same have one folder."""
    home, end = output_dir / model.name, digest(cell.identity(model))
    return next(home.glob(f"[!.]*-{end}"), home / f"{cell.name}-{end}")


def key_of(folder: Path) -> str:
    """The digest at the end of a cell's folder, which is that of all its names."""
    return folder.name.rpartition("-")[2]


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a whole cell. It gets its name only after it was filled, so a look inside is enough."""
    return any(folder.glob("results_*.json")) and any(folder.glob("scores/*.parquet"))


def unfinished_cells(cells: Iterable[Cell], model: Model, output_dir: Path) -> list[Cell]:
    return [cell for cell in cells if not is_finished(cell_folder(output_dir, model, cell))]


def earlier_runs(cells: Iterable[Cell], model: Model, output_dir: Path) -> list[str]:
    """How unfinished cells differ from finished ones of the same name: a sentence per kind of difference."""
    alike: dict[str, list[str]] = {}
    for cell in cells:
        folder = cell_folder(output_dir, model, cell)
        others = [file.parent for file in folder.parent.glob(f"{cell.name}-{'[0-9a-f]' * 12}/{IDENTITY_FILE}")]
        if others and folder not in others:
            newest = max(others, key=lambda other: other.stat().st_mtime)
            found = json.loads((newest / IDENTITY_FILE).read_text(encoding="utf-8"))
            alike.setdefault(differences(found, cell.identity(model)), []).append(cell.name)
    return [
        f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: finished before with another "
        f"{what}; it now runs again, in a new folder."
        for what, names in alike.items()
    ]


def cell_scores(output_dir: Path, model: Model, cell: Cell) -> list[ScoreTable]:
    """The score tables of a finished cell, one for each prompt."""
    folder = cell_folder(output_dir, model, cell)
    tables = sorted(map(ScoreTable.load, folder.glob("scores/*.parquet")), key=lambda table: table.record.prompt)
    if not tables or len(tables) != tables[0].record.prompts:
        raise ScoreTableError(
            f"{folder} has {len(tables)} score tables, a finished cell has one for each prompt; run the cell again."
        )
    return tables


def settings_from_metadata(metadata: Mapping[str, Any]) -> GivenSettings:
    """A cell's settings from `--metadata proca.x=y …` and the environment; a mistake is told before anything runs."""
    foreign = sorted(key for key in metadata if not key.startswith(f"{PREFIX}."))
    if foreign:
        raise TaskError(f"--metadata takes settings that begin with {PREFIX}. here, not {', '.join(foreign)}.")
    settings = {key[len(PREFIX) + 1 :]: value for key, value in metadata.items()}
    if "scores_dir" in settings:
        raise TaskError(f"Leave {PREFIX}.scores_dir out: every cell keeps its score table in its own folder.")
    settings_of_run(metadata)
    if os.environ.get(DATA_DIR_VARIABLE):
        settings.setdefault("data_dir", os.environ[DATA_DIR_VARIABLE])
    return tuple(settings.items())


def _readable(parts: Iterable[str]) -> str:
    """A file name that tells a reader what is in it; only the digest of an identity tells everything apart."""
    return re.sub(r"[^\w.+=-]+", "-", "-".join(parts), flags=re.ASCII)[:LONGEST_NAME]
