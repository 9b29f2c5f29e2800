"""What a training would take, from a few of its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.parts.part import Part
from dovetail.running.forward import outputs_of
from dovetail.tasks.task import Split, Task
from dovetail.train.fit import Fit

__all__ = ["Price", "price_of_training", "seconds_of"]

T = TypeVar("T")

TIMED = 4
"""So many steps an epoch are timed, twice: the first ones pay for warming up."""

BATCH = 64
"""Examples a step, as trainers take by default."""


class Price(NamedTuple):
    """Seconds, and how they were guessed."""

    seconds: float
    guessed_by: str


def seconds_of(work: Callable[[], T]) -> tuple[T, float]:
    """What some work gives, and how long it took.

    >>> value, seconds = seconds_of(lambda: sum(range(1000)))
    >>> value, seconds > 0
    (499500, True)
    """
    began = time.perf_counter()
    value = work()
    return value, time.perf_counter() - began


def price_of_training(
    train: Callable[[Task], Fit], task: Task, epochs: int, *, once: Part | None = None
) -> Price:
    """Train on a few batches, two epochs; then so long for every step that ``epochs`` take.

    Args:
        train: Two epochs on a task, whose record has rows with seconds.
        task: Its training split is what would be trained on.
        epochs: Of the training that is priced.
        once: A part that all training images pass through once before.
    """
    rows = task.indices("train")
    if len(rows) < 2:
        raise TaskError(f"{task.name!r} has no two training examples")
    some = rows[torch.linspace(0, len(rows) - 1, min(len(rows), TIMED * BATCH)).long()]
    fit = train(_only_these(task, some))
    a_step = min(row["seconds"] for row in fit.record.rows) / math.ceil(len(some) / BATCH)  # type: ignore[attr-defined]
    steps = epochs * math.ceil(len(rows) / BATCH)
    seconds = steps * a_step
    if once is not None:
        _, passing = seconds_of(lambda: outputs_of(once, task.inputs.index_select(0, some)))
        seconds += passing * len(rows) / len(some)
    said = f"{steps} steps ({epochs} epochs of {len(rows)} images) of {a_step:.2g} s each, as timed"
    return Price(seconds, said)


def _only_these(task: Task, rows: Tensor) -> Task:
    """A task with these rows to train on, and nothing that costs time beside."""
    none = rows[:0]
    indices: dict[Split, Tensor] = {"train": rows, "validation": none, "test": none}
    return task.derived(task.name, indices=indices)
