"""What the uses share: who may be compared on a task, and what a record and a part say of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.core.records import Record
from dovetail.measure.evaluate import refuse_missing_classes
from dovetail.measure.intervals import PairedDifference
from dovetail.parts.norms import Chosen
from dovetail.parts.part import Part
from dovetail.tasks.task import Task
from dovetail.train.compatible_record import Stage


@dataclass(frozen=True, kw_only=True)
class StageTraining(Record):
    """The record of a training on one task in one stage."""

    task: str
    stage: Stage

    @property
    def rows(self) -> tuple[dict[str, float], ...]:
        """The measures of each epoch."""
        return self.stage.rows

    @property
    def final(self) -> dict[str, float]:
        """The row of the epoch whose weights were kept."""
        return self.stage.final


def refuse_unknown_classes(head: Part, task: Task) -> None:
    """Refuse a task whose classes the head does not know by name."""
    if not isinstance(task, Task):
        raise SettingsError(f"a task must be a Task, got {type(task).__name__}")
    if task.kind != "classes":
        raise TaskError(f"{task.name!r} is of kind {task.kind!r}; only classes are right or wrong")
    known = head.contract.classes
    if known is None:
        raise ContractError(
            f"{head.described!r} does not say which classes it tells apart; name them in its "
            "contract: dt.adopt(module, classes=(...))"
        )
    refuse_missing_classes(head, task, known)


def chance_for(head: Part, task: Task) -> float:
    """The accuracy of a blind choice among all that the head knows."""
    return 1 / len(head.contract.classes or task.classes)


def facts_of(task: Task, split: str, chosen: Chosen, seed: int, **parts: Part) -> dict[str, Any]:
    """The settings of a comparison: on what, in which order, of which parts."""
    return {
        "split": split,
        **chosen.settings,
        "order": "random",
        "seed": seed,
        "task_fingerprint": task.fingerprint,
        **{f"{role}_digest": part.digest for role, part in parts.items()},
    }


def of_task(part: Part, task: Task) -> Part:
    """The part with the task in its origin, which a join does not know."""
    origin = replace(part.origin, task=task.name, task_fingerprint=task.fingerprint)
    return part.changed(origin=origin)


def verdict(change: PairedDifference, unsure: str, better: str, worse: str) -> str:
    """What an interval of a difference says, in one's own words."""
    return unsure if not change.sure else better if change.difference > 0 else worse
