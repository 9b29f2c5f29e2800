"""Cut a shelved network in two parts, or list where it can be cut."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.views import Table, Text
from dovetail.jobs.locate import find_part
from dovetail.jobs.outcome import Outcome
from dovetail.parts.contract import shown_shape
from dovetail.parts.cutting import cut as cut_part
from dovetail.parts.cutting import cut_points
from dovetail.shelf.names import name_of
from dovetail.shelf.store import Shelf

__all__ = ["cut", "list_points"]


def list_points(ref: str, *, shelf: str | Path = "shelf") -> Outcome:
    """Every place where one tensor crosses, with its shape."""
    points = cut_points(find_part(ref, shelf))
    rows = tuple((p.name, shown_shape(p.shape), p.activation) for p in points)
    return Outcome(
        view=(
            Table(("cut point", "shape", "activation"), rows, caption=f"Where {ref} can be cut"),
        ),
        data={"points": [{"at": p.name, "shape": p.shape, "after": p.activation} for p in points]},
    )


def cut(ref: str, at: str, *, name: str | None = None, shelf: str | Path = "shelf") -> Outcome:
    """Cut at ``at`` and shelve both halves, or none, as ``<name>.front`` and ``<name>.back``."""
    front, back = cut_part(find_part(ref, shelf), at)
    base = name or name_of(ref)
    entries = Shelf(shelf).add_all({f"{base}.front": front, f"{base}.back": back})
    space = front.contract.gives[0].space
    rows = tuple(
        (e.ref, str(part.contract)) for e, part in zip(entries, (front, back), strict=True)
    )
    return Outcome(
        view=(
            Table(("part", "contract"), rows, caption=f"{ref} cut at {at}"),
            Text(f"The two share the space {space}: they fit each other."),
        ),
        data={"front": entries[0].ref, "back": entries[1].ref, "space": space},
    )
