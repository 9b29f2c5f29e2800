"""What a task may be called: the known names, and those of tasks made of tasks.

Light on purpose, as the command line asks here before it loads torch.  What a data set holds and
where it comes from is in ``catalogue``.  A derived task is called by what was derived and how
(:mod:`dovetail.tasks.derive`), as in ``digits[0,1,2]~rot90``; here the same names are read, so that
a line of text can ask for what a function makes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from dovetail.core.errors import TaskError, nearest, shown

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from dovetail.tasks.task import Task

BUNDLED = "digits"
"""The one that needs no files."""

COLUMNS = ("name", "what", "images", "where")
HINT = "Get one with 'dovetail data get NAME'."

KNOWN: dict[str, dict[str, Any]] = {
    "mnist": {"title": "MNIST: handwritten digits", "train": 60_000, "test": 10_000},
    "fashion-mnist": {
        "title": "Fashion-MNIST: pictures of clothes",
        "train": 60_000,
        "test": 10_000,
        "elsewhere": ("/usr/share/datasets/fashion-mnist",),
    },
    "cifar10": {
        "title": "CIFAR-10: small colour photographs",
        "train": 50_000,
        "test": 10_000,
    },
}
"""Of each data set that can be fetched, its title, its numbers of images and where else it lies."""


def names() -> tuple[str, ...]:
    """The tasks known by name.

    >>> names()
    ('digits', 'mnist', 'fashion-mnist', 'cifar10')
    """
    return BUNDLED, *KNOWN


def table(there: Mapping[str, str | None]) -> tuple[tuple[str | int | None, ...], ...]:
    """One row a task: its name, what it is, how many images, and where it is, if anywhere.

    >>> table({})[0]
    ('digits', 'handwritten digits', 1797, 'bundled')
    """
    fetched = (
        (name, about["title"], about["train"] + about["test"], there.get(name))
        for name, about in KNOWN.items()
    )
    return ((BUNDLED, "handwritten digits", 1797, "bundled"), *fetched)


def need_data(name: str) -> None:
    """Refuse a data set that nobody knows.

    >>> need_data("cifar")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: unknown data set 'cifar'; did you mean cifar10?
    """
    if name not in KNOWN:
        raise TaskError(f"unknown data set {name!r}{nearest(name, KNOWN)}")


def folders(data: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """Where data sets are looked for, in this order.

    >>> folders("here")
    ('here',)
    """
    if data is not None:
        return (os.path.expanduser(os.fspath(data)),)
    if folder := os.environ.get("DOVETAIL_DATA"):
        return (os.path.expanduser(folder),)
    return "data", os.path.expanduser("~/.local/share/dovetail")


def refuse_unknown(name: str, data: str | os.PathLike[str] | None = None) -> None:
    """Refuse what is neither known by name, nor a file or folder, nor made of one in known words.

    A data set that is known but not in ``data`` is refused as well.

    >>> refuse_unknown("digits[0,1]~rot90")
    >>> refuse_unknown("digts")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: unknown task 'digts'; did you mean digits?
    """
    base = name if is_there(name) else None
    if base is None and ("~" in name or "[" in name):
        base = base_of(name)
        if base is not None and is_there(base):
            changes_of(name)
    if base is None or not is_there(base):
        raise unknown_task(name, base)
    if base in KNOWN and not any(map(os.path.isdir, places(base, data))):
        raise not_here(base, places(base, data), data)


def is_there(name: str) -> bool:
    """Whether a task is known by name, or there is a file or folder called so.

    >>> is_there("mnist"), is_there("no such")
    (True, False)
    """
    return name in names() or os.path.exists(os.path.expanduser(name) or ".")


def places(name: str, data: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """The folders that a data set may be in, the first one first.

    >>> places("fashion-mnist", "here")
    ('here/fashion-mnist', '/usr/share/datasets/fashion-mnist')
    """
    return (*(f"{folder}/{name}" for folder in folders(data)), *KNOWN[name].get("elsewhere", ()))


def not_here(name: str, looked: Iterable[object], data: str | os.PathLike[str] | None) -> TaskError:
    """The error for a data set that is known, and in none of the folders where it was looked for.

    >>> str(not_here("mnist", ["data/mnist"], None))
    "'mnist' is not here (looked in data/mnist): run `dovetail data get mnist`"
    """
    into = "" if data is None else f" --data {data}"
    return TaskError(
        f"{name!r} is not here (looked in {', '.join(map(str, looked))}): run "
        f"`dovetail data get {name}{into}`"
    )


def unknown_task(name: str, base: str | None) -> TaskError:
    """The error for a name that stands for nothing; ``base`` is what it would be made of.

    >>> unknown_task("mnits~grey", "mnits")
    TaskError("unknown task 'mnits~grey'; did you mean mnist, digits?")
    """
    if os.path.splitext(name)[1][1:] or "/" in name or "\\" in name:
        return TaskError(f"{name}: no such file or folder")
    return TaskError(f"unknown task {name!r}{nearest(base or name, names())}")


Change = Callable[["Task", int], "Task"]
"""What makes a task of a task; the number is a seed, for those that draw."""

_NUMBER = r"(-?\d+(?:\.\d+)?(?:e-?\d+)?)"
_LAST = re.compile(r"(?s)(.+?)((?:~[^~\[\]/\\]+|\[[^\[\]]*\])+)")
_EACH = re.compile(r"~([^~\[\]]+)|\[([^\[\]]*)\]")

_WORDS = {
    "inverted": ("inverted", "inverted"),
    "grey": ("grey", "grey"),
    "rotations": ("rotations", "rotations"),
    "rot90": (f"rot{_NUMBER}", "rotated"),
    "blur1": (f"blur{_NUMBER}", "blurred"),
    "noise0.2": (f"noise{_NUMBER}", "noisy"),
    "5shot": (r"(\d{1,9})shot", "few"),
    "16x16": (r"(\d{1,5})x(\d{1,5})", "resized"),
}
"""By an example of each change: its pattern, and the function that takes the numbers in it."""

_DRAWN = ("noisy", "few")
"""The functions that take a seed as well."""


def base_of(name: str) -> str | None:
    """The task that a name derives another from; ``None`` when it derives none.

    >>> base_of("digits[0,1]~rot90"), base_of("~/images.npz~grey"), base_of("digits")
    ('digits', '~/images.npz', None)
    """
    change = _LAST.fullmatch(name)
    return None if change is None else change[1]


def changes_of(name: str) -> list[Change]:
    """What is done to the base, in this order.

    >>> len(changes_of("digits[0,1]~blur1~noise0.2"))
    3
    >>> changes_of("digits~invertd")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: 'digits~invertd': unknown change '~invertd'; did you mean...
    """
    change = _LAST.fullmatch(name)
    steps = [] if change is None else _EACH.finditer(change[2])
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
    for pattern, how in _WORDS.values():
        if match := re.fullmatch(pattern, word):
            numbers = [int(n) if n.isdigit() else float(n) for n in match.groups()]
            settings = [tuple(numbers)] if len(numbers) > 1 else numbers
            return lambda task, seed: _made(
                how, task, *settings, *([seed] if how in _DRAWN else [])
            )
    known = (f"~{example}" for example in _WORDS)
    raise TaskError(
        f"{shown(name)}: unknown change {shown('~' + word)}{nearest('~' + word, known)}"
    )
