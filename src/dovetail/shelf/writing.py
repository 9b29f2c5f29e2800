"""Putting parts on a shelf and taking them away, so that each change happens whole or not at all.

A part is written to a hidden folder in the shelf's ``.work`` and then renamed to the number it has
claimed; what is removed is renamed to ``.work`` and then deleted.  A writer that is killed leaves
a hidden folder that nobody sees, and that :func:`sweep` deletes when it is old; killed between the
claim and the rename it has spent a number.  Looking for a twin, claiming and renaming happen under
a lock on the name's folder; the long part, writing, does not.

The lock is the kernel's, on the folder itself: it leaves no file behind, and a holder that is
killed lets go.  Readers never wait.  A file system without such locks (some network ones) does
without: nothing is damaged then, but two writers of the very same part may both get a version, and
of two who tag a part in the same instant one may lose a tag.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from dovetail.core.errors import FormatError, ShelfError
from dovetail.core.files import HIDDEN
from dovetail.shelf.entry import (
    Entry,
    Note,
    claim,
    note_path,
    now,
    read_entry,
    with_tags,
    write_note,
)
from dovetail.shelf.names import check_name, names, refused

if TYPE_CHECKING:
    from dovetail.parts.part import Part

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


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


@contextmanager
def writing_to(shelf: Path) -> Iterator[None]:
    """Where the file system refuses, say that the shelf cannot be written to.

    >>> with writing_to(Path("shelf")):
    ...     raise PermissionError(13, "Permission denied")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ShelfError: cannot write to the shelf shelf: Permission denied
    """
    try:
        yield
    except FormatError as error:
        if isinstance(error.__context__, OSError):  # the file system's fault, not the part's
            raise refused("write to", shelf, error.__context__) from None
        raise
    except OSError as error:
        raise refused("write to", shelf, error) from None


@contextmanager
def _held(home: Path, wanted: Path) -> Iterator[None]:
    """Hold a name's folder to change what is wanted of it, unless someone else removed that."""
    with writing_to(home.parent):
        try:
            with locked(home):
                yield
        except FileNotFoundError:
            raise ShelfError(f"{wanted} was removed by someone else meanwhile") from None


class Homes:
    """The folders of a shelf's names, one a name, and none that differs from another by case only.

    To see that no other name differs by its case takes a list of all names, and listing ten
    thousand for each new one would make adding quadratic.  So the list is remembered for as long as
    the shelf's folder bears the same time and number of sub-folders; a new name of our own is added
    to it.  File systems that do not count sub-folders are listed each time: slower, and as right.

    >>> import tempfile
    >>> homes = Homes(Path(tempfile.mkdtemp()))
    >>> homes.open("LeNet").name
    'LeNet'
    >>> homes.open("lenet")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ShelfError: 'lenet' differs from 'LeNet' by its case only, ...
    """

    def __init__(self, shelf: Path) -> None:
        self.shelf = shelf
        self._known: dict[str, list[str]] = {}
        self._stamp: tuple[int, int, int] | None = None

    def open(self, name: str) -> Path:
        """The folder of a name, made when it is new; whoever then puts nothing in removes it."""
        home = self.shelf / check_name(name)
        with locked(self.shelf):  # so that 'LeNet' and 'lenet' do not both come to be
            self._look()
            others = self._known.setdefault(name.casefold(), [])
            if name not in others:
                if others:
                    raise ShelfError(
                        f"{name!r} differs from {others[0]!r} by its case only, and not every file "
                        "system tells them apart; choose another name"
                    )
                home.mkdir(exist_ok=True)
                others.append(name)
                self._expect_one_more()
        return home

    def _look(self) -> None:
        stamp = _stamp(self.shelf)
        if stamp != self._stamp:
            self._known = {}
            for name in names(self.shelf):
                self._known.setdefault(name.casefold(), []).append(name)
            self._stamp = stamp  # taken before the list: what came between is seen next time

    def _expect_one_more(self) -> None:
        before, after = self._stamp, _stamp(self.shelf)
        alone = before is not None and after[:2] == (before[0], before[1] + 1)
        self._stamp = after if alone else None


def _stamp(shelf: Path) -> tuple[int, int, int]:
    facts = shelf.stat()
    return facts.st_ino, facts.st_nlink, facts.st_mtime_ns


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
        with writing_to(home.parent):
            part.save_pretrained(hidden)
            return _place(hidden, home, note, twin)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
        with suppress(OSError):
            home.rmdir()  # succeeds only when nothing came to be in it


def add_tags(entry: Entry, tags: tuple[str, ...]) -> Entry:
    """The entry with more tags, written under the lock, so that no one else's are lost."""
    if set(tags) <= set(entry.tags):
        return entry
    with _held(entry.folder.parent, entry.folder):
        now_there = read_entry(entry.name, entry.version, entry.folder)
        if not entry.folder.is_dir():
            raise FileNotFoundError
        write_note(entry.folder, with_tags(Note(now_there.added, now_there.tags), tags))
    return read_entry(entry.name, entry.version, entry.folder)


def take_version(entry: Entry) -> None:
    """Remove one version; its note stays and keeps the number from being used again."""
    home = entry.folder.parent
    hidden = _hidden(home.parent)
    with _held(home, entry.folder):
        _take(entry.folder, hidden)
        shutil.rmtree(hidden, ignore_errors=True)  # first: a full disk has room for the note
        try:
            write_note(entry.folder, Note(entry.added, entry.tags, removed=now()))
        except FormatError:
            if not note_path(entry.folder).exists():  # else the old one keeps the number too
                raise


def take_back(entry: Entry) -> None:
    """Undo what was added a moment ago, as far as the system lets us: as if it had never been."""
    home = entry.folder.parent
    hidden = _hidden(home.parent)
    with suppress(OSError), locked(home):
        _take(entry.folder, hidden)
        note_path(entry.folder).unlink(missing_ok=True)
    shutil.rmtree(hidden, ignore_errors=True)
    with suppress(OSError):
        home.rmdir()  # succeeds only when it held nothing else


def take_name(home: Path) -> None:
    """Remove a name with all its versions and notes."""
    hidden = _hidden(home.parent)
    with _held(home, home):
        _take(home, hidden)
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
    for tries_left in reversed(range(TRIES)):
        try:
            home.mkdir(exist_ok=True)
            with locked(home):
                if (known := twin()) is not None:
                    return known
                version = _rename(hidden, home, note)
                # Read before anybody can remove it again.
                return read_entry(home.name, version, home / str(version))
        except FileNotFoundError:  # somebody removed the whole name: once more
            if not tries_left or not hidden.is_dir():
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
    hidden.parent.mkdir(exist_ok=True)
    os.rename(path, hidden)
    _sync(path.parent)


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
