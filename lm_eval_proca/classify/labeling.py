"""A file of rows in, the same rows with labels out, in bounded memory and resumable.

At most `fit_rows` rows are scored first, a fixed random part of the file, and the calibrator is fitted on them. They
get the labels of fits that have not seen them. The other rows are then scored chunk by chunk and labeled by the fit on
all of the former. A classifier that is fitted already labels every row.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from lm_eval_proca.classify.classifier import TextClassifier
from lm_eval_proca.classify.fitting import calibrated, check_enough
from lm_eval_proca.classify.journal import Journal, Labeled, sole_writer
from lm_eval_proca.classify.question import Row
from lm_eval_proca.classify.scoring import CHUNK, Scored, Scorer, joined
from lm_eval_proca.classify.text_files import Survey, chunks, ending, read_rows, survey, writing
from lm_eval_proca.errors import TextsError
from lm_eval_proca.files import replacing
from lm_eval_proca.harness.documents import fixed_part, no_column
from lm_eval_proca.scores.identity import Identity, content, digest, run_identity

ADDED = {"label": pa.string(), "probability": pa.float64(), "note": pa.string()}
PREFIX = "predicted_"
"""Before the names of the new columns, where the file has columns of these names."""

NumberedRows = dict[int, Row]
Answer = dict[str, Any]
"""What comes to a row: a value for each of ADDED."""


@dataclass
class Outcome:
    """What was written, and what the classifier thinks of itself."""

    label_counts: Counter[str]
    unusable: dict[int, str] = field(default_factory=dict)
    """Why rows have no label; rows are counted from 0."""
    fit: Mapping[str, Any] = field(default_factory=dict)
    """See `report_` of :class:`TextClassifier`."""
    probabilities: float = 0.0
    """Of the labels, summed."""

    def add(self, answers: Mapping[int, Answer]) -> None:
        labeled = {row: answer for row, answer in answers.items() if answer["label"] is not None}
        self.label_counts.update(answer["label"] for answer in labeled.values())
        self.probabilities += sum(answer["probability"] for answer in labeled.values())
        self.unusable.update({row: answer["note"] for row, answer in answers.items() if row not in labeled})

    @property
    def labeled(self) -> int:
        return self.label_counts.total()

    @property
    def rows(self) -> int:
        return self.labeled + len(self.unusable)

    @property
    def mean_probability(self) -> float | None:
        return self.probabilities / self.labeled if self.labeled else None

    def as_json(self) -> dict[str, Any]:
        return {
            "rows": self.rows,
            "labeled": self.labeled,
            "label_counts": self.label_counts,
            "mean_probability": self.mean_probability,
            "fit": self.fit,
            "unusable": {str(row + 1): why for row, why in self.unusable.items()},
        }


def label_file(
    classifier: TextClassifier, source: Path, output: Path, *, save: Path | None = None, progress: bool = True
) -> Outcome:
    """Write the rows of `source` with labels to `output`, and a report beside it; `save` keeps the classifier."""
    given, names = _checked(classifier, source, output)
    with sole_writer(output):
        journal = Journal.begin(output.with_name(f"{output.name}.partial"), _identity(classifier, source))
        scorer = classifier.scorer_ if _is_fitted(classifier) else classifier.make_scorer()
        outcome = Outcome(Counter(dict.fromkeys(classifier.labels, 0)))
        unfinished = journal.folder / output.name
        with (
            tqdm(total=given.rows, desc="rows", unit="row", disable=not progress) as bar,
            writing(unfinished, given, {names[name]: kind for name, kind in ADDED.items()}) as write,
        ):
            for rows, found in _labeled_chunks(classifier, scorer, source, given, journal, bar):
                answers = {row: _answer(found, row, classifier.labels) for row in rows}
                write([{**rows[row], **{names[key]: one for key, one in answers[row].items()}} for row in rows])
                outcome.add(answers)
        outcome.fit = classifier.report_
        if save is not None:
            classifier.save(save)
        _publish(unfinished, output, outcome)
        journal.end()
    return outcome


def report_file(output: Path) -> Path:
    return output.with_name(f"{output.name}.report.json")


def _publish(unfinished: Path, output: Path, outcome: Outcome) -> None:
    try:
        with replacing(report_file(output)) as report:
            report.write_text(json.dumps(outcome.as_json(), indent=2) + "\n", encoding="utf-8")
        unfinished.replace(output)
    except OSError as error:
        raise TextsError(f"{output} cannot be written ({error.strerror}); mend that and repeat the command.") from error


def _is_fitted(classifier: TextClassifier) -> bool:
    return classifier.__sklearn_is_fitted__()


# ------------------------------------------------------------------ labels, chunk by chunk


def _labeled_chunks(
    classifier: TextClassifier, scorer: Scorer, source: Path, given: Survey, journal: Journal, bar: tqdm
) -> Iterator[tuple[NumberedRows, Labeled]]:
    """All rows in their order, with their labels."""
    fits = not _is_fitted(classifier)
    known = _fit(classifier, scorer, source, given, journal, bar) if fits else Labeled({}, {})
    for number, chunk in enumerate(chunks(enumerate(read_rows(source)), CHUNK)):
        rows = dict(chunk)
        rest = {row: rows[row] for row in rows if row not in known}
        new = journal.labeled(number, partial(_label, classifier, scorer, rest)) if rest else Labeled({}, {})
        bar.update(len(rest))
        yield rows, known | new


def _fit(
    classifier: TextClassifier, scorer: Scorer, source: Path, given: Survey, journal: Journal, bar: tqdm
) -> Labeled:
    """Fit on a part of the rows; their cross-fitted labels."""
    parts: list[Scored] = []
    for number, chunk in enumerate(chunks(_rows_to_fit(classifier, source, given), CHUNK)):
        parts.append(journal.scored(number, partial(scorer.score, dict(chunk))))
        bar.update(len(chunk))
    scored = joined(parts)
    try:
        return Labeled.of(scored, classifier.fit_scores(scorer, scored))
    except TextsError:  # the same command would end here again, and another one must not be in its way
        journal.end()
        raise


def _rows_to_fit(classifier: TextClassifier, source: Path, given: Survey) -> Iterator[tuple[int, Row]]:
    chosen = set(fixed_part(given.rows, classifier.fit_rows))
    return ((number, row) for number, row in enumerate(read_rows(source)) if number in chosen)


def _label(classifier: TextClassifier, scorer: Scorer, rows: NumberedRows) -> Labeled:
    scored = scorer.score(rows)
    return Labeled.of(scored, calibrated(classifier.calibrator_, scored))


def _answer(found: Labeled, row: int, labels: Sequence[str]) -> Answer:
    if row in found.unusable:
        return {"label": None, "probability": None, "note": found.unusable[row]}
    log_proba = found.log_proba[row]
    best = int(np.argmax(log_proba))
    return {"label": labels[best], "probability": float(np.exp(log_proba[best])), "note": None}


# ------------------------------------------------------------------ checks before the model is loaded


def _checked(classifier: TextClassifier, source: Path, output: Path) -> tuple[Survey, dict[str, str]]:
    """What is in the file, and the names of the columns that come to it."""
    ending(output)
    if source.resolve() == output.resolve():
        raise TextsError(f"{output} is the file that is read; choose another output.")
    given = survey(source)
    if not given.rows:
        raise TextsError(f"{source} has no rows.")
    if missing := [column for column in classifier.named_columns if column not in given.columns]:
        raise TextsError(f"{source} has {no_column(missing[0], given.columns)}")
    if not _is_fitted(classifier):
        question = classifier.question
        texts = sum(question.can_ask(row) for _, row in _rows_to_fit(classifier, source, given))
        check_enough(texts, len(question.labels))
    return given, _added_names(given, source)


def _added_names(given: Survey, source: Path) -> dict[str, str]:
    for prefix in ("", PREFIX):
        names = {name: f"{prefix}{name}" for name in ADDED}
        if not set(names.values()) & set(given.columns):
            return names
    raise TextsError(f"{source} has columns such as label and {PREFIX}label already; rename or drop them.")


def _identity(classifier: TextClassifier, source: Path) -> Identity:
    """What decides the labels: a run that differs in any of it must not go on with the scores of another."""
    named, fitted = classifier.named_model, _is_fitted(classifier)
    chosen = classifier.calibrator
    return run_identity(
        named.identity if named else {"object": str(classifier.model)},
        None,
        asdict(classifier.question),
        input=content(source),
        calibrator=chosen if isinstance(chosen, str) else repr(chosen),
        fit_rows=None if fitted else classifier.fit_rows,
        fitted=digest(classifier.blank_scores_) + str(classifier.report_) if fitted else None,
    )
