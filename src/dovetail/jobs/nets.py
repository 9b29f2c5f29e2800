"""Building a network for a task: what the task already says need not be typed."""

from __future__ import annotations

import inspect
from typing import Any

from dovetail.core.errors import TaskError
from dovetail.parts.builders import find_builder
from dovetail.parts.part import Part, build
from dovetail.tasks.task import Task

__all__ = ["net_for"]


def net_for(task: Task, net: str, args: dict[str, Any] | None = None, *, seed: int = 0) -> Part:
    """Build ``net`` with the task's input shape and number of outputs, and ``args`` over them.

    >>> from dovetail.tasks.load import load_task
    >>> net_for(load_task("digits"), "lenet5").contract.takes[0].shape
    (1, 8, 8)
    """
    accepted = inspect.signature(find_builder(net).make).parameters
    known: dict[str, Any] = {"shape": task.input_shape, "classes": task.outputs}
    if len(task.input_shape) == 3:
        channels, height, width = task.input_shape
        known |= {"channels": channels, "size": height}
        if height != width and "size" in accepted and "size" not in (args or {}):
            raise TaskError(
                f"{net!r} takes square images, {task.name!r} has {height}×{width}; resize the task"
            )
    elif "channels" in accepted:
        raise TaskError(f"{net!r} takes images, {task.name!r} has vectors; use 'mlp'")
    given = {name: value for name, value in known.items() if name in accepted}
    return build(net, seed=seed, **{**given, **(args or {})})
