"""Rows of named values as text: each value on a line that runs from the least to the greatest."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.core.views import Cell, Figure, Series, Table
from dovetail.report.scales import Scale, span_of
from dovetail.report.text import names_of, place_name, show_number

__all__ = ["STRIP", "interval_rows", "polar_rows", "strip"]

STRIP = 32
"""The characters of a line where there is room."""

_SIGNS = "●■◆▲"


def strip(marks: Sequence[tuple[float, str]], scale: Scale, ends: Sequence[float] = ()) -> str:
    """Signs at their places along a line of text, with a whisker from one end to the other.

    >>> strip([(5.0, "●")], Scale(0.0, 10.0, 0.0, 10.0), (2.0, 9.0))
    '  ├──●───┤'
    """
    line = [" "] * (round(max(scale.start, scale.end)) + 1)
    shown = [_place(end, scale) for end in ends]
    if len(shown) == 2:
        for i in range(min(shown), max(shown) + 1):
            line[i] = "─"
        for end, i, sign in zip(ends, shown, "├┤", strict=True):
            line[i] = sign if scale.shows(end) else "─"
    for value, sign in marks:
        line[_place(value, scale)] = sign
    return "".join(line).rstrip()


def interval_rows(figure: Figure, wide: int = STRIP) -> Table:
    """An interval figure as a table for a terminal: a row for each value, with its whisker.

    >>> figure = Figure("interval", "", (Series("", ("a", "b"), (2.0, 1.0)),))
    >>> interval_rows(figure).rows[1]
    ('b', '1', '●')
    """
    places = {name: place for place, name in enumerate(names_of(figure))}
    bounded = any(series.low or series.high for series in figure.series)
    several = len(figure.series) > 1
    scale = _scale(figure, [v for s in figure.series for v in (*s.y, *s.low, *s.high)], wide)
    rows: list[tuple[int, tuple[Cell, ...]]] = []
    for index, series in enumerate(figure.series):
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            ends = [side[i] if i < len(side) else None for side in (series.low, series.high)]
            words = [show_number(v, figure.y_format) for v in (y, *(ends if bounded else ()))]
            name = place_name(x)
            drawn = _drawn(y, ends, scale, _SIGNS[index % 4])
            row = (name, *([series.name] if several else []), *words, drawn)
            rows.append((places[name], row))
    rows.sort(key=lambda row: row[0])  # the series of one name together, each in its own order
    columns = (
        figure.x_label or "name",
        *(["series"] if several else []),
        figure.y_label or "value",
        *(["low", "high"] if bounded else []),
        _limits(scale, figure.y_format),
    )
    return Table(columns, tuple(row for _, row in rows), (), figure.title)


def polar_rows(figure: Figure, wide: int = STRIP) -> Table:
    """A polar figure as a table for a terminal: a row for each direction, the centre on the left.

    >>> near = Series("near", ("a", "b"), (1.0, 2.0))
    >>> polar_rows(Figure("polar", "", (near,))).rows[0]
    ('a', '1', '               ●')
    """
    values = [y for series in figure.series for y in series.y if y is not None and y >= 0]
    scale = _scale(figure, [0.0, *values], wide)
    known = [_by_name(series) for series in figure.series]
    rows = []
    for name in names_of(figure):
        found = [values_of.get(name) for values_of in known]
        marks = [
            (y, _SIGNS[index % 4])
            for index, y in enumerate(found)
            if y is not None and math.isfinite(y) and y >= 0
        ]
        words = [show_number(y, figure.y_format) for y in found]
        # The first series is drawn last: it is the one the others are held against.
        rows.append((name, *words, strip(marks[::-1], scale)))
    said = [
        f"{_SIGNS[i % 4]} {series.name or figure.y_label or 'value'}"
        for i, series in enumerate(figure.series)
    ]
    columns = (figure.x_label or "name", *said, _limits(scale, figure.y_format))
    caption = ": ".join(words for words in (figure.title, figure.y_label) if words)
    return Table(columns, tuple(rows), (), caption)


def _drawn(y: float | None, ends: Sequence[float | None], scale: Scale, sign: str) -> str:
    if y is None or not scale.shows(y):
        return ""
    known = [end if end is not None and not math.isnan(end) else y for end in ends]
    return strip([(y, sign)], scale, known if known != [y, y] else ())


def _by_name(series: Series) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for x, y in zip(series.x, series.y, strict=True):
        found.setdefault(place_name(x), y)
    return found


def _scale(figure: Figure, values: Sequence[float | None], wide: int) -> Scale:
    log = figure.log_y and figure.kind == "interval"
    known = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not log)]
    low, high = span_of(known or ([1.0, 10.0] if log else []))
    return Scale(low, high, 0.0, wide - 1.0, log=log and low > 0)


def _place(value: float, scale: Scale) -> int:
    """The nearest place on the line; what lies beyond it, or has no place, is at an end."""
    if not scale.shows(value):
        return round(scale.end if value > 0 else scale.start)
    return round(min(max(scale(value), scale.start), scale.end))


def _limits(scale: Scale, spec: str) -> str:
    """The two ends of the line as a heading above it."""
    low, high = show_number(scale.low, spec), show_number(scale.high, spec)
    return low + " " * max(round(scale.end) + 1 - len(low) - len(high), 1) + high
