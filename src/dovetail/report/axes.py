"""The frame of a figure: where the plot lies, its two axes and its grid; and what is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from dovetail.core.views import Figure
from dovetail.report.scales import Scale, log_ticks, nice_ticks, span_of
from dovetail.report.svg import label, tag
from dovetail.report.text import clip_apart, place_name, show_ticks, text_width

WIDTH = 800.0
"""Of every figure: the width of the page's column."""

HALF = 392.0
"""Of a figure that shares the page's column with another."""

NARROW = 360.0
"""Of a figure for a phone, where the wide one would shrink to letters too small to read."""

_HEIGHTS = {WIDTH: 300.0, NARROW: 240.0}  # of the plot itself
_RIGHT = 18.0
_LINE = 18.0  # from one line of small text to the next
_SLANT = math.radians(35)
_LONGEST = 130.0  # of a name beside or slanted below an axis
_FEW_PLACES = 6  # on a logarithmic axis, each of which has room for a number


@dataclass(frozen=True)
class Frame:
    """The plot's box, and how values become positions in it.

    ``places`` are the names along a categorical x axis, empty on a numeric one.

    >>> from dovetail.core.views import Series
    >>> figure = Figure("line", "Loss", (Series("train", (0, 4), (1.0, 3.0)),))
    >>> frame = lay_out(figure, top=40.0)
    >>> frame.across(0) == frame.left, frame.across(4) == frame.right
    (True, True)
    """

    left: float
    top: float
    right: float
    bottom: float
    x: Scale
    y: Scale
    places: tuple[str, ...]
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    slanted: bool = False
    depth: float = 20.0
    width: float = WIDTH

    @property
    def band(self) -> float:
        """The width of one place on a categorical axis."""
        return (self.right - self.left) / max(len(self.places), 1)

    @cached_property
    def _order(self) -> dict[str, int]:
        return {place: i for i, place in enumerate(self.places)}

    def across(self, x: float | str) -> float | None:
        """The horizontal position of an x value; ``None`` for one that has none."""
        if self.places:
            return self.left + (self._order[place_name(x)] + 0.5) * self.band
        return self.x(float(x)) if self.x.shows(float(x)) else None

    def draw(self, figure: Figure) -> str:
        """Grid, axes, tick labels and the names of both axes."""
        parts = [self._y_tick(at, words) for at, words in self.y_ticks]
        short = [words for _, words in self.x_ticks]
        if self.slanted:
            short = clip_apart(short, _LONGEST)
        parts += [self._x_tick(*tick, cut) for tick, cut in zip(self.x_ticks, short, strict=True)]
        # Bars stand on zero, and so does their axis.
        foot = self.y(0.0) if figure.kind == "bar" and not figure.log_y else self.bottom
        line = f"M{self.left:.1f} {foot:.1f}H{self.right:.1f}"
        parts.append(tag("path", class_="axis", d=line))
        if words := figure.x_label:
            middle, room = (self.left + self.right) / 2, self.right - self.left
            below = self.bottom + self.depth + _LINE
            parts.append(
                label(words, middle, below, width=room, class_="name", text_anchor="middle")
            )
        if words := figure.y_label:
            parts.append(label(words, 0, self.top - 14, width=self.width, class_="name"))
        return tag("g", *parts, class_="frame")

    def _y_tick(self, at: float, words: str) -> str:
        y = self.y(at)
        line = tag("line", x1=self.left, x2=self.right, y1=y, y2=y, class_="grid")
        text = label(words, self.left - 8, y + 4, width=_LONGEST, text_anchor="end")
        return tag("g", line, text, class_="tick-y", data_at=repr(at))

    def _x_tick(self, at: float, words: str, short: str) -> str:
        turn = None
        if self.slanted:
            turn = f"rotate({-math.degrees(_SLANT):.0f} {at:.1f} {self.bottom + 14:.1f})"
        text = label(
            words,
            at,
            self.bottom + (14 if self.slanted else 18),
            short=short,
            text_anchor="end" if self.slanted else "middle",
            transform=turn,
        )
        return tag("g", text, class_="tick-x", data_at=f"{at:.2f}")


def lay_out(figure: Figure, *, top: float, width: float = WIDTH) -> Frame:
    """Choose scales and ticks, and give the labels the room they need.

    >>> from dovetail.core.views import Series
    >>> figure = Figure("bar", "Size", (Series("a", ("x", "y"), (1.0, 2.0)),))
    >>> lay_out(figure, top=40.0).places
    ('x', 'y')
    """
    top += 26.0 if figure.y_label else 6.0
    bottom = top + _HEIGHTS.get(width, 300.0)
    y, y_ticks = value_axis(figure, bottom, top)
    left = min(max((text_width(words) for _, words in y_ticks), default=0.0), _LONGEST) + 12.0
    right = width - _RIGHT
    places = _places(figure)
    if not places:
        x, ticks = _sideways(figure, left, right)
        return Frame(left, top, right, bottom, x, y, (), ticks, y_ticks, width=width)
    band = (right - left) / len(places)
    slanted = any(text_width(place) > band - 6 for place in places)
    depth = 20.0
    if slanted:
        shown = [min(text_width(place), _LONGEST) for place in places]
        # Slanted names reach to the left of their place; none of them may leave the picture.
        reach = (wide * math.cos(_SLANT) - (i + 0.5) * band for i, wide in enumerate(shown))
        left = max(left, max(reach) + 8)
        depth = max(shown) * math.sin(_SLANT) + 18
        band = (right - left) / len(places)
    each = math.ceil(16.0 / band) if slanted else 1  # name every so many, where they are crowded
    ticks = tuple(
        (left + (i + 0.5) * band, place) for i, place in enumerate(places) if i % each == 0
    )
    unused = Scale(0.0, 1.0, left, right)
    return Frame(left, top, right, bottom, unused, y, places, ticks, y_ticks, slanted, depth, width)


def value_axis(
    figure: Figure, start: float, end: float, *, most: int = 7
) -> tuple[Scale, tuple[tuple[float, str], ...]]:
    """The scale of the y values between two positions, and its ticks: values and their words.

    >>> from dovetail.core.views import Series
    >>> figure = Figure("line", "Loss", (Series("train", (0, 4), (1.0, 3.0)),))
    >>> value_axis(figure, 0.0, 100.0, most=3)[1]
    ((1.0, '1'), (2.0, '2'), (3.0, '3'))
    """
    values = [v for v in _heights(figure) if math.isfinite(v) and (v > 0 or not figure.log_y)]
    if figure.kind == "bar" and not figure.log_y:
        values.append(0.0)  # a bar's length is read from zero
        values = values if any(values) else [0.0, 1.0]
    if figure.log_y:
        ticks = log_ticks(*_log_span(values), most=most)
    else:
        ticks = nice_ticks(*span_of(values), most=most)
    # Where a round end would lie beyond the floating-point range, the data's own end stands in.
    low, high = min([*values, *ticks]), max([*values, *ticks])
    scale = Scale(low, high, start, end, log=figure.log_y)
    words = show_ticks(ticks, figure.y_format, log=figure.log_y)
    return scale, tuple(zip(ticks, words, strict=True))


def _sideways(
    figure: Figure, left: float, right: float
) -> tuple[Scale, tuple[tuple[float, str], ...]]:
    values = [float(x) for s in figure.series for x in s.x if math.isfinite(float(x))]
    inset = 10.0 if figure.kind == "scatter" else 0.0
    if figure.log_x:
        return _by_logarithm([x for x in values if x > 0], left + inset, right - inset)
    integers = bool(values) and all(x.is_integer() for x in values)
    low, high = span_of(values)
    scale = Scale(low, high, left + inset, right - inset)
    for most in (10, 8, 6, 4, 3):
        ticks = [t for t in nice_ticks(low, high, most=most, whole=integers) if low <= t <= high]
        words = show_ticks(ticks)
        if sum(text_width(w) + 14 for w in words) <= right - left:
            break
    return scale, tuple((scale(t), w) for t, w in zip(ticks, words, strict=True))


def _by_logarithm(
    values: Sequence[float], left: float, right: float
) -> tuple[Scale, tuple[tuple[float, str], ...]]:
    """From the least to the greatest value; a few whole numbers are ticks themselves."""
    low, high = _log_span(values)
    scale = Scale(low, high, left, right, log=True)
    own = sorted(set(values))
    if not (own and len(own) <= _FEW_PLACES and all(x.is_integer() for x in own)):
        # Ticks that enclose the values; where none lies within, the ends do.
        own = [t for t in log_ticks(low, high) if low <= t <= high] or [low, high]
    words = show_ticks(own, log=True)
    return scale, tuple((scale(t), w) for t, w in zip(own, words, strict=True))


def _log_span(values: Sequence[float]) -> tuple[float, float]:
    """The least and the greatest of positive values; around a single one, half and twice."""
    low, high = min(values, default=1.0), max(values, default=10.0)
    return (low, high) if low < high else (max(low / 2, 5e-324), min(high * 2, 1.7e308))


def _heights(figure: Figure) -> Iterator[float]:
    for series in figure.series:
        for values in (series.y, series.low, series.high):
            yield from (float(value) for value in values if value is not None)


def _places(figure: Figure) -> tuple[str, ...]:
    """The categories in the order they come; numbers under bars in the order of size."""
    values = [x for series in figure.series for x in series.x]
    if any(isinstance(x, str) for x in values):
        return tuple(dict.fromkeys(place_name(x) for x in values))
    if figure.kind != "bar":
        return ()
    finite = sorted({float(x) for x in values if math.isfinite(float(x))})
    rest = [x for x in values if not math.isfinite(float(x))]
    return tuple(dict.fromkeys(place_name(x) for x in [*finite, *rest]))


@dataclass(frozen=True)
class Plot:
    """Axes and names as ``frame``, one group of marks a series, and where the drawing ends.

    ``lost`` counts the values that have no place in the plot for the reason ``why``.

    >>> Plot("", (), 100.0).lost
    0
    """

    frame: str
    series: tuple[str, ...]
    foot: float
    lost: int = 0
    why: str = "not finite"

    @property
    def is_empty(self) -> bool:
        """Whether no series shows anything."""
        return all('data-points="[]"' in group for group in self.series)
