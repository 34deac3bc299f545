"""From the names on a command line to tasks: their YAML files, and what a group changes in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import filter as matching
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._factory import Entry, Kind, TaskFactory

from lm_eval_proca.errors import ProcaError, TaskError, did_you_mean
from lm_eval_proca_discovery import task_configs_path


@dataclass(frozen=True)
class TaskFile:
    """A task's YAML, and what the group by which it was named puts in place of its keys (functions are loaded)."""

    path: Path
    overrides: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def load(self, metadata: dict[str, Any]) -> Task:
        """The task itself, which loads its dataset."""
        entry = Entry(self.path.stem, Kind.TASK, self.path)
        return cast(Task, TaskFactory(meta=metadata).build(entry, overrides=dict(self.overrides), registry={}))


def find_task_files(names: Sequence[str], include_path: Sequence[str] = ()) -> dict[str, TaskFile]:
    """The file of every task that `names` (tasks, groups, tags, patterns) stand for, in their order.

    lm-eval's own ten thousand files are read only if a name is not among ours and those of `include_path`.
    """
    folders = [task_configs_path(), *include_path]
    index = _index(folders, include_defaults=False)
    if any(not matching(index, name) for name in names):
        index = _index(folders, include_defaults=True)
    found: dict[str, TaskFile] = {}
    for name in names:
        chosen = matching(index, name)
        if not chosen:
            known = ", ".join(sorted(key for key in index if key.startswith("proca")))
            near = did_you_mean(name, index)
            raise TaskError(f"There is no task {name}; ours are {known}, and --include_path DIR adds your own.{near}")
        for key in chosen:
            for task, file in _members(key, index).items():
                if found.setdefault(task, file) != file:
                    raise TaskError(f"{task} is named twice and groups change it in different ways; run {key} apart.")
    return found


def find_task_configs(name: str, include_path: Sequence[str] = ()) -> dict[str, Mapping[str, Any]]:
    """The configuration of every task that a task, group, tag or pattern stands for, as its YAML files have it."""
    index = _index([task_configs_path(), *include_path], include_defaults=True)
    tasks = {key for key, entry in index.items() if entry.kind.name in ("TASK", "PY_TASK")}
    chosen = [name] if name in index else matching(tasks, name)
    found = {task: file for key in chosen for task, file in _members(key, index).items()}
    if not found:
        raise TaskError(
            f"There is no task {name}; a pattern such as 'mmlu*' needs quotes, --include_path DIR adds yours."
            f"{did_you_mean(name, index)}"
        )
    return {key: {**index[key].cfg, **file.overrides} for key, file in found.items()}


def find_single_task(name: str, include_path: Sequence[str] = ()) -> tuple[str, TaskFile]:
    """One task and its file; a group or a pattern that stands for several is refused."""
    found = find_task_files([name], include_path)
    if len(found) != 1:
        raise TaskError(f"{name} stands for {len(found)} tasks; name one of {', '.join(found)}.")
    return next(iter(found.items()))


def _index(folders: Iterable[str], *, include_defaults: bool) -> dict:
    return TaskManager(include_path=list(folders), include_defaults=include_defaults).task_index


def _members(name: str, index: dict) -> dict[str, TaskFile]:
    """The tasks that a task, group or tag of the index stands for."""
    factory = _NotingFactory()
    try:
        factory.build(index[name], registry=index)
    except ProcaError:
        raise
    except Exception as error:  # whatever a YAML or its functions may raise
        raise TaskError(f"The group {name} cannot be read ({type(error).__name__}: {error}).") from error
    return factory.noted


class _NotingFactory(TaskFactory):
    """Follows groups and tags as lm-eval does, but notes their tasks instead of loading them."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: dict[str, TaskFile] = {}

    def _build_task(self, entry: Any, overrides: dict[str, Any] | None) -> Any:
        given = {"task": entry.name, **(overrides or {})}
        same = {"task"} if given["task"] == entry.name else set()
        changed = {key: value for key, value in given.items() if key not in {"group", "tag", "task_list"} | same}
        self.noted[given["task"]] = TaskFile(Path(entry.yaml_path), changed)
        return SimpleNamespace(task_name=given["task"])

    def _build_group_members(self, member_list: list, group_name: str, overrides: Any, registry: dict) -> Any:
        for member in member_list:
            name = member if isinstance(member, str) else None if "group" in member else member.get("task")
            if name is not None and name not in registry:
                raise TaskError(
                    f"The group {group_name} names the task {name}, which is in none of the task folders; add its "
                    f"folder by --include_path."
                )
        return super()._build_group_members(member_list, group_name, overrides, registry)
