"""Tables as lines of text: columns side by side, folded where there is less room than they need."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest

__all__ = ["columns_that_fit", "lines_of"]

_GAP = "   "
_ALIGNED = 120  # cells wider than this stick out, or one of them would pad every other row
_LEAST = 3  # the narrowest column that still tells something


def lines_of(
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    room: int | None = None,
    *,
    drawn: bool = False,
) -> list[list[str]]:
    """Each row of cells as lines; with ``room`` none is wider, and cells fold.

    The columns in ``right`` end flush, and the last one is never folded if it is ``drawn``.

    >>> lines_of([["part", "n"], ["lenet", "9"]], {1})
    [['part    n'], ['lenet   9']]
    >>> lines_of([["two words", "n"]], room=9)
    [['two     n', 'words']]
    """
    widths = _widths(rows, room, drawn)
    return [list(_row(row, widths, right, room is not None)) for row in rows]


def columns_that_fit(count: int, room: int) -> int:
    """How many of some columns can stand side by side, folded as far as they can be.

    >>> columns_that_fit(5, 80), columns_that_fit(500, 80)
    (5, 13)
    """
    return min(count, max((room + len(_GAP)) // (_LEAST + len(_GAP)), 1))


def _widths(rows: Sequence[Sequence[str]], room: int | None, drawn: bool) -> list[int]:
    from rich.cells import cell_len

    widths = [
        min(max(map(cell_len, column)), _ALIGNED if room is None else room)
        for column in zip(*rows, strict=True)
    ]
    if room is None:
        return widths
    free = room - len(_GAP) * (len(widths) - 1)
    fixed = widths[-1:] if drawn else []
    loose = widths[: len(widths) - len(fixed)]
    level = max(loose, default=0)
    # The widest give way first, all to the same width.
    while level > _LEAST and sum(min(width, level) for width in loose) > free - sum(fixed):
        level -= 1
    return [min(width, level) for width in loose] + fixed


def _row(
    cells: Sequence[str], widths: Sequence[int], right: Collection[int], folds: bool
) -> Iterator[str]:
    from rich.cells import cell_len

    folded = [
        _fold(cell, width) if folds and cell_len(cell) > width else [cell]
        for cell, width in zip(cells, widths, strict=True)
    ]
    for line in zip_longest(*folded, fillvalue=""):
        padded = []
        for j, (piece, width) in enumerate(zip(line, widths, strict=True)):
            pad = " " * (width - cell_len(piece))
            padded.append(pad + piece if j in right else piece + pad)
        yield _GAP.join(padded).rstrip()


def _fold(text: str, width: int) -> list[str]:
    """Lines of at most a width, broken between words and, if it must be, within one."""
    from rich.cells import cell_len, chop_cells

    lines: list[str] = []
    used = width + 1
    for word in text.split():
        wide = cell_len(word)
        if lines and used + 1 + wide <= width:
            lines[-1] += f" {word}"
            used += 1 + wide
            continue
        lines += chop_cells(word, max(width, 2)) if wide > width else [word]
        used = cell_len(lines[-1])
    return lines or [""]
