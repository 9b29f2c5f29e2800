"""Files and folders that appear whole or not at all.

A writer works on a hidden neighbour of the target and renames it at the end; a rename within one
folder is atomic, so a reader, a crash or a full disk never sees half a file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BufferedWriter
from pathlib import Path
from uuid import uuid4

from dovetail.core.errors import FormatError

HIDDEN = ".dovetail-"
"""Prefix of unfinished work; whatever bears it may be swept away."""

_SPECIAL = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def write_whole(path: Path, data: bytes | str) -> None:
    """Write a file so that it is either the old one or the new one, never a mixture.

    >>> import tempfile; folder = Path(tempfile.mkdtemp())
    >>> write_whole(folder / "a.txt", "whole"); (folder / "a.txt").read_text()
    'whole'
    """
    with whole_file(path) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextmanager
def whole_file(path: Path) -> Iterator[BufferedWriter]:
    """A file to write piece by piece, which becomes ``path`` when the block ends well.

    >>> import tempfile; path = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with whole_file(path) as file:
    ...     _ = file.write(b"who"), file.write(b"le"), path.exists()
    >>> path.read_text()
    'whole'
    """
    with _new_parents(path):
        hidden = _neighbour(path)
        try:
            with open(hidden, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(hidden, path)
        except OSError as error:
            raise FormatError(f"cannot write {path}: {error.strerror or error}") from None
        finally:
            hidden.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A folder to fill, which becomes ``path`` when the block ends well and vanishes otherwise.

    With ``replace`` an older folder of that name is exchanged; without, its presence is an error
    (``FileExistsError``), found at the rename so that two writers cannot both win.
    """
    with _new_parents(path):
        hidden = _neighbour(path)
        try:
            hidden.mkdir()
            yield hidden
            for file in hidden.rglob("*"):
                _sync(file)
            _sync(hidden)
            if replace and path.exists():
                _exchange(hidden, path)
            else:
                _rename_new(hidden, path)
        except FileExistsError:
            raise
        except OSError as error:
            raise FormatError(f"cannot write {path}: {error.strerror or error}") from None
        finally:
            shutil.rmtree(hidden, ignore_errors=True)
    if not path.name.startswith(HIDDEN):  # else whoever asked renames it once more, and syncs
        with suppress(OSError):  # it is there, whole; only a power cut could still undo it
            _sync(path.parent)


def open_plain(path: Path, *, links: bool = True) -> BufferedReader:
    """Open a file that someone else made; a pipe, a device or a folder is refused, not waited for.

    With ``links=False`` a symbolic link is refused too.

    >>> open_plain(Path("/"))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: /: a folder, not a plain file
    """
    # Without O_NONBLOCK a pipe that nobody writes to would hold us in open() for ever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        if not links and path.is_symlink():  # O_NOFOLLOW below holds even if it becomes one now
            raise FormatError(f"{path}: a link, not a plain file")
        _refuse_special(path, path.stat().st_mode)  # to open a device may already do something
        handle = os.open(path, flags if links else flags | getattr(os, "O_NOFOLLOW", 0))
    except FormatError:
        raise
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a null byte
        why = error.strerror if isinstance(error, OSError) else error
        raise FormatError(f"{path}: cannot be read ({why or error})") from None
    try:
        _refuse_special(path, os.fstat(handle).st_mode)  # it may have been exchanged since
    except FormatError:
        os.close(handle)
        raise
    return os.fdopen(handle, "rb")


def read_plain(path: Path, *, most_bytes: int, links: bool = True) -> bytes:
    """The bytes of a file that someone else made, unless there are more than expected.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> _ = file.write_text("four")
    >>> read_plain(file, most_bytes=3)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: ...a.txt: 4 bytes is more than a file of ours ever has
    """
    with open_plain(path, links=links) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            # What is asked for is allocated, so no more than the size; one more tells if it grew.
            data = file.read(size + 1) if size <= most_bytes else b""
        except OSError as error:
            raise FormatError(f"{path}: cannot be read ({error})") from None
    if size > most_bytes:
        raise FormatError(f"{path}: {size} bytes is more than a file of ours ever has")
    if len(data) > size:
        raise FormatError(f"{path}: it grew while it was read; wait for its writer")
    return data


def sha256_of(path: Path) -> str:
    """The sha256 of a plain file's bytes, in hexadecimal."""
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def whole_memory() -> int | None:
    """Bytes of memory that this process could have if it were alone; None where nobody says.

    >>> (whole_memory() or 1) > 0
    True
    """
    limits = []
    with suppress(AttributeError, OSError, ValueError):  # Windows says nothing
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # a container's own limit, where there is one
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return min(limits, default=None)


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


def _refuse_special(path: Path, mode: int) -> None:
    """Refuse what ``stat`` says is no plain file: a folder, or what may be read without end."""
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise FormatError(f"{path}: a folder, not a plain file")
    what = next((word for is_such, word in _SPECIAL if is_such(mode)), "something else")
    raise FormatError(f"{path}: {what}, not a plain file; save what it gives to one and name that")


@contextmanager
def _new_parents(path: Path) -> Iterator[None]:
    """Folders above ``path`` that come to be in the block vanish with it when it fails."""
    hidden = path.name.startswith(HIDDEN)  # in a folder that others work in, too
    missing = [] if hidden else [parent for parent in path.parents if not parent.exists()]
    try:
        yield
    except BaseException:
        for parent in missing:
            with suppress(OSError):  # it never came to be, or somebody put something in
                parent.rmdir()
        raise


def _neighbour(path: Path) -> Path:
    """A hidden name beside ``path``, in a folder that is there."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FormatError(f"cannot write {path}: {error.strerror or error}") from None
    return path.with_name(f"{HIDDEN}{uuid4().hex}")


def _exchange(hidden: Path, path: Path) -> None:
    old = _neighbour(path)
    os.rename(path, old)
    try:
        os.rename(hidden, path)
    finally:
        if not path.exists():  # the new one did not arrive: the old one comes back
            with suppress(OSError):
                os.rename(old, path)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)


def _rename_new(hidden: Path, path: Path) -> None:
    try:
        os.rename(hidden, path)  # POSIX lets a folder replace an empty folder, and nothing else
    except OSError:
        if path.exists():
            raise FileExistsError(f"{path} is there already") from None
        raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
