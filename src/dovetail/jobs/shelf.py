"""Look after a shelf."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.core.records import Record
from dovetail.core.views import Text
from dovetail.jobs import Outcome
from dovetail.settings.common import Common
from dovetail.settings.shelf import Add, Pull, Push, Remove, Verify
from dovetail.shelf.names import check_name, name_of
from dovetail.shelf.store import Shelf

if TYPE_CHECKING:
    from dovetail.parts.part import Part

__all__ = ["ls", "path", "pull", "push", "rm", "show", "verify"]


def ls(pattern: str | None = None, *, shelf: str | Path = Common.shelf, **wanted: Any) -> Outcome:
    """The parts on the shelf that are everything asked for, as :meth:`Shelf.find` asks."""
    return _shown(Shelf(shelf, create=False).ls(pattern, **wanted))


def show(ref: str, *, shelf: str | Path = Common.shelf) -> Outcome:
    """Everything the shelf knows of one part."""
    return _shown(Shelf(shelf, create=False).show(ref))


def path(front: str, head: str, *, shelf: str | Path = Common.shelf) -> Outcome:
    """The best chain of parts from what one part gives to what another takes."""
    record = Shelf(shelf, create=False).path(front, head)
    return _shown(record, between=list(record.between))


def rm(
    ref: str, *, all_versions: bool = Remove.all_versions, shelf: str | Path = Common.shelf
) -> Outcome:
    """Take a version, or a whole name, off the shelf."""
    gone = Shelf(shelf, create=False).rm(ref, all_versions=all_versions)
    return Outcome((Text(f"Removed {', '.join(gone)}."),), {"removed": gone})


def verify(
    ref: str | None = None, *, sweep: bool = Verify.sweep, shelf: str | Path = Common.shelf
) -> Outcome:
    """Read everything again; not ok when any part is damaged.  With ``sweep`` tidy up first."""
    store = Shelf(shelf, create=False)
    if sweep:
        store.sweep()
    record = store.verify(ref)
    return replace(_shown(record), ok=record.ok)


def push(
    ref: str, repo_id: str, *, public: bool = Push.public, shelf: str | Path = Common.shelf
) -> Outcome:
    """Send a part on the shelf to a repository of the hub."""
    from dovetail.shelf import hub

    address = hub.push(ref, repo_id, shelf=shelf, private=not public)
    return Outcome((Text(f"{ref} is at {address}"),), {"ref": ref, "address": address})


def pull(
    repo_id: str,
    *,
    name: str | None = Add.name,
    revision: str | None = Pull.revision,
    tags: Sequence[str] = Add.tags,
    shelf: str | Path = Common.shelf,
) -> Outcome:
    """Fetch the part in a repository of the hub and put it on the shelf, after checking it."""
    from dovetail.shelf import hub

    name = check_name(name or name_of(repo_id))
    return _added(hub.pull(repo_id, revision=revision), name, tags, shelf)


def _shown(record: Record, **more: Any) -> Outcome:
    return Outcome(record.view(), {**record.to_plain()["data"], **more}, (record,))


def _added(part: Part, name: str, tags: Sequence[str], shelf: str | Path) -> Outcome:
    entry = Shelf(shelf).add(part, name, tags=tags)
    words = Text(f"{entry.ref} is on the shelf: {part.contract}")
    return Outcome((words,), {"ref": entry.ref, "digest": entry.digest})
