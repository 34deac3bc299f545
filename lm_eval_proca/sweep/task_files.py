"""From the names on a command line to task files, without loading a dataset."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import filter as matching
from pathlib import Path
from typing import Any

from lm_eval.tasks import TaskManager

from lm_eval_proca.errors import TaskError
from lm_eval_proca_discovery import task_configs_path


def find_task_files(names: Sequence[str], include_path: Sequence[str] = ()) -> dict[str, Path]:
    """The YAML file of every task that `names` (tasks, groups, tags, patterns) stand for, in their order.

    lm-eval's own ten thousand files are read only if a name is not among ours and those of `include_path`.
    """
    folders = [task_configs_path(), *include_path]
    index = _index(folders, include_defaults=False)
    if any(not matching(index, name) for name in names):
        index = _index(folders, include_defaults=True)
    found: dict[str, Path] = {}
    for name in names:
        chosen = matching(index, name)
        if not chosen:
            known = ", ".join(sorted(key for key in index if key.startswith("proca")))
            raise TaskError(f"There is no task {name}; ours are {known}, and --include_path DIR adds your own.")
        for key in chosen:
            _expand(key, index, found)
    return found


def find_task_configs(name: str, include_path: Sequence[str] = ()) -> dict[str, Mapping[str, Any]]:
    """The configuration of every task that a task, group, tag or pattern stands for, as its YAML files have it."""
    index = _index([task_configs_path(), *include_path], include_defaults=True)
    tasks = {key for key, entry in index.items() if entry.kind.name in ("TASK", "PY_TASK")}
    found: dict[str, Path] = {}
    for key in [name] if name in index else matching(tasks, name):
        _expand(key, index, found)
    if not found:
        raise TaskError(
            f"There is no task {name}; a pattern such as 'mmlu*' needs quotes, --include_path DIR adds yours."
        )
    return {key: index[key].cfg for key in found}


def find_single_task(name: str, include_path: Sequence[str] = ()) -> tuple[str, Path]:
    """One task and its YAML file; a group or a pattern that stands for several is refused."""
    found = find_task_files([name], include_path)
    if len(found) > 1:
        raise TaskError(f"{name} stands for {len(found)} tasks; name one of {', '.join(found)}.")
    return next(iter(found.items()))


def _index(folders: Iterable[str], *, include_defaults: bool) -> dict:
    return TaskManager(include_path=list(folders), include_defaults=include_defaults).task_index


def _expand(name: str, index: dict, found: dict[str, Path]) -> None:
    entry = index.get(name)
    if entry is None:
        raise TaskError(f"A group names the task {name}, which is in none of the task folders.")
    if entry.kind.name == "GROUP":
        members: Iterable[str] = _members(entry.cfg["task"])
    elif entry.kind.name == "TAG":
        members = sorted(entry.tags)
    else:
        found[name] = Path(entry.yaml_path)
        return
    for member in members:
        _expand(member, index, found)


def _members(members: str | Iterable[Any]) -> Iterator[str]:
    """Names in a group; it may hold further groups that have no file of their own."""
    for member in [members] if isinstance(members, str) else members:
        if isinstance(member, str):
            yield member
        elif isinstance(inner := member.get("task", member.get("group")), list):
            yield from _members(inner)
        else:
            yield inner
