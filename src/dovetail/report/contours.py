"""Where a grid of numbers reaches a level: closed outlines by marching squares.

The grid is thought to lie in a sea below every level, so each outline is closed and can be filled:
the regions above one level after the other, painted in that order, are a coloured map.
"""

from __future__ import annotations

from collections.abc import Sequence

Grid = Sequence[Sequence[float | None]]
"""Rows of numbers from 0 to 1; ``None`` is unknown, and lies in the sea."""

_Edge = tuple[int, int, int]
"""The side of a square: of node ``(row, column)`` to the right (0) or upwards (1)."""

_BOTTOM, _RIGHT, _TOP, _LEFT = range(4)

# For the corners at or above a level, summed as bottom left 1, bottom right 2, top right 4, top
# left 8: from which side to which the outline runs, with the higher ground on its left.
_RUNS: tuple[tuple[tuple[int, int], ...], ...] = (
    (),
    ((_BOTTOM, _LEFT),),
    ((_RIGHT, _BOTTOM),),
    ((_RIGHT, _LEFT),),
    ((_TOP, _RIGHT),),
    ((_BOTTOM, _LEFT), (_TOP, _RIGHT)),
    ((_TOP, _BOTTOM),),
    ((_TOP, _LEFT),),
    ((_LEFT, _TOP),),
    ((_BOTTOM, _TOP),),
    ((_RIGHT, _BOTTOM), (_LEFT, _TOP)),
    ((_RIGHT, _TOP),),
    ((_LEFT, _RIGHT),),
    ((_BOTTOM, _RIGHT),),
    ((_LEFT, _BOTTOM),),
    (),
)
# Two opposite corners are above, and so is the middle: they are one region, not two.
_JOINED = {5: ((_BOTTOM, _RIGHT), (_TOP, _LEFT)), 10: ((_LEFT, _BOTTOM), (_RIGHT, _TOP))}


def outlines(grid: Grid, level: float) -> list[list[tuple[float, float]]]:
    """The outlines of what is at or above a level, as places ``(column, row)`` along each.

    Filled by the even-odd rule they are that region; between two nodes a place is interpolated.

    >>> (loop,) = outlines([[0.0, 1.0], [0.0, 1.0]], 0.5)
    >>> sorted(set(loop))
    [(0.5, 0.0), (0.5, 1.0), (1.0, 0.0), (1.0, 1.0)]
    """
    tall, wide = len(grid), len(grid[0])
    sea: list[float | None] = [None] * (wide + 2)
    known = [sea, *([None, *row, None] for row in grid), sea]
    above = [[value is not None and value >= level for value in row] for row in known]
    following: dict[_Edge, _Edge] = {}
    for i in range(tall + 1):
        low, high = above[i], above[i + 1]
        for j in range(wide + 1):
            corners = low[j] + 2 * low[j + 1] + 4 * high[j + 1] + 8 * high[j]
            if corners in (0, 15):
                continue
            runs = _RUNS[corners]
            if corners in _JOINED and _middle(known, i, j) >= level:
                runs = _JOINED[corners]
            sides = ((i, j, 0), (i, j + 1, 1), (i + 1, j, 0), (i, j, 1))
            for start, end in runs:
                following[sides[start]] = sides[end]
    loops = []
    while following:
        first, edge = following.popitem()
        loop = [first]
        while edge != first:
            loop.append(edge)
            edge = following.pop(edge)
        loops.append([_crossing(known, edge, level, tall, wide) for edge in loop])
    return loops


def _middle(known: Grid, i: int, j: int) -> float:
    corners = (known[i][j], known[i][j + 1], known[i + 1][j], known[i + 1][j + 1])
    return sum(-1.0 if value is None else value / 4 for value in corners)


def _crossing(known: Grid, edge: _Edge, level: float, tall: int, wide: int) -> tuple[float, float]:
    """Where the level is reached along an edge; at the shore that is the node on land."""
    i, j, upwards = edge
    one, other = known[i][j], known[i + 1][j] if upwards else known[i][j + 1]
    if one is None:
        share = 1.0
    elif other is None:
        share = 0.0
    else:
        share = (level - one) / (other - one)
    x, y = (j, i + share) if upwards else (j + share, i)
    return min(max(x - 1.0, 0.0), wide - 1.0), min(max(y - 1.0, 0.0), tall - 1.0)
