"""A quick list of the shelf, which can always be rebuilt from the folders.

The index file keeps the facts of each part together with a *stamp* of the files they were read
from (inode, time and size of manifest, config and note).  Listing a shelf walks the folders and
compares stamps; only what is new or changed is read again.  A stale, missing or damaged index
costs time, never truth, and a shelf that cannot be written to simply has none.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.core.errors import DovetailError, ShelfError
from dovetail.core.files import write_whole
from dovetail.core.plain import from_plain, to_plain
from dovetail.parts.contract import Contract
from dovetail.parts.origin import Origin
from dovetail.parts.recipe import Recipe, read_recipe
from dovetail.shelf.entry import Entry, read_entry
from dovetail.shelf.names import is_name, version_of
from dovetail.shelf.notes import note_path

__all__ = ["Index", "Slot", "names", "slots"]

FILE = ".index.json"
FORMAT = 1
"""Raise when rows change their meaning; an index of another number is rebuilt, not read."""

Stamp = list[list[int]]


class Slot(NamedTuple):
    """A place on the shelf: a name, a version and the folder they stand for."""

    name: str
    version: int
    folder: Path


class Index:
    """The entries of a shelf, remembered in memory and in a file.

    >>> import tempfile
    >>> Index(Path(tempfile.mkdtemp())).entries()
    []
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._memory: dict[str, tuple[Stamp, Entry]] = {}

    def entries(self, name: str | None = None) -> list[Entry]:
        """All entries, or those of one name, in order; damaged parts are among them."""
        found: dict[str, tuple[Stamp, Entry]] = {}
        stored: dict[str, Any] | None = None
        fresh = False
        for slot in slots(self.folder, name):
            key, stamp = f"{slot.name}@{slot.version}", _stamp(slot.folder)
            known = self._memory.get(key)
            if known is None or known[0] != stamp:
                stored = self._stored() if stored is None else stored
                entry = _from_row(slot, stamp, stored.get(key))
                fresh = fresh or entry is None
                known = (stamp, entry or read_entry(*slot))
            found[key] = known
        # Damage is never remembered: it may be mended by files that bear no stamp.
        whole = {key: known for key, known in found.items() if known[1].problem is None}
        if name is None:
            gone = self._memory.keys() - whole.keys()
            self._memory = whole
            if gone or (fresh and whole):
                self._write()
        else:
            self._memory.update(whole)
        return [entry for _, entry in found.values()]

    def _stored(self) -> dict[str, Any]:
        """The rows of the index file; none when it is missing, damaged or of another format."""
        try:
            check, _, body = (self.folder / FILE).read_bytes().partition(b"\n")
            if check.decode() != hashlib.sha256(body).hexdigest():
                return {}
            value = json.loads(body)
            return dict(value["rows"]) if value["format"] == FORMAT else {}
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return {}

    def _write(self) -> None:
        rows = {key: _to_row(stamp, entry) for key, (stamp, entry) in self._memory.items()}
        body = json.dumps({"format": FORMAT, "rows": rows}, allow_nan=False).encode()
        check = hashlib.sha256(body).hexdigest().encode()
        try:
            write_whole(self.folder / FILE, check + b"\n" + body)
        except (DovetailError, OSError):
            return  # a shelf that only others may write to


def names(folder: Path) -> list[str]:
    """The folders that may hold versions, whether they do or not."""
    return sorted(filter(is_name, _folders(folder)))


def slots(folder: Path, name: str | None = None) -> list[Slot]:
    """Every place on the shelf where a part is or claims to be, by name and version.

    >>> import tempfile
    >>> shelf = Path(tempfile.mkdtemp()); (shelf / "lenet" / "2").mkdir(parents=True)
    >>> [(slot.name, slot.version) for slot in slots(shelf)]
    [('lenet', 2)]
    """
    try:
        return [
            Slot(each, number, folder / each / str(number))
            for each in (names(folder) if name is None else [name])
            for number in sorted(filter(None, map(version_of, _folders(folder / each))))
        ]
    except OSError as error:
        raise ShelfError(f"cannot read the shelf {folder}: {error.strerror or error}") from None


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as items:
            return [item.name for item in items if item.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []


def _stamp(folder: Path) -> Stamp:
    return [
        _stat(folder / "manifest.json"),
        _stat(folder / "config.json"),
        _stat(note_path(folder)),
    ]


def _stat(path: Path) -> list[int]:
    try:
        facts = path.lstat()
    except OSError:
        return []
    return [facts.st_ino, facts.st_mtime_ns, facts.st_size]


def _to_row(stamp: Stamp, entry: Entry) -> dict[str, Any]:
    return {
        "stamp": stamp,
        "contract": json.dumps(to_plain(entry.contract)),
        "recipe": json.dumps(to_plain(entry.recipe)),
        "origin": to_plain(entry.origin),
        "digest": entry.digest,
        "bytes": entry.bytes,
        "tags": list(entry.tags),
        "added": entry.added,
    }


def _from_row(slot: Slot, stamp: Stamp, row: Any) -> Entry | None:
    """The entry a row holds, unless the files have changed or the row makes no sense."""
    if not isinstance(row, dict) or row.get("stamp") != stamp:
        return None
    try:
        return Entry(
            *slot,
            _contract(row["contract"]),
            _recipe(row["recipe"]),
            from_plain(Origin, row["origin"]),
            from_plain(str, row["digest"]),
            from_plain(int, row["bytes"]),
            from_plain(tuple[str, ...], row["tags"]),
            from_plain(str | None, row["added"]),  # type: ignore[arg-type]
        )
    except (DovetailError, KeyError, ValueError, TypeError):
        return None


# The versions of a part mostly share contract and recipe; text that was read once is not parsed
# again, which is why a row holds both as text.
@lru_cache(maxsize=4096)
def _contract(text: str) -> Contract:
    return from_plain(Contract, json.loads(text))


@lru_cache(maxsize=4096)
def _recipe(text: str) -> Recipe:
    return read_recipe(json.loads(text), check=False)
