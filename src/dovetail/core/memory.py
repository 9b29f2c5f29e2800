"""How much this machine could ever hold."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from dovetail.core.errors import FormatError

__all__ = ["refuse_beyond_memory", "whole_memory"]


def whole_memory() -> int | None:
    """Bytes of memory that this process could have if it were alone; None where nobody says.

    >>> (whole_memory() or 1) > 0
    True
    """
    found = []
    with suppress(AttributeError, OSError, ValueError):  # Windows says nothing
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # a container's own limit, where there is one
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(found, default=None)


def refuse_beyond_memory(size: int, what: str | Path) -> None:
    """Refuse a file of which more would be held than the machine has, before it is read at all.

    A file of terabytes costs nobody a byte who leaves holes in it; to hash it would take hours.

    >>> refuse_beyond_memory(10**18, "weights")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: weights: 1000000000000000000 bytes, and this machine has ...
    """
    most = whole_memory()
    if most is not None and size > most:
        raise FormatError(f"{what}: {size} bytes, and this machine has {most} of memory")
