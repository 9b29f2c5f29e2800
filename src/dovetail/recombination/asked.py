"""What was asked for: parts by name, a task for each front, and which head is a front's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import get_args

from torch import nn

from dovetail.core.errors import SettingsError, TaskError, nearest
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part, as_part
from dovetail.tasks.task import Task

__all__ = ["Parts", "Tasks", "by_name", "norms_asked", "own_heads", "tasks_by_front"]

Parts = Part | nn.Module | Sequence[Part | nn.Module] | Mapping[str, Part | nn.Module]
Tasks = Task | Sequence[Task] | Mapping[str, Task]


def by_name(parts: Parts, noun: str) -> dict[str, Part]:
    """The parts under the names given, or under what they are, made unique.

    >>> from dovetail.parts.part import build
    >>> list(by_name([build("mlp"), build("mlp", seed=1)], "fronts"))
    ['mlp', 'mlp #2']
    """
    if isinstance(parts, Mapping):
        found = {str(name): as_part(part) for name, part in parts.items()}
    else:
        found = {}
        for part in [parts] if isinstance(parts, Part | nn.Module) else parts:
            part = as_part(part)
            name, number = part.described, 2
            while name in found:
                name, number = f"{part.described} #{number}", number + 1
            found[name] = part
    if not found:
        raise SettingsError(f"there are no {noun} to recombine")
    return found


def own_heads(
    fronts: Parts, heads: Parts, front_names: Sequence[str], head_names: Sequence[str]
) -> dict[str, str]:
    """Each front's own head: of the same name, or in two sequences of one length, in its place.

    A lone part belongs to nobody: a single front with a single head is mostly asked about because
    they are strangers.

    >>> own_heads({}, {}, ["low", "high"], ["high"])
    {'high': 'high'}
    >>> own_heads([], [], ["front", "front #2"], ["back", "back #2"])
    {'front': 'back', 'front #2': 'back #2'}
    """
    placed = isinstance(fronts, Sequence) and isinstance(heads, Sequence)
    if placed and len(front_names) == len(head_names):
        return dict(zip(front_names, head_names, strict=True))
    if isinstance(fronts, Mapping) and isinstance(heads, Mapping):
        return {name: name for name in front_names if name in head_names}
    return {}


def tasks_by_front(tasks: Tasks, fronts: Sequence[str]) -> dict[str, Task]:
    """The task each front is tested on."""
    if isinstance(tasks, Task):
        found = dict.fromkeys(fronts, tasks)
    elif isinstance(tasks, Mapping):
        for name in fronts:
            if name not in tasks:
                near = nearest(name, map(str, tasks))
                raise SettingsError(f"there is no task for the front {name!r}{near}")
        found = {name: tasks[name] for name in fronts}
    else:
        tasks = list(tasks)
        if len(tasks) != len(fronts):
            raise SettingsError(
                f"{len(tasks)} tasks for {len(fronts)} fronts; give one for all, or one for each"
            )
        found = dict(zip(fronts, tasks, strict=True))
    for task in found.values():
        if not isinstance(task, Task):
            raise SettingsError(f"expected a Task, got {type(task).__name__}; see dt.load_task")
        if task.kind != "classes":
            raise TaskError(f"{task.name!r} is of kind {task.kind!r}; recombining needs classes")
    return found


def norms_asked(norms: Norms | Sequence[Norms], batch_size: int) -> tuple[Norms, ...]:
    """The policies as a tuple, each of them once.

    >>> norms_asked("batch", 512), norms_asked(["stored", "batch"], 512)
    (('batch',), ('stored', 'batch'))
    """
    asked: tuple[Norms, ...] = (norms,) if isinstance(norms, str) else tuple(norms)
    for policy in asked:
        if policy not in get_args(Norms):
            raise SettingsError(f"norms must be among {', '.join(get_args(Norms))}; got {policy!r}")
    if not asked or len(set(asked)) < len(asked):
        raise SettingsError(f"name at least one policy for norms, and each once; got {asked}")
    least = 1 if asked == ("stored",) else 2
    if batch_size < least:
        why = "; a batch of one has no variance" if least == 2 else ""
        raise SettingsError(f"batch_size must be at least {least}, got {batch_size}{why}")
    return asked
