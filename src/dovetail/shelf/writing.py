"""Putting parts on a shelf and taking them away, so that each change happens whole or not at all.

A part is written to a hidden folder within the shelf and then renamed to the number it has claimed;
what is removed is renamed to a hidden folder and then deleted.  A writer that is killed leaves a
hidden folder that nobody sees, and that :func:`sweep` deletes when it is old.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from dovetail.core.errors import ShelfError
from dovetail.core.files import HIDDEN
from dovetail.parts.part import Part
from dovetail.shelf.entry import Entry
from dovetail.shelf.notes import Note, claim, now, write_note

__all__ = ["put", "refused", "sweep", "take_name", "take_version"]

DAY = 86_400.0
"""Seconds after which unfinished work has no owner any more."""


def put(part: Part, home: Path, note: Note) -> int:
    """Write a part into its name's folder under the next free number, and return the number.

    >>> import tempfile
    >>> from dovetail.parts.part import build
    >>> home, part = Path(tempfile.mkdtemp()) / "small", build("mlp", shape=(4,), hidden=())
    >>> put(part, home, Note()), put(part, home, Note())
    (1, 2)
    """
    hidden = _hidden(home.parent)
    try:
        home.mkdir(exist_ok=True)
        part.save_pretrained(hidden)
        return _place(hidden, home, note)
    except OSError as error:
        raise refused("write to", home.parent, error) from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
        with suppress(OSError):
            home.rmdir()  # succeeds only when nothing came to be in it


def take_version(entry: Entry) -> None:
    """Remove one version; its note stays and keeps the number from being used again."""
    hidden = _hidden(entry.folder.parent.parent)
    _take(entry.folder, hidden)
    write_note(entry.folder, Note(entry.added, entry.tags, removed=now()))
    shutil.rmtree(hidden, ignore_errors=True)


def take_name(home: Path) -> None:
    """Remove a name with all its versions and notes."""
    hidden = _hidden(home.parent)
    _take(home, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def sweep(shelf: Path, *, older_than: float = DAY) -> int:
    """Delete unfinished work of writers that died that many seconds ago; returns how much.

    >>> import tempfile
    >>> shelf = Path(tempfile.mkdtemp()); (shelf / ".dovetail-1f").mkdir()
    >>> sweep(shelf), sweep(shelf, older_than=0)
    (0, 1)
    """
    swept = 0
    for path in (*shelf.glob(f"{HIDDEN}*"), *shelf.glob(f"*/{HIDDEN}*")):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime < older_than:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            swept += 1
    return swept


def refused(what: str, folder: Path, error: OSError) -> ShelfError:
    """The error for what the file system does not allow.

    >>> refused("write to", Path("shelf"), PermissionError(13, "Permission denied"))
    ShelfError('cannot write to the shelf shelf: Permission denied')
    """
    return ShelfError(f"cannot {what} the shelf {folder}: {error.strerror or error}")


def _place(hidden: Path, home: Path, note: Note) -> int:
    while True:
        target = home
        try:
            version = claim(home, note)
            target = home / str(version)
            os.rename(hidden, target)
        except FileNotFoundError:
            if not hidden.is_dir() or home.is_dir():
                raise
            home.mkdir(exist_ok=True)  # somebody removed the whole name: once more
        except OSError:
            if target == home or not target.exists():
                raise
            # somebody copied a folder to this very number: the next one
        else:
            _sync(home)
            return version


def _take(path: Path, hidden: Path) -> None:
    try:
        os.rename(path, hidden)
        _sync(path.parent)
    except FileNotFoundError:
        raise ShelfError(f"{path} was removed by someone else meanwhile") from None
    except OSError as error:
        raise refused("write to", hidden.parent, error) from None


def _hidden(shelf: Path) -> Path:
    return shelf / f"{HIDDEN}{uuid4().hex}"


def _sync(folder: Path) -> None:
    """Make a rename outlive a power cut, where the file system knows how."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
