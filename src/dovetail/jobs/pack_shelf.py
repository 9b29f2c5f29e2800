"""One change after another to every part on a shelf: what fails for one does not stop the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dovetail.core.errors import DovetailError, first_line
from dovetail.core.progress import progress
from dovetail.core.views import Table, Text, View
from dovetail.jobs.outcome import Outcome
from dovetail.jobs.pack_places import shelve
from dovetail.parts.part import Part
from dovetail.shelf.entry import Entry
from dovetail.shelf.listing import shown_bytes
from dovetail.shelf.store import Shelf

__all__ = ["every_part"]


@dataclass(frozen=True)
class _Row:
    """What became of one part: ``to`` where it went, or ``why_not``."""

    part: str
    bytes_before: int
    to: str | None = None
    bytes: int | None = None
    why_not: str | None = None
    failed: bool = False


def every_part(
    change: Callable[[Entry], Part | str],
    done: str,
    ending: str,
    *,
    shelf: str | Path,
    to: Path | None = None,
) -> Outcome:
    """Change the latest version of every part, and put it where it belongs.

    That is the same shelf, under a name with the ``ending``, or the shelf ``to``, under its own.

    Args:
        change: From an entry to the new part, or to the reason why it can be left out.
        done: What the parts are then, such as ``"packed"``.
        ending: Of names on the same shelf.
        shelf: Where the parts are.
        to: Another shelf to put them on.
    """
    source = Shelf(shelf, create=False)
    latest = {entry.name: entry for entry in source.entries()}
    if not latest:
        said = Text(f"The shelf {source.folder} is empty: there is nothing to be {done}.")
        return Outcome((said,), {"parts": []})
    store = source if to is None else Shelf(to)
    store.check_writable()
    rows: list[_Row] = []
    try:
        with progress(f"{done.removesuffix('ed')}ing", len(latest)) as step:
            for name, entry in latest.items():
                rows.append(_row(entry, change, store, name if to else f"{name}{ending}"))
                step(entry.ref)
    except KeyboardInterrupt:
        count = sum(row.to is not None for row in rows)
        raise KeyboardInterrupt(
            f"{count} {done} of {len(latest)}, and these stay; the same command does the others"
        ) from None
    failed = any(row.failed for row in rows)
    return Outcome(_view(rows, done), {"parts": [vars(row) for row in rows]}, ok=not failed)


def _row(entry: Entry, change: Callable[[Entry], Part | str], store: Shelf, name: str) -> _Row:
    try:
        part = change(entry)
        if isinstance(part, str):
            return _Row(entry.ref, entry.bytes, why_not=part)
        placed = shelve(store, part, name)
    except (DovetailError, OSError, MemoryError, RuntimeError) as error:
        return _Row(entry.ref, entry.bytes, why_not=first_line(error), failed=True)
    return _Row(entry.ref, entry.bytes, placed.ref, placed.bytes)


def _view(rows: list[_Row], done: str) -> View:
    table = Table(
        ("part", done, "size", f"{done} size", "why not"),
        tuple(
            (
                row.part,
                row.to,
                shown_bytes(row.bytes_before),
                None if row.bytes is None else shown_bytes(row.bytes),
                row.why_not,
            )
            for row in rows
        ),
    )
    changed = [row for row in rows if row.to is not None]
    before = sum(row.bytes_before for row in changed)
    after = sum(row.bytes or 0 for row in changed)
    became = f": {shown_bytes(before)} became {shown_bytes(after)}" if changed else ""
    said = Text(f"{len(changed)} {done}{became}.", style="heading")
    failed = [row.part for row in rows if row.failed]
    why = f"{len(failed)} could not be {done}: {', '.join(failed)}."
    return (table, said, Text(why, style="warning")) if failed else (table, said)
