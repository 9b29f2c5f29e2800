"""What the shelf says of one version before any weight is read: its entry, and its note.

``lenet/2/`` is the part, exactly as it was written; ``lenet/2.json`` is the note: tags, when it was
added, when it was removed.  Creating the note claims the number, which an existing file cannot do
twice, so two processes never get the same one; a removed version leaves its note behind, so
``lenet@2`` never comes to mean another part.  A part without a note is still a part.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from dovetail.core.errors import DovetailError, FormatError, RecipeError, ShelfError
from dovetail.core.files import HIDDEN, read_plain, write_whole
from dovetail.core.plain import MOST_BYTES, dumps, from_plain, parse_json, to_plain
from dovetail.parts.contract import Contract
from dovetail.parts.facts import Origin, read_facts
from dovetail.parts.recipe import Recipe, in_words
from dovetail.shelf.names import Reference, version_of

if TYPE_CHECKING:
    from dovetail.parts.part import Part

SUFFIX = ".json"
T = TypeVar("T")


@dataclass(frozen=True)
class Note:
    """Tags, and when the version was added and removed (ISO 8601, UTC).

    >>> Note(added="2024-05-01T12:00:00Z", tags=("small",)).removed is None
    True
    """

    added: str | None = None
    tags: tuple[str, ...] = ()
    removed: str | None = None


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
    return read_checked(Note, path) if path.exists() else Note()


def write_note(folder: Path, note: Note) -> None:
    """Write or exchange the note of a version."""
    write_whole(note_path(folder), checked_text(note))


def claim(home: Path, note: Note) -> int:
    """Take the next number in a name's folder, leaving ``note`` there; no one else can take it.

    >>> import tempfile; home = Path(tempfile.mkdtemp())
    >>> claim(home, Note()), claim(home, Note())
    (1, 2)
    """
    hidden = home / f"{HIDDEN}{uuid4().hex}"
    write_whole(hidden, checked_text(note))
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
    versions = (version_of(path.name.removesuffix(SUFFIX)) for path in home.iterdir())
    return max((number for number in versions if number), default=0)


def checked_text(thing: object) -> str:
    """A small dataclass as JSON, with a digest of its fields that tells damage.

    >>> checked_text(Note()).split()[3]
    '"check":'
    """
    fields = to_plain(thing)
    return dumps({**fields, "check": hashlib.sha256(dumps(fields).encode()).hexdigest()[:16]})


def read_checked(
    kind: type[T], path: Path, *, most_bytes: int = MOST_BYTES, links: bool = True
) -> T:
    """Read what :func:`checked_text` wrote.

    Raises:
        FormatError: it is not that, to the last byte.
    """
    data = read_plain(path, most_bytes=most_bytes, links=links)  # once: others may exchange it
    value = parse_json(data, str(path))
    if isinstance(value, dict):
        value.pop("check", None)
    thing = from_plain(kind, value, str(path))
    if data != checked_text(thing).encode():
        raise FormatError(f"{path}: was changed or damaged after it was written")
    return thing


@dataclass(frozen=True)
class Entry:
    """One version of one part on a shelf.

    A damaged part has an entry as well: ``problem`` says what is wrong, the other facts are empty.
    So has a name whose folder cannot be looked into, as version 0.

    >>> entry = Entry("lenet", 2, Path("shelf/lenet/2"))
    >>> entry.ref, str(entry)
    ('lenet@2', 'lenet@2')
    """

    name: str
    version: int
    folder: Path
    contract: Contract = field(default_factory=Contract)
    recipe: Recipe | None = None
    origin: Origin = field(default_factory=Origin)
    digest: str = ""
    bytes: int = 0
    tags: tuple[str, ...] = ()
    added: str | None = None
    problem: str | None = None

    @property
    def ref(self) -> str:
        """The reference, ``name@version``, or the name of a closed folder."""
        return str(Reference(self.name, self.version or None))

    @property
    def what(self) -> str:
        """The recipe in a few words."""
        return "damaged" if self.recipe is None else in_words(self.recipe)

    def load(self, *, verify: bool = False) -> Part:
        """The part itself, read strictly; with ``verify`` its stored probe is replayed.

        Raises:
            FormatError: it is damaged or gone; the message names the folder.
            RecipeError: it needs a builder that is not registered here.
        """
        from safetensors import SafetensorError

        from dovetail.parts.part import Part  # torch loads here, so that a list needs none

        try:
            return Part.from_pretrained(self.folder, verify=verify)
        except RecipeError as error:
            raise RecipeError(f"{self.ref!r} in {self.folder} cannot be rebuilt: {error}") from None
        except (DovetailError, OSError, RuntimeError, SafetensorError) as error:
            where = "" if str(self.folder) in str(error) else f"{self.folder}: "
            raise FormatError(f"{where}{error}") from error

    def __str__(self) -> str:
        return self.ref

    def __repr__(self) -> str:
        if self.problem is not None:
            return f"Entry({self.ref}, damaged: {self.problem})"
        return f"Entry({self.ref}, {self.what}: {self.contract})"


def read_entry(name: str, version: int, folder: Path) -> Entry:
    """Read what a part's folder says of it; damage becomes the entry's ``problem``."""
    try:
        if not version:
            os.scandir(folder).close()  # fails as it did when its versions were looked for
        facts = read_facts(folder, check_hashes=False, check_builders=False)
    except (DovetailError, OSError) as error:
        return Entry(name, version, folder, problem=damage(error, folder))
    try:
        note = read_note(folder)
    except (DovetailError, OSError):
        note = Note()  # tags are lost, the part is not; `verify` tells
    return Entry(
        name,
        version,
        folder,
        facts.contract,
        facts.recipe,
        facts.origin,
        facts.digest,
        sum(file.size for file in facts.files.values()),
        note.tags,
        note.added,
    )


def damage(error: Exception, folder: Path) -> str:
    """What is wrong, in words that leave out where, as the reference beside them says that.

    >>> damage(FormatError("shelf/lenet/2/config.json: no such file"), Path("shelf/lenet/2"))
    'config.json: no such file'
    """
    if isinstance(error, OSError):
        return f"cannot be read ({error.strerror or error})"
    words = str(error)
    for where in (f"{folder}/", f"{folder}: ", f"{folder.parent}/"):
        words = words.replace(where, "")
    return words if isinstance(error, DovetailError) else f"{type(error).__name__}: {words}"
