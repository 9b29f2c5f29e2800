"""Mistakes that are told before torch is loaded: tasks and parts that are not there.

Every command asks here first.  The jobs look again, for those who call them from Python.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["need_halves", "need_parts", "need_tasks"]


def need_tasks(names: Iterable[str | None], data: str | None) -> None:
    """Refuse a task that is misspelt or not here.

    >>> need_tasks(["digits", None, "digits~invertd"], None)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: 'digits~invertd': unknown change '~invertd'; did you mean...
    """
    from dovetail.tasks.known import refuse_unknown

    for name in names:
        if name is not None:
            refuse_unknown(name, data)


def need_parts(refs: Iterable[str | None], shelf: str) -> None:
    """Refuse a part that is neither in a folder nor on the shelf."""
    from dovetail.shelf.names import need_part

    for ref in refs:
        if ref is not None:
            need_part(ref, shelf)


def need_halves(refs: Iterable[str | None], side: str, shelf: str) -> None:
    """Refuse a network without this half on the shelf: ``"front"`` or ``"head"``.

    A half that is named in full is one.
    """
    from dovetail.shelf.names import HALVES, need_part

    for ref in refs:
        if ref is not None:
            need_part(ref, shelf, HALVES[side])
