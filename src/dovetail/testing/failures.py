"""How a check fails: with what is wrong, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dovetail.core.errors import DovetailError, first_line

T = TypeVar("T")


class CheckFailed(DovetailError, AssertionError):
    """What was plugged in does not do what dovetail relies on.

    >>> issubclass(CheckFailed, AssertionError)
    True
    """


def require(holds: bool, wrong: str, mend: str) -> None:
    """Fail unless it holds.

    >>> require(2 > 3, "two is not more than three", "Count again.")
    Traceback (most recent call last):
    ...
    dovetail.testing.failures.CheckFailed: two is not more than three. Count again.
    """
    if not holds:
        raise CheckFailed(f"{wrong}. {mend}")


def attempt(work: Callable[[], T], wrong: str, mend: str) -> T:
    """What ``work`` returns; if it raises, a failure that says so.

    >>> attempt(lambda: 1 / 0, "dividing failed", "Divide by another number.")
    Traceback (most recent call last):
    ...
    dovetail.testing.failures.CheckFailed: dividing failed (division by zero). Divide by another ...
    """
    try:
        return work()
    except CheckFailed:
        raise
    except Exception as error:  # it is code of others
        raise CheckFailed(f"{wrong} ({first_line(error)}). {mend}") from error
