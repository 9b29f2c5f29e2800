"""The tour's chapter about few labels: a part adapted to classes that it has never seen."""

from __future__ import annotations

from dovetail.flows.adapt_record import Adaptation
from dovetail.flows.adapt_ways import compare_ways
from dovetail.parts.part import Part
from dovetail.tasks.derive import only_classes
from dovetail.tasks.task import Task

__all__ = ["adapted_to_the_rest"]

LABELS = (3, 10)


def adapted_to_the_rest(part: Part, task: Task, *, name: str, seed: int) -> Adaptation:
    """Adapt a part to the classes of a task that it does not know, ten labels each or fewer."""
    known = part.contract.classes or ()
    rest = only_classes(task, [each for each in task.classes if each not in known])
    return compare_ways(part, rest, labels=LABELS, seed=seed, name=name, show=False).record
