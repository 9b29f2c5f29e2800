"""What is refused before fronts are compared behind a head, or trained to be."""

from __future__ import annotations

from dovetail.core.errors import ContractError, SettingsError, TaskError
from dovetail.parts.part import Part
from dovetail.tasks.task import Task

__all__ = ["refuse_unknown_classes"]


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
    missing = [name for name in task.classes if name not in known]
    if missing:
        raise TaskError(
            f"{head.described!r} does not know the class {missing[0]!r} of {task.name!r}; it knows "
            f"{', '.join(known[:10])}. Restrict the task to the classes that both have, with "
            "tasks.derive.only_classes"
        )
