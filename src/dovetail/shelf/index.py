"""A quick list of the shelf, which can always be rebuilt from the folders, and filters over it.

The index file keeps the facts of each part together with a *stamp* of the files they were read
from (inode, time and size of manifest, config and note).  Listing a shelf walks the folders and
compares stamps; only what is new or changed is read again.  A stale, missing or damaged index
costs time, never truth, and a shelf that cannot be written to simply has none.

Ten thousand parts are listed within a second, which is why this page works with text where others
use paths, and why contracts and recipes, of which there are few, are stored and read once each.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.core.errors import DovetailError
from dovetail.core.files import read_plain, write_whole
from dovetail.core.plain import from_plain, to_plain
from dovetail.parts.contract import Contract, Port
from dovetail.parts.facts import Origin
from dovetail.parts.recipe import Recipe, read_recipe
from dovetail.shelf.entry import Entry, read_entry
from dovetail.shelf.names import Reference, names, refused, versions
from dovetail.shelf.names import stamp as _stamp

FILE = ".index.json"
_MOST_BYTES = 1 << 30
FORMAT = 2
"""Raise when rows change their meaning; an index of another number is rebuilt, not read."""

FEW = 64
"""Reading the folders of so many versions is quicker than reading the index of a large shelf."""

Stamp = str
"""One word, not lists of numbers: Python's collector walks over lists, again and again."""


class Slot(NamedTuple):
    """A place on the shelf: a name, a version and the folder they stand for.

    A name whose folder cannot be looked into is one place, of version 0.
    """

    name: str
    version: int
    folder: Path

    @property
    def ref(self) -> str:
        """The reference, ``name@version``, or the name of a closed folder."""
        return str(Reference(self.name, self.version or None))


class Index:
    """The entries of a shelf, remembered in memory and in a file.

    >>> import tempfile
    >>> Index(Path(tempfile.mkdtemp())).entries()
    []
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._memory: dict[str, tuple[Stamp, Entry]] = {}

    def entries(self, name: str | None = None, *, after: int = -1) -> list[Entry]:
        """All entries, or those of one name, in order, damaged parts and closed names among them.

        With ``after`` only versions of a higher number are looked at.
        """
        entries: dict[str, tuple[Stamp, Entry]] = {}
        places = [slot for slot in slots(self.folder, name) if slot.version > after]
        stored = _Stored() if name is not None and len(places) <= FEW else None
        fresh = False
        with _collector_paused():
            for slot in places:
                key, stamp = slot.ref, _stamp(str(slot.folder))
                known = self._memory.get(key)
                if known is None or known[0] != stamp:
                    stored = self._stored() if stored is None else stored
                    entry = _from_row(stored, slot, stamp, stored.rows.get(key))
                    fresh = fresh or entry is None
                    known = (stamp, entry or read_entry(*slot))
                    if known[1].problem is not None and is_gone(slot.folder):
                        continue  # taken away since we looked, not damaged
                entries[key] = known
        # Damage is never remembered: it may be mended by files that bear no stamp.
        sound = {key: known for key, known in entries.items() if known[1].problem is None}
        if name is None:
            gone = self._memory.keys() - sound.keys()
            self._memory = sound
            if gone or (fresh and sound):
                self._write()
        else:
            self._memory.update(sound)
        return [entry for _, entry in entries.values()]

    def _stored(self) -> _Stored:
        """What the index file holds; nothing when it is missing, damaged or of another format."""
        try:
            check, _, body = read_plain(
                self.folder / FILE, most_bytes=_MOST_BYTES, links=False
            ).partition(b"\n")
            if check.decode() != hashlib.sha256(body).hexdigest():
                return _Stored()
            value = json.loads(body)
            if value["format"] != FORMAT:
                return _Stored()
            return _Stored(
                [from_plain(Contract, each) for each in value["contracts"]],
                [read_recipe(each, check=False) for each in value["recipes"]],
                dict(value["rows"]),
            )
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return _Stored()

    def _write(self) -> None:
        contracts: dict[str, int] = {}  # by its text, each one's number
        recipes: dict[str, int] = {}
        rows = {
            key: [
                stamp,
                _number(contracts, entry.contract),
                _number(recipes, entry.recipe),
                to_plain(entry.origin),
                entry.digest,
                entry.bytes,
                entry.tags,
                entry.added,
            ]
            for key, (stamp, entry) in self._memory.items()
        }
        value = {
            "format": FORMAT,
            "contracts": [json.loads(text) for text in contracts],
            "recipes": [json.loads(text) for text in recipes],
            "rows": rows,
        }
        body = json.dumps(value, allow_nan=False).encode()
        check = hashlib.sha256(body).hexdigest().encode()
        try:
            write_whole(self.folder / FILE, check + b"\n" + body)
        except (DovetailError, OSError):
            return  # a shelf that only others may write to, or a full disk


@dataclass(frozen=True)
class _Stored:
    contracts: list[Contract] = field(default_factory=list)
    recipes: list[Recipe] = field(default_factory=list)
    rows: dict[str, Any] = field(default_factory=dict)


def _number(known: dict[str, int], thing: Contract | Recipe | None) -> int:
    return known.setdefault(json.dumps(to_plain(thing)), len(known))


@contextmanager
def _collector_paused() -> Iterator[None]:
    """No search for garbage while thousands of entries come to be, all of which stay."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def slots(folder: Path, name: str | None = None) -> list[Slot]:
    """Every place on the shelf where a part is or claims to be, by name and version.

    >>> import tempfile
    >>> shelf = Path(tempfile.mkdtemp()); (shelf / "lenet" / "2").mkdir(parents=True)
    >>> [(slot.name, slot.version) for slot in slots(shelf)]
    [('lenet', 2)]
    """
    try:
        every = names(folder) if name is None else [name]
    except OSError as error:
        raise refused("read", folder, error) from None
    return [
        Slot(each, number, Path(f"{folder}/{each}/{number}" if number else f"{folder}/{each}"))
        for each in every
        for number in _versions(folder, each)
    ]


def is_gone(path: Path) -> bool:
    """Whether there is nothing of that name; what cannot be looked at is there.

    >>> is_gone(Path("/nowhere")), is_gone(Path("/"))
    (True, False)
    """
    try:
        os.lstat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def _versions(folder: Path, name: str) -> list[int]:
    try:
        return versions(folder, name)
    except OSError:
        return [0]  # closed, and no reason to show nothing of the other names


def _from_row(stored: _Stored, slot: Slot, stamp: Stamp, row: Any) -> Entry | None:
    """The entry a row holds, unless the files have changed or the row makes no sense."""
    try:
        old, contract, recipe, origin, digest, size, tags, added = row
        if old != stamp or not isinstance(size, int) or not isinstance(added, str | None):
            return None
        if not all(isinstance(text, str) for text in (digest, *tags)):
            return None
        return Entry(
            *slot,
            stored.contracts[contract],
            stored.recipes[recipe],
            from_plain(Origin, origin),
            digest,
            size,
            tuple(tags),
            added,
        )
    except (DovetailError, LookupError, ValueError, TypeError):
        return None


Sizes = int | Sequence[int | None]


@dataclass(frozen=True)
class Query:
    """What an entry must be; a field that is ``None`` asks nothing.

    >>> from pathlib import Path
    >>> head = Entry("head", 1, Path("head/1"), Contract(classes=("cat", "dog", "owl")))
    >>> Query(classes=("owl", "cat")).wants(head), Query(classes=("fox",)).wants(head)
    (True, False)
    """

    pattern: str | None = None
    fits: Contract | None = None
    space: str | None = None
    classes: Iterable[str] | str | None = None
    task: str | None = None
    gives: Sizes | None = None
    takes: Sizes | None = None
    tag: str | None = None

    def names(self, entry: Entry) -> bool:
        """Whether the entry's name is one the pattern asks for."""
        return self.pattern is None or fnmatchcase(entry.name, self.pattern)

    def wants(self, entry: Entry) -> bool:
        """Whether the entry is whole and everything that is asked."""
        contract = entry.contract
        return (
            entry.problem is None
            and self.names(entry)
            and (self.tag is None or self.tag in entry.tags)
            and (self.task is None or self.task == entry.origin.task)
            and (self.space is None or self.space in _spaces(contract))
            and (self.classes is None or _names(self.classes) <= set(contract.classes or ()))
            and (self.gives is None or any(has_shape(p, self.gives) for p in contract.gives))
            and (self.takes is None or any(has_shape(p, self.takes) for p in contract.takes))
            and (self.fits is None or _fit(self.fits, contract))
        )


def has_shape(port: Port, sizes: Sizes) -> bool:
    """Whether a port is known to have these axes; ``None`` on either side is any length.

    >>> has_shape(Port((16, 4, 4)), (16, None, None)), has_shape(Port((64,)), 64)
    (True, True)
    >>> has_shape(Port(), (64,))  # nobody has said
    False
    """
    wanted = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return (
        port.shape is not None
        and len(port.shape) == len(wanted)
        and all(a is None or b is None or a == b for a, b in zip(port.shape, wanted, strict=True))
    )


def ranked(entries: Iterable[Entry], accuracies: Mapping[str, float]) -> list[Entry]:
    """Entries with the greatest accuracy first; those whose digest has none last, as they were.

    >>> from pathlib import Path
    >>> three = [Entry(d, 1, Path(d), digest=d) for d in ("a", "b", "c")]
    >>> [entry.name for entry in ranked(three, {"c": 0.9, "b": 0.8})]
    ['c', 'b', 'a']
    """
    return sorted(entries, key=lambda entry: -accuracies.get(entry.digest, -1.0))


def _fit(one: Contract, other: Contract) -> bool:
    return not one.mismatches(other) or not other.mismatches(one)


def _spaces(contract: Contract) -> set[str | None]:
    return {port.space for port in (*contract.takes, *contract.gives)}


def _names(classes: Iterable[str] | str) -> set[str]:
    return {classes} if isinstance(classes, str) else set(classes)
