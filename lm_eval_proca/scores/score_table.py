"""The score table: every label score of one run of one task, and the file that keeps it.

Whatever comes after scoring (another calibrator, an ablation, a figure) needs this table and no model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lm_eval_proca.errors import ResultsError, ScoreTableError
from lm_eval_proca.files import replacing
from lm_eval_proca.representations import Representation
from lm_eval_proca.scores.gold import NO_GOLD
from lm_eval_proca.scores.record import RunRecord

if TYPE_CHECKING:
    import pandas as pd

ROLES = ("eval", "estimate", "content_free", "domain")

_WHOLE_NUMBERS = ("index", "gold", "estimate_gold")
_METADATA_KEY = b"lm_eval_proca"
_VIEW = "view_"
_ROW_GROUP = 8_192
"""Rows that are turned into columns and written at a time."""


@dataclass(frozen=True, eq=False)
class ScoreTable:
    """Documents by labels, with the role of each document.

    Attributes
    ----------
    role : ndarray of str, shape (n,)
        "eval", "estimate", "content_free" or "domain" (texts of random words of the task).
    index : ndarray of int64, shape (n,)
        Document index within its role: for "eval" the position in the task's evaluation documents.
    gold : ndarray of int64, shape (n,)
        Label index of eval rows, -1 for those without a gold label and for all others.
    estimate_gold : ndarray of int64, shape (n,)
        Label index of estimate rows where the data has one, else -1. Calibrators never see it; only analyses
        (class imbalance, the supervised ceiling) read it.
    scores : ndarray of float64, shape (n, labels)
        Log-likelihood of each label as lm-eval returned it; NaN and -inf are kept, they were paid for too.
    representations : ndarray of float16, shape (n, views, width), or None
        What the model knows at the position that predicts the label: hidden states of layers, or log-probabilities of
        probe tokens, as `representation` says; each vector scaled to unit root mean square. None where it gave none.
    record : RunRecord
        What the run was: model, task, shots, seeds, label words, representation, identity, hashes, versions.
    """

    role: np.ndarray
    index: np.ndarray
    gold: np.ndarray
    estimate_gold: np.ndarray
    scores: np.ndarray
    record: RunRecord = field(default_factory=RunRecord)
    representations: np.ndarray | None = None

    def __post_init__(self) -> None:
        n = len(self.role)
        columns = [self.index, self.gold, self.estimate_gold, self.scores]
        columns += [] if self.representations is None else [self.representations]
        if self.scores.ndim != 2 or any(len(column) != n for column in columns):
            raise ScoreTableError(
                f"A score table needs columns of one length and 2-D scores, got {n} roles and "
                f"scores of shape {self.scores.shape}."
            )

    def __eq__(self, other: object) -> bool:
        """The same rows in the same order, bit by bit, with the same record."""
        if not isinstance(other, ScoreTable):
            return NotImplemented
        pairs = [(getattr(self, name), getattr(other, name)) for name in ("role", *_WHOLE_NUMBERS, "scores")]
        if (self.representations is None) != (other.representations is None):
            return False
        if self.representations is not None:
            pairs.append((self.representations, other.representations))
        same_columns = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)
        return self.record == other.record and same_columns

    def __repr__(self) -> str:
        record = self.record
        told = [record.task, PurePath(record.model).name if record.model else "", f"{record.num_fewshot}-shot"]
        counts = [f"{int((self.role == role).sum())} {role}" for role in ROLES if (self.role == role).any()]
        beside = "" if self.representations is None else f", {self.representation}"
        named = ", ".join(filter(None, told if record.num_fewshot is not None else told[:2]))
        return f"ScoreTable({named}: {' + '.join(counts)} documents x {', '.join(self.labels)}{beside})"

    def to_frame(self) -> pd.DataFrame:
        """Role, index and gold labels of every document, and the score of each label under its word.

        Labels that are not known are missing. Representations are not in it; see :meth:`representations_of`.
        """
        import pandas as pd  # here, since nothing else needs it

        words = np.array([*self.labels, None], dtype=object)  # the last, -1, is for no label
        known = {"role": self.role, "index": self.index, "gold": words[self.gold]}
        known["estimate_gold"] = words[self.estimate_gold]
        return pd.DataFrame({**known, **dict(zip(self.labels, self.scores.T, strict=True))})

    def not_finite(self, roles: Sequence[str] = ROLES) -> str | None:
        """Which scores of documents of these roles are not finite numbers, in words; None if all are."""
        finite = np.isfinite(self.scores)
        bad = np.flatnonzero(np.isin(self.role, roles) & ~finite.all(axis=1))
        if not len(bad):
            return None
        row, label = bad[0], int(np.argmin(finite[bad[0]]))
        others = f" (and further ones for {len(bad) - 1} documents)" if len(bad) > 1 else ""
        return (
            f"The model gave {self.scores[row, label]} as the score of label {self.labels[label]!r} for "
            f"{str(self.role[row]).replace('_', '-')} document {self.index[row]}{others}"
        )

    @property
    def labels(self) -> list[str]:
        """The label words, in the order of the score columns."""
        return list(self.record.labels or map(str, range(self.scores.shape[1])))

    @property
    def representation(self) -> Representation:
        """What `representations` are; its views are in the order of :meth:`representations_of`."""
        return Representation.of_json(self.record.representation)

    def scores_of(self, role: str) -> np.ndarray:
        """Scores of one role in document order, shape (m, labels)."""
        return self.scores[self._rows(role)]

    def representations_of(self, role: str) -> np.ndarray | None:
        """Representations of one role in document order, shape (views, m, width); None where there are none."""
        return None if self.representations is None else self.representations[self._rows(role)].swapaxes(0, 1)

    def index_of(self, role: str) -> np.ndarray:
        """Document indices of one role, ascending."""
        return self.index[self._rows(role)]

    def gold_of(self, role: str) -> np.ndarray:
        """Gold label indices of one role in document order; for "estimate" these are for analyses only."""
        column = self.estimate_gold if role == "estimate" else self.gold
        return column[self._rows(role)]

    def _rows(self, role: str) -> np.ndarray:
        if role not in ROLES:
            raise ScoreTableError(f"No role '{role}' in a score table; the roles are {', '.join(ROLES)}.")
        rows = np.flatnonzero(self.role == role)
        return rows[np.argsort(self.index[rows], kind="stable")]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write one Parquet file; a reader sees the whole file or none."""
        path = Path(path)
        record = json.dumps(self.record.as_json(), sort_keys=True)
        schema = self._columns(slice(0)).schema.with_metadata({_METADATA_KEY: record})
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished, pq.ParquetWriter(unfinished, schema) as writer:
            for start in range(0, max(len(self.role), 1), _ROW_GROUP):
                writer.write_table(self._columns(slice(start, start + _ROW_GROUP)).cast(schema))
        return path

    def _columns(self, rows: slice) -> pa.Table:
        """Some rows as the file has them."""
        columns = {"role": pa.array(self.role[rows].astype(str), pa.string())}
        for name in _WHOLE_NUMBERS:
            column = getattr(self, name)[rows]
            columns[name] = pa.array(column, pa.int64(), mask=column == NO_GOLD)
        for k in range(self.scores.shape[1]):
            columns[f"score_{k}"] = pa.array(self.scores[rows, k], pa.float64())
        if self.representations is not None:
            for k, view in enumerate(self.representation.views):
                vectors = self.representations[rows, k].astype(np.float16)
                lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
                columns[f"{_VIEW}{view}"] = lists
        return pa.table(columns)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> ScoreTable:
        """Read a file written by :meth:`save`; anything else is refused with a sentence."""
        try:
            table = pq.read_table(path)
        except FileNotFoundError as error:
            raise ScoreTableError(f"There is no score table at {path}.") from error
        except (pa.ArrowException, OSError) as error:
            raise ScoreTableError(
                f"{path} is not a readable score table (damaged or not Parquet); write it again with "
                f"--metadata proca.scores_dir=DIR."
            ) from error
        try:
            record = RunRecord.of_json(json.loads((table.schema.metadata or {})[_METADATA_KEY]), str(path))
        except (KeyError, json.JSONDecodeError) as error:
            raise ScoreTableError(f"{path} is a Parquet file but not a score table of lm-eval-proca.") from error
        except ResultsError as error:
            raise ScoreTableError(f"{error}.") from error
        names = table.column_names
        scores = [f"score_{k}" for k in range(len(record.labels) or sum(name.startswith("score_") for name in names))]
        views = [f"{_VIEW}{view}" for view in Representation.of_json(record.representation).views]
        if missing := {"role", *_WHOLE_NUMBERS, "score_0", *scores, *views} - set(names):
            raise ScoreTableError(f"{path} lacks the columns {', '.join(sorted(missing))}; it was edited. Score again.")
        try:
            loaded = cls(
                role=np.asarray(table["role"].to_pylist(), dtype=str),
                **{name: table[name].cast(pa.int64()).fill_null(NO_GOLD).to_numpy() for name in _WHOLE_NUMBERS},
                scores=np.column_stack([table[name].cast(pa.float64()).to_numpy() for name in scores]),
                record=record,
                representations=np.stack([_matrix(table[name]) for name in views], axis=1) if views else None,
            )
        except (pa.ArrowException, ValueError, TypeError, AttributeError) as error:
            raise ScoreTableError(f"{path} holds a column of another kind than it should; it was changed.") from error
        if (problem := loaded._problem()) is not None:
            raise ScoreTableError(f"{path} was changed: {problem}.")
        return loaded

    def _problem(self) -> str | None:
        """Why no run of ours can have written this table, in words; None if one can."""
        if unknown := sorted(set(self.role.tolist()) - set(ROLES)):
            return f"it has the role {unknown[0]!r}"
        if not len(self.index_of("eval")):
            return "it has no evaluation row"
        for role in ROLES:
            index = self.index_of(role)
            if len(index) and (index[0] < 0 or (np.diff(index) == 0).any()):
                return f"an index of its {role.replace('_', '-')} rows is missing or stands there twice"
        for name in ("gold", "estimate_gold"):
            if not ((getattr(self, name) >= NO_GOLD) & (getattr(self, name) < len(self.labels))).all():
                return f"a label in its column {name} is none of the {len(self.labels)} labels"
        if len(set(self.labels)) < max(2, self.scores.shape[1]):
            return f"{', '.join(self.labels)} cannot name {self.scores.shape[1]} labels"
        return None


def _matrix(column: pa.ChunkedArray) -> np.ndarray:
    """A column of equally long lists, as an array with one row per list."""
    lists = column.combine_chunks()
    return np.asarray(lists.flatten()).reshape(len(lists), -1)
