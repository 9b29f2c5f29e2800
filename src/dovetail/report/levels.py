"""The values of a plane as heights: shares of their range, round levels; and shades of text."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dovetail.core.views import Heatmap, Plane, Table
from dovetail.report.heatmaps import Colouring, colouring
from dovetail.report.scales import Scale, log_ticks, nice_ticks
from dovetail.report.text import show_number, show_ticks

_MOST_LINES = 9


@dataclass(frozen=True)
class Levels:
    """A plane's values as shares from 0 to 1 of its range, and the round values within it.

    >>> plane = Plane("", (0.0, 1.0), (0.0, 1.0), ((0.0, 1.0), (2.0, 4.0)))
    >>> levels = levels_of(plane)
    >>> levels.shares, levels.lines[2]
    (((0.0, 0.25), (0.5, 1.0)), (0.25, '1.0'))
    """

    shares: tuple[tuple[float | None, ...], ...]
    colours: Colouring
    lines: tuple[tuple[float, str], ...]


def levels_of(plane: Plane) -> Levels:
    """How high each node lies between the least and the greatest value."""
    log = plane.log and any(v is not None and 0 < v < math.inf for row in plane.values for v in row)
    values = [[_logarithm(v) if log else _number(v) for v in row] for row in plane.values]
    bare = Heatmap("", ("",) * len(values), ("",) * len(values[0]), tuple(map(tuple, values)))
    colours = colouring(bare)
    if log:  # a logarithm's zero is no middle
        known = [v for row in values for v in row if v is not None and math.isfinite(v)]
        colours = Colouring(min(known), max(known), "one")
    scale = Scale(colours.low, colours.high, 0.0, 1.0)
    shares = tuple(
        tuple(None if v is None else min(max(_share(scale, v), 0.0), 1.0) for v in row)
        for row in values
    )
    low, high = colours.low, colours.high
    ticks = nice_ticks(low, high, most=_MOST_LINES) if low < high else [low]
    heights = ticks
    if log:
        ends = [math.ldexp(1.0, -1074) if v < -323 else 10.0 ** min(v, 308.0) for v in (low, high)]
        heights = log_ticks(*ends, most=_MOST_LINES) if ends[0] < ends[1] else [ends[0]]
        ticks = [math.log10(tick) for tick in heights]
    words = show_ticks(heights, plane.format, log=log)
    inside = [(_share(scale, t), w) for t, w in zip(ticks, words, strict=True) if low <= t <= high]
    return Levels(shares, colours, tuple(inside))


_SHADES = " ░▒▓█"
_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


def shaded_rows(plane: Plane, wide: int = 48, tall: int = 16) -> Table:
    """A plane as a table for a terminal: a row of shades, or of a letter a class, for each y.

    >>> shaded_rows(Plane("", (0.0, 1.0), (0.0, 1.0), ((0.0, 1.0), (2.0, 4.0)))).rows
    (('1', '▒█'), ('0', ' ░'))
    """
    (low, high), shares = plane.y, levels_of(plane).shares
    rows, columns = len(plane.values), len(plane.values[0])
    few = min(columns, wide)
    across = [round(j * (columns - 1) / (few - 1)) for j in range(few)]
    signs = []
    for k in range(min(rows, tall)):
        share = k / (min(rows, tall) - 1)
        i = round(share * (rows - 1))
        drawn = "".join(_sign(plane, plane.values[i][j], shares[i][j]) for j in across)
        signs.append((show_number(low * (1 - share) + high * share), drawn))
    known = [v for row in plane.values for v in row if v is not None and not math.isnan(v)]
    if plane.classes:
        legend = ", ".join(f"{_LETTERS[i % 36]} {name}" for i, name in enumerate(plane.classes))
    else:
        least_and_most = (show_number(end(known, default=None), plane.format) for end in (min, max))
        legend = f"{plane.value_label or 'value'} from {' (light) to '.join(least_and_most)} (dark)"
    ends = f"{show_number(plane.x[0])} to {show_number(plane.x[1])}"
    return Table(
        (plane.y_label or "y", f"{plane.x_label or 'x'} {ends}"),
        tuple(signs[::-1]),
        (),
        ": ".join(words for words in (plane.title, legend) if words),
    )


def _sign(plane: Plane, value: float | None, share: float | None) -> str:
    if value is None or share is None:
        return "·"
    return _LETTERS[int(value) % 36] if plane.classes else _SHADES[round(share * 4)]


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else min(max(float(value), -1.7e308), 1.7e308)


def _logarithm(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else _power(float(value))


def _power(value: float) -> float:
    return 308.0 if value == math.inf else math.log10(value) if value > 0 else -math.inf


def _share(scale: Scale, value: float) -> float:
    return 0.0 if value == -math.inf else scale(value)
