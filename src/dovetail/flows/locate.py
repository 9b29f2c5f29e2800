"""Finding a part by what the user typed: a folder, or a name on the shelf."""

from __future__ import annotations

from pathlib import Path

from dovetail.parts.disk import is_part_folder
from dovetail.parts.part import Part, from_pretrained
from dovetail.shelf.store import Shelf

__all__ = ["find_part", "name_of"]


def find_part(ref: str, shelf: str | Path) -> Part:
    """The part in a folder, or the one of that name on the shelf (``name`` or ``name@2``)."""
    if is_part_folder(Path(ref)):
        return from_pretrained(ref)
    return Shelf(shelf, create=False).get(ref)


def name_of(ref: str) -> str:
    """A part's name without its version or its folder's path.

    >>> name_of("lenet@2"), name_of("parts/lenet")
    ('lenet', 'lenet')
    """
    return Path(ref).name.partition("@")[0]
