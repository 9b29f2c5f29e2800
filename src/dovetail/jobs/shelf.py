"""Look after a shelf."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.core.views import Text
from dovetail.jobs.outcome import Outcome
from dovetail.shelf.names import check_name, name_of
from dovetail.shelf.store import Shelf

__all__ = ["ls", "path", "pull", "push", "rm", "show", "verify"]


def ls(pattern: str | None = None, *, shelf: str | Path = "shelf", **wanted: Any) -> Outcome:
    """The parts on the shelf that are everything asked for, as :meth:`Shelf.find` asks."""
    record = Shelf(shelf, create=False).ls(pattern, **wanted)
    return Outcome(record.view(), record.to_plain()["data"], (record,))


def show(ref: str, *, shelf: str | Path = "shelf") -> Outcome:
    """Everything the shelf knows of one part."""
    record = Shelf(shelf, create=False).show(ref)
    return Outcome(record.view(), record.to_plain()["data"], (record,))


def path(front: str, head: str, *, shelf: str | Path = "shelf") -> Outcome:
    """The best chain of parts from what one part gives to what another takes."""
    record = Shelf(shelf, create=False).path(front, head)
    data = {**record.to_plain()["data"], "between": list(record.between)}
    return Outcome(record.view(), data, (record,))


def rm(ref: str, *, all_versions: bool = False, shelf: str | Path = "shelf") -> Outcome:
    """Take a version, or a whole name, off the shelf."""
    gone = Shelf(shelf, create=False).rm(ref, all_versions=all_versions)
    return Outcome((Text(f"Removed {', '.join(gone)}."),), {"removed": gone})


def verify(ref: str | None = None, *, sweep: bool = False, shelf: str | Path = "shelf") -> Outcome:
    """Read everything again; not ok when any part is damaged.  With ``sweep`` tidy up first."""
    store = Shelf(shelf, create=False)
    if sweep:
        store.sweep()
    record = store.verify(ref)
    return Outcome(record.view(), record.to_plain()["data"], (record,), ok=record.ok)


def push(ref: str, repo_id: str, *, public: bool = False, shelf: str | Path = "shelf") -> Outcome:
    """Send a part on the shelf to a repository of the hub."""
    from dovetail.shelf import hub

    address = hub.push(ref, repo_id, shelf=shelf, private=not public)
    return Outcome((Text(f"{ref} is at {address}"),), {"ref": ref, "address": address})


def pull(
    repo_id: str,
    *,
    name: str | None = None,
    revision: str | None = None,
    tags: list[str] | None = None,
    shelf: str | Path = "shelf",
) -> Outcome:
    """Fetch the part in a repository of the hub and put it on the shelf, after checking it."""
    from dovetail.shelf import hub

    name = check_name(name or name_of(repo_id))
    part = hub.pull(repo_id, revision=revision)
    entry = Shelf(shelf).add(part, name, tags=tags or ())
    said = Text(f"{entry.ref} is on the shelf: {part.contract}")
    return Outcome((said,), {"ref": entry.ref, "digest": entry.digest})
