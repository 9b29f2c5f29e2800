"""What the shelf itself knows of a version, in a small file beside the part's folder.

``lenet/2/`` is the part, exactly as it was written; ``lenet/2.json`` is the note: tags, when it was
added, when it was removed.  Creating the note claims the number, which an existing file cannot do
twice, so two processes never get the same one; a removed version leaves its note behind, so
``lenet@2`` never comes to mean another part.  A part without a note is still a part.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from dovetail.core.errors import FormatError, ShelfError
from dovetail.core.files import HIDDEN, read_plain, write_whole
from dovetail.core.plain import MOST_BYTES, dumps, from_plain, parse_json
from dovetail.shelf.names import version_of

__all__ = ["Note", "claim", "note_path", "now", "read_note", "write_note"]

SUFFIX = ".json"


@dataclass(frozen=True)
class Note:
    """Tags, and when the version was added and removed (ISO 8601, UTC).

    >>> Note(added="2024-05-01T12:00:00Z", tags=("small",)).removed is None
    True
    """

    added: str | None = None
    tags: tuple[str, ...] = ()
    removed: str | None = None


@dataclass(frozen=True)
class _Stored(Note):
    check: str = ""


def now() -> str:
    """The present second.

    >>> now()[-1]
    'Z'
    """
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def note_path(folder: Path) -> Path:
    """The note beside a version's folder.

    >>> note_path(Path("lenet/2")).as_posix()
    'lenet/2.json'
    """
    return folder.with_name(folder.name + SUFFIX)


def read_note(folder: Path) -> Note:
    """The note of a version; an empty one when there is none.

    Raises:
        FormatError: it is damaged; the part beside it may be whole.
    """
    path = note_path(folder)
    if not path.exists():
        return Note()
    data = read_plain(path, most_bytes=MOST_BYTES)  # once: another process may exchange it
    stored = from_plain(_Stored, parse_json(data, str(path)), str(path))
    note = Note(stored.added, stored.tags, stored.removed)
    if data != _text(note).encode():
        raise FormatError(f"{path}: was changed or damaged after it was written")
    return note


def write_note(folder: Path, note: Note) -> None:
    """Write or exchange the note of a version."""
    write_whole(note_path(folder), _text(note))


def claim(home: Path, note: Note) -> int:
    """Take the next number in a name's folder, leaving ``note`` there; no one else can take it.

    >>> import tempfile; home = Path(tempfile.mkdtemp())
    >>> claim(home, Note()), claim(home, Note())
    (1, 2)
    """
    hidden = home / f"{HIDDEN}{uuid4().hex}"
    write_whole(hidden, _text(note))
    number = 0
    try:
        while True:
            number = max(number, _last(home)) + 1  # never one that was tried, whatever stands there
            if version_of(str(number)) is None:
                raise ShelfError(
                    f"{home}: there is no version after {number - 1}; rename its folder and its "
                    "note to the number they should have"
                )
            try:
                os.link(hidden, home / f"{number}{SUFFIX}")
            except FileExistsError:
                continue
            except FileNotFoundError:
                raise
            except OSError:  # a file system without links: the name is claimed, then filled
                place = home / f"{number}{SUFFIX}"
                try:
                    place.touch(exist_ok=False)
                except FileExistsError:
                    continue
                try:
                    write_note(home / str(number), note)
                except FormatError:
                    place.unlink(missing_ok=True)  # the disk is full: nothing is claimed
                    raise
            return number
    finally:
        hidden.unlink(missing_ok=True)


def with_tags(note: Note, tags: tuple[str, ...]) -> Note:
    """The note with more tags.

    >>> with_tags(Note(tags=("b",)), ("a",)).tags
    ('a', 'b')
    """
    return replace(note, tags=tuple(sorted({*note.tags, *tags})))


def _last(home: Path) -> int:
    """The highest number ever used: by a folder, or by the note of one that is gone."""
    found = (version_of(path.name.removesuffix(SUFFIX)) for path in home.iterdir())
    return max((number for number in found if number), default=0)


def _text(note: Note) -> str:
    fields = asdict(note)
    return dumps({**fields, "check": hashlib.sha256(dumps(fields).encode()).hexdigest()[:16]})
