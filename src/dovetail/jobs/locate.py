"""Finding a part by what the user typed: a folder, or a name on the shelf."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.core.errors import ShelfError
from dovetail.parts.facts import is_part_folder
from dovetail.shelf.names import HALVES, stem_of
from dovetail.shelf.store import Shelf

if TYPE_CHECKING:
    from dovetail.parts.part import Part

__all__ = ["FRONTS", "HEADS", "find_half", "find_part", "own_head"]

FRONTS, HEADS = HALVES["front"], HALVES["head"]
"""How the halves of a network are called behind its name."""


def find_part(ref: str, shelf: str | Path) -> Part:
    """The part in a folder, or the one of that name on the shelf (``name`` or ``name@2``)."""
    if is_part_folder(Path(ref)):
        from dovetail.parts.part import from_pretrained  # torch loads here

        return from_pretrained(ref)
    return Shelf(shelf, create=False).get(ref)


def find_half(ref: str, endings: Sequence[str], shelf: str | Path) -> Part:
    """The half of the network of that name (``low`` for ``low.front``); else the part itself."""
    half = None if is_part_folder(Path(ref)) else _half(ref, endings, shelf)
    return find_part(half or ref, shelf)


def own_head(ref: str, shelf: str | Path, *, option: str = "--head") -> str:
    """The name of the head of the network that a front was cut from."""
    network = stem_of(ref)
    head = None if is_part_folder(Path(ref)) else _half(network, HEADS, shelf)
    if head is None:
        raise ShelfError(
            f"no head of {ref!r} on the shelf {shelf} (neither {network}.head nor {network}.back); "
            f"name it with {option}"
        )
    return head


def _half(network: str, endings: Sequence[str], shelf: str | Path) -> str | None:
    store = Shelf(shelf, create=False)
    return next((f"{network}{end}" for end in endings if f"{network}{end}" in store), None)
