"""Reading result folders: the `results_*.json` files of `lm_eval --output_path` and of sweeps.

Everything in such a file was written by someone else: a file that cannot be used is named and skipped, and names
lose their control characters before they reach a terminal or a page.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from lm_eval_proca.compare.names import (
    filter_parameters,
    matches,
    method_name,
    named_apart,
    short_task_name,
    weights_and_arguments,
)
from lm_eval_proca.errors import ResultsError
from lm_eval_proca.metrics import LabelCounts, added
from lm_eval_proca.runs.output_folder import (
    ACCURACY,
    evaluated,
    leaves,
    mapping,
    or_skipped,
    printable,
    read_document,
    record_of,
    result_files,
    samples_file,
)
from lm_eval_proca.scores.fitting import RAW
from lm_eval_proca.scores.identity import IDENTITY_FILE, digest
from lm_eval_proca.scores.record import RunRecord

OF_THE_PROMPT = (
    "description", "doc_to_text", "doc_to_target", "doc_to_choice", "process_docs", "target_delimiter",
    "fewshot_delimiter", "fewshot_config", "gen_prefix",
)  # fmt: skip
"""What a task's configuration says about its prompts and labels, apart from the rows."""


class Conditions(NamedTuple):
    """What must agree before two results of a task may be averaged or compared. None: not recorded."""

    task_version: str | None
    limit: float | None
    eval_rows: int | None
    documents_hash: str | None
    estimate_size: int | None
    demonstrations: str | None = None  # None: drawn whatever their labels, in the order of the draw
    template: str | None = None


@dataclass(frozen=True, eq=False)
class Run:
    """One task in one results file: one model, one prompt, the accuracy under every filter."""

    file: Path
    date: float
    model: str
    arguments: Mapping[str, Any]
    task: str
    shots: int
    seed: int | None
    accuracy: Mapping[str, float]
    conditions: Conditions
    generated: bool
    prompt_hash: str | None
    unlabeled_hash: str | None
    methods: Mapping[str, str]
    """What the tables call each filter."""
    parameters: Mapping[str, str]
    labels: tuple[str, ...]
    label_counts: Mapping[str, LabelCounts]
    warnings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """The warnings of each fit, by filter."""
    members: tuple[str, ...] = ()
    """The tasks of a group, whose average this is."""

    @property
    def samples_files(self) -> list[Path]:
        """Where `--log_samples` put the documents of this run."""
        return [samples_file(self.file, task) for task in self.members or (self.task,)]


class Notice(NamedTuple):
    """One sentence a reader of the tables must know; `damaged` ones also change the exit status."""

    kind: str
    text: str


@dataclass
class Results:
    """All usable runs under some folders."""

    runs: list[Run] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


def read_results(
    folders: Iterable[str | Path],
    tasks: Iterable[str] = ("*",),
    *,
    groups: bool = False,
    documents: Mapping[Path, Any] | None = None,
) -> Results:
    """Read every result under `folders`, keeping tasks whose name, long or short, matches one of `tasks`.

    With `groups`, a group that has an accuracy stands in place of its tasks; `documents` stand in place of files.
    """
    results = Results()
    patterns = list(tasks)
    without_calibration: Counter[str] = Counter()
    for file in result_files(folders):
        try:
            document = (documents or {}).get(file) or read_document(file)
            with or_skipped(file):
                runs, only_raw = _runs_of(file, document)
                runs = _with_groups(document, runs) if groups else runs
        except ResultsError as error:
            results.notices.append(Notice("damaged", str(error)))
            continue
        results.runs += runs
        without_calibration.update(only_raw)
    names = {run.task for run in results.runs} | set(without_calibration)
    wanted = _matching(names, patterns, results.notices)
    results.runs = named_apart([run for run in results.runs if run.task in wanted])
    results.notices += [
        Notice("left out", f"{task} has no calibrated accuracy in {count} results, only '{ACCURACY},{RAW}'.")
        for task, count in without_calibration.items()
        if task in wanted
    ]
    if not results.runs:
        raise _nothing_to_compare(
            "No result with a calibrated accuracy to compare; run `lm_eval --tasks proca_sst2 --output_path DIR "
            "--log_samples` first, or check the folders and --tasks.",
            results.notices,
        )
    return results


def _matching(names: Iterable[str], patterns: Iterable[str], notices: list[Notice]) -> set[str]:
    """The names that match a pattern; a notice names the patterns that match none."""
    found = {pattern: {name for name in names if matches(name, [pattern])} for pattern in patterns}
    unmatched = ", ".join(repr(pattern) for pattern, matching in found.items() if not matching)
    if names and unmatched:
        text = f"No task matches {unmatched}; there are: {', '.join(sorted(map(short_task_name, names)))}."
        if not any(found.values()):
            raise _nothing_to_compare(text, notices)
        notices.append(Notice("missing", text))
    return set().union(*found.values())


def _nothing_to_compare(text: str, notices: Iterable[Notice]) -> ResultsError:
    """The error also says what was skipped, which may be what the user wanted."""
    return ResultsError(" ".join([text, *(notice.text for notice in notices)]))


def _runs_of(file: Path, document: Any) -> tuple[list[Run], list[str]]:
    """The runs of one results file, and the names of tasks that only have a raw accuracy."""
    if not isinstance(config := document.get("config"), dict):
        raise ResultsError("it has no object 'config', so it is not a result of lm-eval")
    runs, without_calibration = [], []
    model, arguments = weights_and_arguments(file.parent / IDENTITY_FILE, document)
    # Groups are in `results` too, but only tasks have a configuration.
    for task, task_config in document["configs"].items():
        if task not in document["results"]:
            raise ResultsError(f"the results of task {printable(task)} are missing")
        accuracy = dict(_accuracies(task, document["results"][task]))
        if not set(accuracy) - {RAW}:
            without_calibration += [printable(task)] if accuracy else []
            continue
        version, record = mapping(task_config, "metadata").get("version"), record_of(task_config, printable(task))
        runs.append(
            Run(
                file=file,
                date=_number(document.get("date")) or file.stat().st_mtime,
                model=model,
                arguments=arguments,
                task=printable(task),
                shots=int(_known(record.num_fewshot, _number(task_config.get("num_fewshot"))) or 0),
                seed=_known(record.seed, _integer(config.get("fewshot_seed"))),
                accuracy=accuracy,
                conditions=Conditions(
                    task_version=_text(mapping(document, "versions").get(task, version)),
                    limit=_known(record.limit, _number(config.get("limit"))),
                    eval_rows=_known(record.eval_rows, _integer(evaluated(document, task))),
                    documents_hash=record.documents_hash,
                    estimate_size=record.estimate_size,
                    demonstrations=_chosen_demonstrations(record),
                    template=_digest_of_template(task_config),
                ),
                generated=record.generated,
                prompt_hash=record.prompt_hash,
                unlabeled_hash=record.unlabeled_hash,
                methods={name: method_name(name, task_config, record.generated) for name in accuracy},
                parameters={name: filter_parameters(name, task_config) for name in accuracy if name != RAW},
                labels=tuple(map(printable, record.labels)),
                label_counts=record.label_counts,
                warnings=_warnings(record.fits, accuracy),
            )
        )
    return runs, without_calibration


def _warnings(fits: Mapping[str, Any], filters: Iterable[str]) -> dict[str, list[str]]:
    said = {name: mapping(fits, name).get("warnings") for name in filters}
    return {name: [printable(one) for one in some] for name, some in said.items() if some and isinstance(some, list)}


def _with_groups(document: Mapping[str, Any], runs: Sequence[Run]) -> list[Run]:
    """The outermost groups in place of their tasks, if all of these are there, with the same shots and seed."""
    by_task = {run.task: run for run in runs}
    subtasks = mapping(document, "group_subtasks")
    inner = {child for children in subtasks.values() for child in children}
    for group in subtasks:
        members = [by_task.get(task) for task in leaves(subtasks, group)]
        accuracy = dict(_accuracies(group, document["results"].get(group) or {}))
        known = [run for run in members if run is not None]
        alike = len({(run.shots, run.seed) for run in known}) == 1 and len(known) == len(members)
        if group in inner or group in by_task or not alike or not set(accuracy) - {RAW}:
            continue
        for run in known:
            by_task.pop(run.task, None)
        by_task[group] = _group_run(group, known, accuracy, mapping(document, "versions").get(group))
    return list(by_task.values())


def _group_run(group: str, members: Sequence[Run], accuracy: Mapping[str, float], version: Any) -> Run:
    conditions = [run.conditions for run in members]
    rows = [one.eval_rows for one in conditions if one.eval_rows is not None]
    hashes = [one.documents_hash for one in conditions]
    return replace(
        members[0],
        task=printable(group),
        accuracy=accuracy,
        conditions=conditions[0]._replace(
            task_version=_text(version),
            eval_rows=sum(rows) if len(rows) == len(members) else None,
            documents_hash=None if None in hashes else digest(hashes),
            template=digest([one.template for one in conditions], 6),
        ),
        prompt_hash=digest([run.prompt_hash for run in members]),
        unlabeled_hash=digest([run.unlabeled_hash for run in members]),
        **_labels_together(members),
        warnings={},
        members=tuple(run.task for run in members),
    )


def _labels_together(members: Sequence[Run]) -> dict[str, Any]:
    """The labels of a group, counted over all its documents; nothing where its tasks have different ones."""
    if len({run.labels for run in members}) > 1:
        return {"labels": (), "label_counts": {}}
    names = set.intersection(*(set(run.label_counts) for run in members))
    return {"label_counts": {name: added(run.label_counts[name] for run in members) for name in sorted(names)}}


def _digest_of_template(task_config: Mapping[str, Any]) -> str:
    said = [str(task_config.get(key)) for key in OF_THE_PROMPT]
    return digest([re.sub(r" at 0x[0-9a-f]+", "", text) for text in said], 6)  # addresses change from run to run


def _accuracies(task: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        metric, _, name = key.partition(",")
        if metric == ACCURACY and name:
            accuracy = _number(value)
            if accuracy is None or not 0 <= accuracy <= 1:
                raise ResultsError(f"{key} of task {printable(task)} is {value!r}, not an accuracy")
            yield printable(name), accuracy


def _number(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _integer(value: Any) -> int | None:
    return None if (number := _number(value)) is None else int(number)


def _text(value: Any) -> str | None:
    return None if value is None else printable(str(value))


def _known(recorded: Any, otherwise: Any) -> Any:
    """What a run of ours has recorded; of other runs, what lm-eval says."""
    return otherwise if recorded is None else recorded


def _chosen_demonstrations(record: RunRecord) -> str | None:
    """How an ablation chose its demonstrations, in words."""
    counts, order = record.demonstration_counts, record.order_seed
    words = [f"demonstrations {'/'.join(map(str, counts))}"] if counts is not None else []
    words += [f"order {order}"] if order is not None else []
    return ", ".join(words) or None
