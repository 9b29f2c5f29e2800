"""One writer at a time, where two at once would each undo what the other did.

The lock is the kernel's, on the folder itself: it leaves no file behind, and a holder that is
killed lets go.  Readers never wait.  A file system without such locks (some network ones) does
without: nothing is damaged then, but two writers of the very same part may both get a version, and
of two who tag a part in the same instant one may lose a tag.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

__all__ = ["locked"]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder; whoever else wants to waits, in this process or another.

    Raises:
        FileNotFoundError: there is no such folder, or it was removed while we waited.

    >>> import tempfile
    >>> with locked(Path(tempfile.mkdtemp())):
    ...     print("mine")
    mine
    """
    if fcntl is None or not hasattr(os, "O_DIRECTORY"):
        yield
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _wait_for(handle)
        if not os.path.samestat(os.fstat(handle), folder.stat()):
            raise FileNotFoundError(2, "The folder was exchanged by someone else", str(folder))
        yield
    finally:
        os.close(handle)  # and with it the lock


def _wait_for(handle: int) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        return  # a file system without locks: we go on, as the page above says
