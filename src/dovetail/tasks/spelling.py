"""Tasks made of tasks, by name: ``digits~inverted``, ``digits[0,1,2]~rot90``.

A derived task is called by what was derived and how (:mod:`dovetail.tasks.derive`).  Here the same
names are read, so that a line of text can ask for what a function makes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from dovetail.core.errors import TaskError, nearest, shown

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from typing import Any

    from dovetail.tasks.task import Task

__all__ = ["Change", "base_of", "changes_of", "derived_by_name"]

Change = Callable[["Task", int], "Task"]
"""What makes a task of a task; the number is a seed, for those that draw."""

_NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
_LAST = re.compile(r"(?s)(.+?)((?:~[^~\[\]/\\]+|\[[^\[\]]*\])+)")
_EACH = re.compile(r"~([^~\[\]]+)|\[([^\[\]]*)\]")

_WORDS: dict[str, tuple[str, Callable[..., Change]]] = {
    "inverted": ("inverted", lambda: lambda task, _: _made("inverted", task)),
    "grey": ("grey", lambda: lambda task, _: _made("grey", task)),
    "rotations": ("rotations", lambda: lambda task, _: _made("rotations", task)),
    "rot90": (f"rot{_NUMBER}", lambda by: lambda task, _: _made("rotated", task, float(by))),
    "blur1": (f"blur{_NUMBER}", lambda by: lambda task, _: _made("blurred", task, float(by))),
    "noise0.2": (
        f"noise{_NUMBER}",
        lambda std: lambda task, seed: _made("noisy", task, float(std), seed),
    ),
    "5shot": (
        r"(\d{1,9})shot",
        lambda count: lambda task, seed: _made("few", task, int(count), seed),
    ),
    "16x16": (
        r"(\d{1,5})x(\d{1,5})",
        lambda height, width: lambda task, _: _made("resized", task, (int(height), int(width))),
    ),
}
"""By an example of each: its pattern, and what makes the change of the numbers in it."""


def base_of(name: str) -> str | None:
    """The task that a name derives another from; ``None`` when it derives none.

    >>> base_of("digits[0,1]~rot90"), base_of("~/images.npz~grey"), base_of("digits")
    ('digits', '~/images.npz', None)
    """
    found = _LAST.fullmatch(name)
    return None if found is None else found[1]


def changes_of(name: str) -> list[Change]:
    """What is done to the base, in this order.

    >>> len(changes_of("digits[0,1]~blur1~noise0.2"))
    3
    >>> changes_of("digits~invertd")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: 'digits~invertd': unknown change '~invertd'; did you mean...
    """
    found = _LAST.fullmatch(name)
    steps = [] if found is None else _EACH.finditer(found[2])
    return [_chosen(step[2]) if step[1] is None else _change(step[1], name) for step in steps]


def derived_by_name(base: Task, name: str, seed: int = 0) -> Task:
    """The task that ``name`` asks for, from its base.

    >>> import torch
    >>> from dovetail.tasks.task import Task
    >>> bars = Task(torch.rand(30, 1, 6, 4), ["a", "b", "c"] * 10, name="bars")
    >>> derived_by_name(bars, "bars[a,c]~rot90").name
    'bars[a,c]~rot90'
    """
    for change in changes_of(name):
        base = change(base, seed)
    return base


def _chosen(listed: str) -> Change:
    names = [name.strip() for name in listed.split(",")]
    return lambda task, _: _made("only_classes", task, names)


def _made(how: str, task: Task, *settings: Any) -> Task:
    from dovetail.tasks import derive  # torch loads here, so that a name is refused without it

    made: Task = getattr(derive, how)(task, *settings)
    return made


def _change(word: str, name: str) -> Change:
    for pattern, make in _WORDS.values():
        if found := re.fullmatch(pattern, word):
            return make(*found.groups())
    known = (f"~{example}" for example in _WORDS)
    raise TaskError(
        f"{shown(name)}: unknown change {shown('~' + word)}{nearest('~' + word, known)}"
    )
