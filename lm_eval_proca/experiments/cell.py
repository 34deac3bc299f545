"""A cell: one lm-eval run of one task under one prompt by one model, and the folder that keeps it.

Folders are named after everything that decides their content, so a run with other settings never meets a finished
cell of these: `<output>/<model>/<task>-<shots>shot-seed<seed>[-limit<n>][-<setting>=<value>…]/`.
"""

from __future__ import annotations

import gc
import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lm_eval_proca.errors import ModelError, ScoreTableError, TaskError
from lm_eval_proca.harness.settings import DATA_DIR_VARIABLE, KNOWN, PREFIX
from lm_eval_proca.score_table import ScoreTable, without_secrets

if TYPE_CHECKING:
    from lm_eval.api.model import LM

PATH_SETTINGS = ("data_dir", "estimate_file")
LONGEST_NAME = 200  # of the 255 bytes that file systems allow; the hidden folder and the log file add a few


@dataclass(frozen=True)
class Cell:
    """What decides a run, apart from the model.

    `settings` are further `proca.*` settings as (key, value) pairs, e.g. `(("order_seed", 7),)`.
    """

    task: str
    num_fewshot: int
    seed: int
    limit: int | None = None
    settings: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        known = {key: _resolved(value) if key in PATH_SETTINGS else value for key, value in self.settings}
        object.__setattr__(self, "settings", tuple(sorted(known.items())))

    @property
    def name(self) -> str:
        """The folder's name."""
        parts = [_readable(self.task), f"{self.num_fewshot}shot", f"seed{self.seed}"]
        if self.limit is not None:
            parts.append(f"limit{self.limit}")
        return _joined([*parts, *(f"{key}={_readable(value)}" for key, value in self.settings)])


class Model:
    """A language model of lm-eval, loaded on first use and then kept.

    Parameters
    ----------
    model : str
        lm-eval's name of the backend, e.g. "hf-shared-prefix".
    model_args : mapping
        What `--model_args` says.
    batch_size, device : optional
        As lm-eval's options of these names, and its defaults (a machine without that GPU falls back to its CPU). They
        do not decide the results, so they are not in the name.
    """

    def __init__(
        self,
        model: str,
        model_args: Mapping[str, Any],
        *,
        batch_size: int | str = 1,
        device: str = "cuda:0",
    ) -> None:
        self.model = model
        self.model_args = dict(model_args)
        self.batch_size = batch_size
        self.device = device
        self._lm: LM | None = None

    @property
    def public_args(self) -> dict[str, Any]:
        """The arguments without keys and tokens: what may be written into files."""
        return without_secrets(self.model_args)

    @property
    def name(self) -> str:
        """The folder's name: weights, backend, and every other argument that could change a score."""
        args = self.public_args
        weights = args.pop("pretrained", None) or args.pop("model", None) or "default"
        if Path(str(weights)).expanduser().is_dir():
            weights = _resolved(weights)
        return _joined([_readable(weights), self.model, *(f"{key}={_readable(args[key])}" for key in sorted(args))])

    def load(self) -> LM:
        """The model itself; the same object on every call."""
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


def cell_folder(output_dir: str | os.PathLike[str], model: Model, cell: Cell) -> Path:
    """Where a cell of a model is kept once it is finished."""
    return Path(output_dir) / model.name / cell.name


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a whole cell. It gets its name only after it was filled, so a look inside is enough."""
    return any(folder.glob("results_*.json")) and any(folder.glob("scores/*.parquet"))


def cell_scores(output_dir: str | os.PathLike[str], model: Model, cell: Cell) -> ScoreTable:
    """The score table of a finished cell."""
    folder = cell_folder(output_dir, model, cell)
    tables = sorted(folder.glob("scores/*.parquet"))
    if len(tables) != 1:
        raise ScoreTableError(f"{folder} has {len(tables)} score tables, a finished cell has one; run the cell again.")
    return ScoreTable.load(tables[0])


def settings_from_metadata(metadata: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A cell's settings from `--metadata proca.x=y …` and the environment; a mistake is told before anything runs."""
    foreign = sorted(key for key in metadata if not key.startswith(f"{PREFIX}."))
    if foreign:
        raise TaskError(f"--metadata takes settings that begin with {PREFIX}. here, not {', '.join(foreign)}.")
    settings = {key[len(PREFIX) + 1 :]: value for key, value in metadata.items()}
    if "scores_dir" in settings:
        raise TaskError(f"Leave {PREFIX}.scores_dir out: every cell keeps its score table in its own folder.")
    unknown = sorted(set(settings) - set(KNOWN))
    if unknown:
        raise TaskError(f"Unknown setting {', '.join(unknown)} in --metadata; the known ones are {', '.join(KNOWN)}.")
    if os.environ.get(DATA_DIR_VARIABLE):
        settings.setdefault("data_dir", os.environ[DATA_DIR_VARIABLE])
    return tuple(settings.items())


def _resolved(path: Any) -> str:
    return str(Path(str(path)).expanduser().resolve())


def _readable(value: Any) -> str:
    """A value as part of a file name: itself if it can be, else its last part and a hash of the whole."""
    text = "/".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
    if re.fullmatch(r"[\w.+-]+", text):
        return text
    if re.fullmatch(r"\d+(/\d+)+", text):  # demonstration_counts: 3/5
        return text.replace("/", "-")
    if re.fullmatch(r"[\w.-]+/[\w.-]+", text):  # a name on the hub, written as lm-eval does
        return text.replace("/", "__")
    last = re.sub(r"[^\w.+-]+", "_", text.rstrip("/").rsplit("/", 1)[-1])
    return f"{last}~{_digest(text)}"


def _joined(parts: list[str]) -> str:
    name = "-".join(parts)
    return name if len(name.encode()) <= LONGEST_NAME else f"{name[: LONGEST_NAME // 2]}~{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
