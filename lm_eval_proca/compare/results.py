"""Reading result folders: the `results_*.json` files of `lm_eval --output_path` and of sweeps.

Everything in such a file was written by someone else: a file that cannot be used is named and skipped, and names
lose their control characters before they reach a terminal or a page.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lm_eval_proca.compare import names
from lm_eval_proca.errors import ResultsError, did_you_mean
from lm_eval_proca.metrics import added
from lm_eval_proca.runs import output_folder
from lm_eval_proca.runs.groups import SAME
from lm_eval_proca.runs.output_folder import ACCURACY, TOGETHER, mapping, printable
from lm_eval_proca.runs.sample_logs import Number
from lm_eval_proca.scores.fitting import RAW
from lm_eval_proca.scores.identity import IDENTITY_FILE, digest
from lm_eval_proca.scores.record import RunRecord

OF_THE_PROMPT = (
    "description", "doc_to_text", "doc_to_target", "doc_to_choice", "process_docs", "target_delimiter",
    "fewshot_delimiter", "fewshot_config", "gen_prefix",
)  # fmt: skip
"""What a task's configuration says about its prompts and labels, apart from the rows."""


@dataclass(frozen=True, eq=False)
class Run:
    """One task in one results file: one model, the accuracy under every filter and prompt."""

    file: Path
    date: float
    model: str
    arguments: Mapping[str, Any]
    task: str
    shots: int
    seed: int | None
    accuracy: Mapping[str, float]
    """Under prompt 0, which most runs have alone."""
    record: RunRecord
    """Of a run that did not write one, what lm-eval says."""
    template: str
    """A hash of what the task's configuration says about its prompts."""
    methods: Mapping[str, str]
    """What the tables call each filter."""
    parameters: Mapping[str, str]
    members: tuple[str, ...] = ()
    """The tasks of a group, whose average this is."""
    further: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """The accuracies under the prompts after the first."""
    together: Mapping[str, float] = field(default_factory=dict)
    """The accuracy of all prompts together."""

    def measured(self) -> Iterator[tuple[str, Number, float]]:
        """Filter, number of the prompt (None for all together), and accuracy of everything that was measured."""
        for name, accuracy in self.accuracy.items():
            yield from ((name, k, one) for k, one in enumerate([accuracy, *self.further.get(name, ())]))
            if name in self.together:
                yield name, None, self.together[name]

    @property
    def several(self) -> bool:
        """Whether it has several prompts, of which each is known."""
        return any(self.further.values())

    @property
    def samples_files(self) -> list[Path]:
        """Where `--log_samples` put the documents of this run."""
        return [output_folder.samples_file(self.file, task) for task in self.members or (self.task,)]


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
    notices: Iterable[Notice] = (),
) -> Results:
    """Read every result under `folders`, keeping tasks whose name, long or short, matches one of `tasks`.

    With `groups`, a group that has an accuracy stands in place of its tasks; `documents` stand in place of files, and
    `notices` come before those of the reading.
    """
    results = Results(notices=list(notices))
    without_calibration: Counter[str] = Counter()
    for file in output_folder.result_files(folders):
        try:
            document = (documents or {}).get(file) or output_folder.read_document(file)
            with output_folder.or_skipped(file):
                runs, only_raw = _runs_of(file, document)
                runs = _with_groups(document, runs) if groups else runs
        except ResultsError as error:
            results.notices.append(Notice("damaged", str(error)))
        else:
            results.runs += runs
            without_calibration.update(only_raw)
    tasks_found = {run.task for run in results.runs} | set(without_calibration)
    wanted = _matching(tasks_found, list(tasks), results.notices)
    results.runs = names.named_apart([run for run in results.runs if run.task in wanted])
    results.notices += [
        Notice("left out", f"{task} has no calibrated accuracy in {count} results, only '{ACCURACY},{RAW}'.")
        for task, count in without_calibration.items()
        if task in wanted
    ]
    if averaged := sorted({run.task for run in results.runs if run.record.prompts > 1 and not run.several}):
        text = "its average under each prompt is not known, so the tables have its first prompt alone"
        results.notices += [Notice("left out", f"{task}: {text}.") for task in averaged]
    if not results.runs:
        raise _nothing_to_compare(
            "No result with a calibrated accuracy to compare; run `lm_eval --tasks proca_sst2 --output_path DIR "
            "--log_samples` first, or check the folders and --tasks.",
            results.notices,
        )
    return results


def _matching(tasks: Iterable[str], patterns: Iterable[str], notices: list[Notice]) -> set[str]:
    """The tasks that match a pattern; a notice names the patterns that match none."""
    found = {pattern: {task for task in tasks if names.matches(task, [pattern])} for pattern in patterns}
    unmatched = ", ".join(repr(pattern) for pattern, matching in found.items() if not matching)
    if tasks and unmatched:
        short = sorted(map(names.short_task_name, tasks))
        near = did_you_mean(next(pattern for pattern, matching in found.items() if not matching), [*short, *tasks])
        text = f"No task matches {unmatched}; there are: {', '.join(short)}.{near}"
        if not any(found.values()):
            raise _nothing_to_compare(text, notices)
        notices.append(Notice("missing", text))
    return set().union(*found.values())


def _nothing_to_compare(text: str, notices: Iterable[Notice]) -> ResultsError:
    """The error also says what was skipped, which may be what the user wanted."""
    return ResultsError(" ".join([text, *(notice.text for notice in notices)]))


def _runs_of(file: Path, document: Any) -> tuple[list[Run], list[str]]:
    """The runs of one results file, and the names of tasks that only have a raw accuracy."""
    if not isinstance(document.get("config"), dict):
        raise ResultsError("it has no object 'config', so it is not a result of lm-eval")
    runs, without_calibration = [], []
    model, arguments = names.weights_and_arguments(file.parent / IDENTITY_FILE, document)
    # Groups are in `results` too, but only tasks have a configuration.
    for task, task_config in document["configs"].items():
        if task not in document["results"]:
            raise ResultsError(f"the results of task {printable(task)} are missing")
        values = document["results"][task]
        accuracy = dict(_accuracies(task, values))
        if not set(accuracy) - {RAW}:
            without_calibration += [printable(task)] if accuracy else []
            continue
        record = _completed(document, task)
        runs.append(
            Run(
                file=file,
                date=_number(document.get("date")) or file.stat().st_mtime,
                model=model,
                arguments=arguments,
                task=record.task,
                shots=int(record.num_fewshot or 0),
                seed=record.seed,
                accuracy=accuracy,
                record=record,
                template=_digest_of_template(task_config),
                methods={name: names.method_name(name, task_config, record.generated) for name in accuracy},
                parameters={name: names.filter_parameters(name, task_config) for name in accuracy if name != RAW},
                further={name: _under_further_prompts(record, name) for name in accuracy},
                together=dict(_accuracies(task, values, TOGETHER)),
            )
        )
    return runs, without_calibration


def _completed(document: Mapping[str, Any], task: str) -> RunRecord:
    """What a run of ours has recorded; where it has not, what lm-eval says."""
    task_config, config = document["configs"][task], document["config"]
    record = output_folder.record_of(task_config, printable(task))
    otherwise: dict[str, Any] = {
        "num_fewshot": _number(task_config.get("num_fewshot")),
        "seed": _number(config.get("fewshot_seed")),
        "limit": _number(config.get("limit")),
        "eval_rows": _number(output_folder.evaluated(document, task)),
    }
    unknown = {key: value for key, value in otherwise.items() if getattr(record, key) is None}
    version = mapping(document, "versions").get(task, mapping(task_config, "metadata").get("version"))
    labels = tuple(map(printable, record.labels))
    return replace(record, task=printable(task), task_version=printable(version), labels=labels, **unknown)


def _with_groups(document: Mapping[str, Any], runs: Sequence[Run]) -> list[Run]:
    """The outermost groups in place of their tasks, if all of these are there, with the same shots and seed."""
    by_task = {run.task: run for run in runs}
    subtasks = mapping(document, "group_subtasks")
    inner = {child for children in subtasks.values() for child in children}
    for group in subtasks:
        members = [by_task.get(task) for task in output_folder.leaves(subtasks, group)]
        values = document["results"].get(group) or {}
        accuracy, together = dict(_accuracies(group, values)), dict(_accuracies(group, values, TOGETHER))
        known = [run for run in members if run is not None]
        alike = len({(run.shots, run.seed) for run in known}) == 1 and len(known) == len(members)
        if group in inner or group in by_task or not alike or not set(accuracy) - {RAW}:
            continue
        for run in known:
            by_task.pop(run.task, None)
        averaged = _group_run(group, known, accuracy, mapping(document, "versions").get(group))
        by_task[group] = replace(averaged, together=together if averaged.several else {})
    return list(by_task.values())


def _group_run(group: str, members: Sequence[Run], accuracy: Mapping[str, float], version: Any) -> Run:
    """The labels are counted over all documents of the group, if its tasks have the same labels."""
    records = [run.record for run in members]
    rows = [one.eval_rows for one in records if one.eval_rows is not None]
    hashes = [one.documents_hash for one in records]
    same_labels = len({one.labels for one in records}) == 1
    counted = set.intersection(*(set(one.label_counts) for one in records)) if same_labels else ()
    record = replace(
        records[0],
        task_version=printable(version),
        eval_rows=sum(rows) if len(rows) == len(members) else None,
        documents_hash=None if None in hashes else digest(hashes),
        prompt_hash=digest([one.prompt_hash for one in records]),
        unlabeled_hash=digest([one.unlabeled_hash for one in records]),
        labels=records[0].labels if same_labels else (),
        label_counts={name: added(one.label_counts[name] for one in records) for name in sorted(counted)},
        fits={},
    )
    return replace(
        members[0],
        task=printable(group),
        accuracy=accuracy,
        record=record,
        template=digest([run.template for run in members], 6),
        members=tuple(run.task for run in members),
        further=_under_further_prompts_of_tasks(members, accuracy),
    )


def _under_further_prompts_of_tasks(members: Sequence[Run], accuracy: Mapping[str, float]) -> dict[str, list[float]]:
    """A group's average under each prompt after the first, by size or not, whichever gives that under the first."""
    known = [name for name in accuracy if all(name in run.accuracy for run in members)]
    alike = [name for name in known if len({len(run.further.get(name, ())) for run in members}) == 1]
    by_task = {name: [[run.accuracy[name], *run.further.get(name, ())] for run in members] for name in alike}
    for weights in ([run.record.eval_rows or 0 for run in members], [1 for _ in members]):
        averaged = {name: np.average(by_task[name], axis=0, weights=weights).tolist() for name in alike if all(weights)}
        if averaged and all(math.isclose(found[0], accuracy[name], abs_tol=SAME) for name, found in averaged.items()):
            return {name: found[1:] for name, found in averaged.items()}
    return {}


def _digest_of_template(task_config: Mapping[str, Any]) -> str:
    said = [str(task_config.get(key)) for key in OF_THE_PROMPT]
    return digest([re.sub(r" at 0x[0-9a-f]+", "", text) for text in said], 6)  # addresses change from run to run


def _accuracies(task: str, values: Mapping[str, Any], wanted: str = ACCURACY) -> Iterator[tuple[str, float]]:
    for key, value in values.items():
        metric, _, name = key.partition(",")
        if metric == wanted and name:
            if not _is_accuracy(value):
                raise ResultsError(f"{key} of task {printable(task)} is {value!r}, not an accuracy")
            yield printable(name), float(value)


def _under_further_prompts(record: RunRecord, filter_name: str) -> list[float]:
    """What a run with several prompts has recorded; a filter that is not ours is known under the first alone."""
    if filter_name not in record.together:
        return []
    found = mapping(record.together, filter_name).get("accuracy")
    if not isinstance(found, list) or len(found) != record.prompts or not all(map(_is_accuracy, found)):
        raise ResultsError(
            f"the record of {record.task} was changed: it does not have an accuracy of {filter_name} for each of its "
            f"{record.prompts} prompts"
        )
    return [float(one) for one in found[1:]]


def _is_accuracy(value: Any) -> bool:
    known = _number(value)
    return known is not None and 0 <= known <= 1


def _number(value: Any) -> Any:
    """The value, if it is a finite number."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number and abs(value) <= sys.float_info.max else None
