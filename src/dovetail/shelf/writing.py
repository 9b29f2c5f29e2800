"""Putting parts on a shelf and taking them away, so that each change happens whole or not at all.

A part is written to a hidden folder in the shelf's ``.work`` and then renamed to the number it has
claimed; what is removed is renamed to ``.work`` and then deleted.  A writer that is killed leaves
a hidden folder that nobody sees, and that :func:`sweep` deletes when it is old; killed between the
claim and the rename it has spent a number.  Looking for a twin, claiming and renaming happen under
a lock on the name's folder (see ``locks``); the long part, writing, does not.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dovetail.core.errors import FormatError, ShelfError
from dovetail.core.files import HIDDEN
from dovetail.shelf.entry import Entry, read_entry
from dovetail.shelf.locks import locked
from dovetail.shelf.notes import Note, claim, note_path, now, with_tags, write_note
from dovetail.shelf.places import refused

if TYPE_CHECKING:
    from dovetail.parts.part import Part

__all__ = [
    "add_tags",
    "put",
    "sweep",
    "sweep_near",
    "take_back",
    "take_name",
    "take_version",
]

WORK = ".work"
"""Where unfinished work of a shelf lies: one place to look, however many names there are."""

TRIES = 100
"""How often a name may be removed under a writer before the writer gives up."""

DAY = 86_400.0
"""Seconds after which unfinished work has no owner any more."""


def put(
    part: Part, home: Path, note: Note, twin: Callable[[], Entry | None] = lambda: None
) -> Entry:
    """Write a part into its name's folder under the next free number.

    ``twin`` is asked once nobody else can add: the entry it knows, if any, is returned instead.

    >>> import tempfile
    >>> from dovetail.parts.part import build
    >>> home, part = Path(tempfile.mkdtemp()) / "small", build("mlp", shape=(4,), hidden=())
    >>> put(part, home, Note()).ref, put(part, home, Note()).ref
    ('small@1', 'small@2')
    """
    hidden = _hidden(home.parent)
    try:
        part.save_pretrained(hidden)
        return _place(hidden, home, note, twin)
    except FormatError as error:
        if isinstance(error.__context__, OSError):  # the file system's fault, not the part's
            raise refused("write to", home.parent, error.__context__) from None
        raise
    except OSError as error:
        raise refused("write to", home.parent, error) from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
        with suppress(OSError):
            home.rmdir()  # succeeds only when nothing came to be in it


def add_tags(entry: Entry, tags: tuple[str, ...]) -> Entry:
    """The entry with more tags, written under the lock, so that no one else's are lost."""
    if set(tags) <= set(entry.tags):
        return entry
    try:
        with locked(entry.folder.parent):
            found = read_entry(entry.name, entry.version, entry.folder)
            if not entry.folder.is_dir():
                raise FileNotFoundError
            write_note(entry.folder, with_tags(Note(found.added, found.tags), tags))
    except FileNotFoundError:
        raise _gone(entry.folder) from None
    except OSError as error:
        raise refused("write to", entry.folder.parent.parent, error) from None
    return read_entry(entry.name, entry.version, entry.folder)


def take_version(entry: Entry) -> None:
    """Remove one version; its note stays and keeps the number from being used again."""
    home = entry.folder.parent
    hidden = _hidden(home.parent)
    try:
        with locked(home):
            _take(entry.folder, hidden)
            shutil.rmtree(hidden, ignore_errors=True)  # first: a full disk has room for the note
            try:
                write_note(entry.folder, Note(entry.added, entry.tags, removed=now()))
            except FormatError:
                if not note_path(entry.folder).exists():  # else the old one keeps the number too
                    raise
    except FileNotFoundError:
        raise _gone(entry.folder) from None


def take_back(entry: Entry) -> None:
    """Undo what was added a moment ago, as far as the system lets us: as if it had never been."""
    home = entry.folder.parent
    hidden = _hidden(home.parent)
    with suppress(OSError, ShelfError), locked(home):
        _take(entry.folder, hidden)
        note_path(entry.folder).unlink(missing_ok=True)
    shutil.rmtree(hidden, ignore_errors=True)
    with suppress(OSError):
        home.rmdir()  # succeeds only when it held nothing else


def take_name(home: Path) -> None:
    """Remove a name with all its versions and notes."""
    hidden = _hidden(home.parent)
    try:
        with locked(home):
            _take(home, hidden)
    except FileNotFoundError:
        raise _gone(home) from None
    shutil.rmtree(hidden, ignore_errors=True)


def sweep(shelf: Path, *, older_than: float = DAY) -> int:
    """Delete unfinished work of writers that died that many seconds ago; returns how much.

    >>> import tempfile
    >>> shelf = Path(tempfile.mkdtemp()); (shelf / ".dovetail-1f").mkdir()
    >>> sweep(shelf), sweep(shelf, older_than=0)
    (0, 1)
    """
    return _swept((*shelf.glob(f"{HIDDEN}*"), *shelf.glob(f"*/{HIDDEN}*")), older_than)


def sweep_near(home: Path) -> int:
    """Delete old unfinished work where a writer of this name looks anyway.

    To look into the folder of every name for each part added would make adding quadratic.
    """
    return _swept((*(home.parent / WORK).glob(f"{HIDDEN}*"), *home.glob(f"{HIDDEN}*")), DAY)


def _swept(paths: Iterable[Path], older_than: float) -> int:
    swept = 0
    for path in paths:
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime < older_than:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
            swept += 1
    return swept


def _place(hidden: Path, home: Path, note: Note, twin: Callable[[], Entry | None]) -> Entry:
    for left in reversed(range(TRIES)):
        try:
            home.mkdir(exist_ok=True)
            with locked(home):
                if (known := twin()) is not None:
                    return known
                version = _rename(hidden, home, note)
                # Read before anybody can remove it again.
                return read_entry(home.name, version, home / str(version))
        except FileNotFoundError:  # somebody removed the whole name: once more
            if not left or not hidden.is_dir():
                raise
    raise AssertionError("unreachable")


def _rename(hidden: Path, home: Path, note: Note) -> int:
    while True:
        version = claim(home, note)
        target = home / str(version)
        try:
            os.rename(hidden, target)
        except OSError:
            if not target.exists():
                if home.is_dir():
                    note_path(target).unlink(missing_ok=True)  # nothing came of it
                raise
            continue  # somebody copied a folder to this very number: the next one
        _sync(home)
        if version == 1:
            _sync(home.parent)  # the name itself may be new
        return version


def _take(path: Path, hidden: Path) -> None:
    try:
        hidden.parent.mkdir(exist_ok=True)
        os.rename(path, hidden)
        _sync(path.parent)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise refused("write to", hidden.parent.parent, error) from None


def _gone(path: Path) -> ShelfError:
    return ShelfError(f"{path} was removed by someone else meanwhile")


def _hidden(shelf: Path) -> Path:
    return shelf / WORK / f"{HIDDEN}{uuid4().hex}"


def _sync(folder: Path) -> None:
    """Make a rename outlive a power cut, where the file system knows how."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
