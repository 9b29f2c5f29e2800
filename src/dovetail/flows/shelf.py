"""Look after a shelf."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.views import Text
from dovetail.flows.locate import name_of
from dovetail.flows.outcome import Outcome
from dovetail.parts.part import from_pretrained
from dovetail.shelf.store import Shelf

__all__ = ["add", "ls", "rm", "show", "verify"]


def ls(pattern: str | None = None, *, shelf: str | Path = "shelf") -> Outcome:
    """The parts on the shelf whose name matches."""
    record = Shelf(shelf, create=False).ls(pattern)
    return Outcome(record.view(), record.to_plain()["data"], (record,))


def show(ref: str, *, shelf: str | Path = "shelf") -> Outcome:
    """Everything the shelf knows of one part."""
    record = Shelf(shelf, create=False).show(ref)
    return Outcome(record.view(), record.to_plain()["data"], (record,))


def add(
    folder: str, *, name: str | None = None, tags: list[str] | None = None, shelf: str | Path
) -> Outcome:
    """Put the part in a folder on the shelf, after checking it."""
    part = from_pretrained(folder, verify=True)
    entry = Shelf(shelf).add(part, name or name_of(folder), tags=tags or ())
    said = Text(f"{entry.ref} is on the shelf: {part.contract}")
    return Outcome((said,), {"ref": entry.ref, "digest": entry.digest})


def rm(ref: str, *, all_versions: bool = False, shelf: str | Path = "shelf") -> Outcome:
    """Take a version, or a whole name, off the shelf."""
    gone = Shelf(shelf, create=False).rm(ref, all_versions=all_versions)
    return Outcome((Text(f"Removed {', '.join(gone)}."),), {"removed": gone})


def verify(ref: str | None = None, *, shelf: str | Path = "shelf") -> Outcome:
    """Read everything again; not ok when any part is damaged."""
    record = Shelf(shelf, create=False).verify(ref)
    return Outcome(record.view(), record.to_plain()["data"], (record,), ok=record.ok)
