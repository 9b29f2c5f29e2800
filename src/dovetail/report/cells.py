"""Cells of tables and places on an axis, as a reader sees them."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.core.views import Cell
from dovetail.report.text import show_number

__all__ = ["is_number", "is_numeric", "place_name", "show_cell"]


def show_cell(cell: Cell, spec: str = "") -> str:
    """A cell as a reader sees it; without a specification, as it is.

    >>> show_cell(0.25, ".0%"), show_cell(0.1), show_cell("x"), show_cell(None)
    ('25%', '0.1', 'x', '–')
    """
    if isinstance(cell, str | bool) or (cell is not None and not spec):
        return str(cell)
    return show_number(cell, spec)


def is_number(cell: Cell) -> bool:
    """Whether a cell holds a number; stored records spell those that are not finite as words.

    >>> is_number(1.5), is_number("nan"), is_number("1.5"), is_number(True), is_number(None)
    (True, True, False, False, False)
    """
    if isinstance(cell, str):
        return cell in ("nan", "inf", "-inf")
    return cell is not None and not isinstance(cell, bool)


def is_numeric(cells: Sequence[Cell]) -> bool:
    """Whether a column holds numbers, and gaps at most.

    >>> is_numeric([1.5, None]), is_numeric(["a", 1]), is_numeric([None])
    (True, False, False)
    """
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(is_number(cell) for cell in known)


def place_name(x: float | str) -> str:
    """An x value in words, as the name of a place and for the reader.

    >>> place_name("layer1"), place_name(3.0)
    ('layer1', '3')
    """
    return x if isinstance(x, str) else show_number(float(x))
