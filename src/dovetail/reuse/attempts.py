"""What the repairs share: an attempt, how it is judged, and how it is spelled as a command."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from dovetail.core.errors import ContractError, DovetailError, TaskError
from dovetail.measure.forward import outputs_of
from dovetail.parts.norms import Norms
from dovetail.parts.part import Part
from dovetail.reuse.fit_report import Repair, best_norms
from dovetail.reuse.question import NORMS, Question, one_line
from dovetail.tasks.task import Split, Task
from dovetail.train.fit import Fit

__all__ = [
    "Attempt",
    "Price",
    "command_for",
    "judged",
    "outcome_of",
    "price_of_training",
    "seconds_of",
    "why_not",
]


@dataclass(frozen=True)
class Attempt:
    """A repair without figures, and how to get them with a task."""

    repair: Repair
    price: Callable[[Task], Repair]


def outcome_of(attempt: Attempt, question: Question) -> Repair:
    """The repair with its figures; whatever of ours refuses says why it does not apply."""
    repair = attempt.repair
    if repair.why_not is not None:
        return replace(repair, applies=False)
    if question.priced is None:
        return repair
    try:
        return attempt.price(question.priced)
    except DovetailError as error:
        return replace(repair, applies=False, why_not=one_line(error))


def judged(
    question: Question,
    repair: Repair,
    tail: Part,
    seconds: float,
    policies: tuple[Norms, ...] = NORMS,
) -> Repair:
    """The repair with the accuracy of the front and ``tail``, under the best policy of norms."""
    found = question.accuracies(question.front, tail, policies)
    norms = best_norms(found)
    return replace(repair, kind="measured", accuracy=found[norms], seconds=seconds, norms=norms)


def why_not(attempt: Callable[[], object]) -> str | None:
    """What refuses an attempt, if anything does.

    >>> why_not(lambda: 1) is None
    True
    """
    try:
        attempt()
    except ContractError as error:
        return one_line(error)
    return None


def command_for(
    question: Question,
    options: str = "",
    *,
    through: Sequence[str] = (),
    reference: str | None = None,
    task: bool = True,
) -> str:
    """The repair on the command line; what has no name there is in capitals."""
    called = question.names.get
    words = ["dovetail", "join", called("front", "FRONT"), *through, called("head", "HEAD")]
    words += ["--task", called("task", "TASK")] if task else []
    words += options.split()
    words += [] if reference is None else ["--reference", reference]
    return shlex.join([*words, "--name", "NAME"])


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
