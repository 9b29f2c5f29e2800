"""The tasks known by name, in a few words: all that a list of them or a misspelt one needs.

Light on purpose, as the command line asks here before it loads torch.  What a data set holds and
where it comes from is in ``catalogue``.
"""

from __future__ import annotations

import os

from dovetail.core.errors import TaskError, nearest

TYPE_CHECKING = False  # typing's own costs a third of Python's start
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

__all__ = [
    "BUNDLED",
    "KNOWN",
    "folders",
    "names",
    "need_data",
    "not_here",
    "places",
    "refuse_unknown",
    "table",
    "unknown_task",
]

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
        return (_expanded(os.fspath(data)),)
    if told := os.environ.get("DOVETAIL_DATA"):
        return (_expanded(told),)
    return "data", _expanded("~/.local/share/dovetail")


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
        from dovetail.tasks.spelling import base_of, changes_of

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
    return name in names() or os.path.exists(_expanded(name) or ".")


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


def _expanded(path: str) -> str:
    return os.path.expanduser(path)
