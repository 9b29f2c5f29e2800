"""How a file of data is opened, whoever made it: plain, and of a size that can be meant."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from dovetail.core.errors import DovetailError, FormatError, TaskError, first_line
from dovetail.core.files import open_plain

MOST_BYTES = 8 << 30
"""More than this is not read into memory."""

_LARGE, _MOST_UNPACKED = 64 << 20, 200
"""What unpacks to more bytes than the one and more than the other times its size is no data."""


def open_data(path: Path) -> BufferedReader:
    """Open a plain file; of anything else, say what it is and the way out.

    >>> open_data(Path("no such file"))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: no such file: no such file
    """
    try:
        missing = not path.exists()
    except (OSError, ValueError):  # a name too long, a folder that is closed: opening says which
        missing = False
    if missing:
        raise TaskError(f"{path}: no such file")
    return open_plain(path)


def read_data(path: Path) -> bytes:
    """All the bytes of a plain file, unless there are too many for memory.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = file.write_text("x,y"); read_data(file)
    b'x,y'
    """
    with open_data(path) as file:
        size = size_of(file)
        if size > MOST_BYTES:
            raise TaskError(
                f"{path}: {size / 1e9:.1f} GB, more than the {MOST_BYTES / 1e9:.1f} that are read "
                "into memory; split it"
            )
        try:
            return file.read(size)
        except MemoryError:
            raise TaskError(f"{path}: larger than this machine's memory; split it") from None
        except OSError as error:
            raise TaskError(f"{path}: {error.strerror or error}") from None


def refuse_large(what: str, needed: int, way_out: str) -> None:
    """Refuse what would take more bytes of memory than are read into it.

    >>> refuse_large("pets: 9 images", 20 << 30, "size=(64, 64) would fit")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: pets: 9 images take 21.5 GB of memory, more than 8.6; size...
    """
    if needed > MOST_BYTES:
        raise TaskError(
            f"{what} take {needed / 1e9:.1f} GB of memory, more than {MOST_BYTES / 1e9:.1f}; "
            f"{way_out}"
        )


def size_of(file: BufferedReader) -> int:
    """How many bytes an open file has.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = file.write_text("x,y")
    >>> with open_data(file) as opened:
    ...     size_of(opened)
    3
    """
    return os.fstat(file.fileno()).st_size


@contextmanager
def guarded(path: Path, what: str, why: str = "") -> Iterator[None]:
    """Whatever a library raises on a damaged file becomes one error of ours, which says ``why``.

    >>> with guarded(Path("a.npz"), "npz file", "damaged or truncated"):
    ...     raise EOFError
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: a.npz: not a readable npz file: damaged or truncated
    """
    try:
        yield
    except DovetailError:
        raise
    except MemoryError:
        raise FormatError(f"{path}: holds more than fits into this machine's memory") from None
    except Exception as error:  # zipfile, zlib, NumPy and pyarrow fail in a dozen ways
        said = why or first_line(error)
        raise FormatError(f"{path}: not a readable {what}: {said}") from None


def refuse_bomb(path: str | Path, size: int, unpacked: int, way_out: str) -> None:
    """Refuse a file of ``size`` bytes that would become far more, before it does.

    >>> refuse_bomb("a.npz", 1000, 1 << 30, "save it with np.savez")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: a.npz: 1000 bytes would unpack to 1073741824; if that is...
    """
    if unpacked > _LARGE and unpacked > _MOST_UNPACKED * size:
        raise FormatError(
            f"{path}: {size} bytes would unpack to {unpacked}; if that is meant, {way_out}"
        )
