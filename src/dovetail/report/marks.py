"""The data in a figure: lines with bands, points, bars; and the legend that tells series apart.

Each series is one group.  Its ``data-points`` list position, x and y of every point as JSON, which
is what the page's script looks up under the pointer; nothing else in the drawing needs a script.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from dovetail.core.views import Figure, Series
from dovetail.report.axes import Frame
from dovetail.report.svg import label, tag
from dovetail.report.text import clip, place_name, show_number, text_width

_DOTTED = 40
"""Lines of at most this many points show each of them, while there are few lines."""

_FEW = 6

_FINE = 500
"""Lines of more points than this are drawn thin, so that noise does not become a slab."""

_DENSE = 2000
"""Series of more points than this are thinned to what a screen can show."""


@dataclass(frozen=True)
class Point:
    """A datum and its place in the picture; ``low`` and ``high`` are positions too.

    >>> Point(120.0, 80.5, "layer1", 0.75).low is None
    True
    """

    x: float
    y: float
    at: float | str
    value: float
    low: float | None = None
    high: float | None = None


def placed(series: Series, frame: Frame) -> list[Point | None]:
    """Every datum at its place; ``None`` where there is none, so that a line breaks.

    >>> from dovetail.report.axes import lay_out
    >>> one = Series("a", (0, 1, 2), (1.0, None, 3.0))
    >>> [point is None for point in placed(one, lay_out(Figure("line", "", (one,)), top=0.0))]
    [False, True, False]
    """
    points: list[Point | None] = []
    for index, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        across = frame.across(x)
        if across is None or y is None or not frame.y.shows(y):
            points.append(None)
            continue
        low, high = _edge(series.low, index, frame), _edge(series.high, index, frame)
        points.append(Point(across, frame.y(y), x, y, low, high))
    return points


def draw_series(figure: Figure, frame: Frame, index: int) -> str:
    """The marks of one series.

    >>> from dovetail.report.axes import lay_out
    >>> figure = Figure("scatter", "", (Series("a", (0, 1), (1.0, 2.0)),))
    >>> draw_series(figure, lay_out(figure, top=0.0), 0).count('class="dot"')
    2
    """
    series = figure.series[index]
    points = placed(series, frame)
    if figure.kind == "line" and not series.points:
        runs = [thinned(run) for run in _runs(points)]
        marks = [_line(run) for run in runs]
        shown = [point for run in runs for point in run]
        if len(shown) <= _DOTTED and len(figure.series) <= _FEW:
            marks += [symbol(point.x, point.y, r=2.6) for point in shown]
    else:
        shown = [point for point in points if point is not None]
        if figure.kind == "bar":
            shown, marks = _bars(figure, frame, index, shown)
        elif len(shown) > _DENSE:
            shown = sifted(shown)
            marks = [_whisker(point) for point in shown] + [_dust(shown)]
        else:
            marks = [_whisker(point) + symbol(point.x, point.y, shape=index) for point in shown]
    spots = [(p.x, p.y, place_name(p.at), show_number(p.value, figure.y_format)) for p in shown]
    return series_group(figure, index, marks, spots)


def series_group(
    figure: Figure,
    index: int,
    marks: Sequence[str],
    points: Sequence[tuple[float, float, str, str]],
) -> str:
    """The marks of one series, and what to tell under the pointer: x, y, place and value in words.

    >>> figure = Figure("scatter", "", (Series("a", (1,), (2.0,)),))
    >>> "data-points" in series_group(figure, 0, [], [(10.0, 20.0, "1", "2")])
    True
    """
    known = [[round(x, 1), round(y, 1), place, value] for x, y, place, value in points]
    return tag(
        "g",
        *marks,
        class_=style_of(index),
        data_series=str(index),
        data_name=figure.series[index].name,
        data_points=json.dumps(known, ensure_ascii=False, separators=(",", ":")),
    )


def thinned(run: Sequence[Point]) -> list[Point]:
    """A long line as what a screen can show of it: first, lowest, highest and last a pixel column.

    >>> many = [Point(i / 100, float(i % 7), i, 0.0) for i in range(5000)]
    >>> len(thinned(many)), len(thinned(many[:9]))
    (185, 9)
    """
    if len(run) <= _DENSE:
        return list(run)
    thinner: list[Point] = []
    for _, column in groupby(run, key=lambda point: int(point.x)):
        places = list(enumerate(column))
        lowest = min(places, key=lambda place: place[1].y)
        highest = max(places, key=lambda place: place[1].y)
        chosen = {place[0]: place[1] for place in (places[0], lowest, highest, places[-1])}
        thinner += [chosen[i] for i in sorted(chosen)]
    return thinner


def sifted(points: Sequence[Point]) -> list[Point]:
    """A cloud as what a screen can show of it: one point in each square of two pixels.

    >>> len(sifted([Point(i % 10 / 10, 0.0, i, 0.0) for i in range(5000)]))
    1
    """
    return list({(int(point.x / 2), int(point.y / 2)): point for point in points}.values())


def _dust(points: Sequence[Point]) -> str:
    """Dots in one path: a fraction of the bytes of a symbol each."""
    return tag("path", class_="dust", d="".join(f"M{p.x:.1f} {p.y:.1f}h0" for p in points))


def _edge(values: Sequence[float], index: int, frame: Frame) -> float | None:
    """The position of a bound; one that a logarithmic axis cannot show lies at its foot."""
    if index >= len(values) or not math.isfinite(values[index]):
        return None
    return frame.y(values[index]) if frame.y.shows(values[index]) else frame.bottom


def _runs(points: Sequence[Point | None]) -> list[list[Point]]:
    """The points between two gaps, as often as there are any."""
    runs = [[p for p in run if p is not None] for _, run in groupby(points, lambda p: p is None)]
    return [run for run in runs if run]


def _line(run: Sequence[Point]) -> str:
    if len(run) == 1:
        return _whisker(run[0]) + symbol(run[0].x, run[0].y, r=3.2)
    path = "M" + "L".join(f"{p.x:.2f} {p.y:.2f}" for p in run)
    return _band(run) + tag("path", class_="line fine" if len(run) > _FINE else "line", d=path)


def _band(run: Sequence[Point]) -> str:
    drawn = []
    for bounded, part in groupby(run, key=lambda p: p.low is not None and p.high is not None):
        points = list(part)
        if not bounded or len(points) < 2:
            continue
        there = [f"{p.x:.2f} {p.high:.2f}" for p in points]
        back = [f"{p.x:.2f} {p.low:.2f}" for p in reversed(points)]
        drawn.append(tag("path", class_="band", d="M" + "L".join([*there, *back]) + "Z"))
    return "".join(drawn)


def _whisker(point: Point) -> str:
    if point.low is None or point.high is None:
        return ""
    bar = f"M{point.x:.2f} {point.low:.2f}V{point.high:.2f}"
    caps = "".join(f"M{point.x - 3:.2f} {y:.2f}h6" for y in (point.low, point.high))
    return tag("path", class_="whisker", d=bar + caps)


def _bars(
    figure: Figure, frame: Frame, index: int, points: Sequence[Point]
) -> tuple[list[Point], list[str]]:
    """Bars side by side within four fifths of their place, from zero or a log axis's foot."""
    count = len(figure.series)
    wide = frame.band * 0.8 / count
    foot = frame.bottom if figure.log_y else frame.y(0.0)
    moved, marks = [], []
    for point in points:
        left = point.x - frame.band * 0.4 + index * wide
        top, bottom = sorted((point.y, foot))
        gap = 1.0 if wide > 4 else 0.0
        # A bar of height nothing keeps a hairline, so that zero differs from missing.
        bar = tag(
            "rect",
            class_="bar",
            x=left + gap / 2,
            y=top,
            width=wide - gap,
            height=max(bottom - top, 0.75),
        )
        shifted = replace(point, x=left + wide / 2)
        moved.append(shifted)
        marks.append(bar + _whisker(shifted))
    return moved, marks


_COLOURS = 8  # in the style sheet; later series repeat them with another dash
_LONGEST = 240.0  # of a name, in pixels
_LINE = 19.0


def draw_legend(figure: Figure, *, top: float, width: float) -> tuple[str, float]:
    """The names of the series in as many lines as they need, and the height that takes.

    A single series needs no legend when the title or the axis already names it.

    >>> draw_legend(Figure("line", "Loss", ()), top=0.0, width=100.0)
    ('', 0.0)
    """
    series = figure.series
    said = (figure.title, figure.y_label, "")
    if not series or (len(series) == 1 and series[0].name in said):
        return "", 0.0
    entries, x, y = [], 0.0, top + 12.0
    for index, one in enumerate(series):
        wide = text_width(clip(one.name, _LONGEST, middle=True)) + 44.0
        if x and x + wide - 20 > width:
            x, y = 0.0, y + _LINE
        kind = "scatter" if one.points and figure.kind == "line" else figure.kind
        entries.append(_entry(kind, index, one.name, x, y, wide))
        x += wide
    return tag("g", *entries, class_="legend"), y - top + 12.0


def style_of(index: int) -> str:
    """The classes of the series at a place: its colour, and its dash once colours repeat.

    >>> style_of(1), style_of(9)
    ('series c1 d0', 'series c1 d1')
    """
    return f"series c{index % _COLOURS} d{index // _COLOURS % 4}"


def symbol(x: float, y: float, *, shape: int = 0, r: float = 4.0) -> str:
    """A circle, square, diamond or triangle: series differ in more than colour.

    >>> symbol(1.0, 2.0, shape=1, r=1.0)
    '<path class="dot" d="M1.00 2.00m-1.0 -1.0h2.0v2.0h-2.0z"/>'
    """
    wide, tall = round(1.3 * r, 2), round(1.2 * r, 2)
    outline = (
        f"m{-r} 0a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0z",
        f"m{-r} {-r}h{2 * r}v{2 * r}h{-2 * r}z",
        f"m0 {-wide}l{wide} {wide}l{-wide} {wide}l{-wide} {-wide}z",
        f"m0 {-tall}l{tall} {2 * tall}h{-2 * tall}z",
    )[shape % 4]
    return tag("path", class_="dot", d=f"M{x:.2f} {y:.2f}{outline}")


def _entry(kind: str, index: int, name: str, x: float, y: float, wide: float) -> str:
    if kind == "line":
        sign = tag("path", class_="line", d=f"M{x:.1f} {y - 4:.1f}h18")
    elif kind in ("scatter", "interval", "polar"):
        sign = symbol(x + 9, y - 4, shape=index)
    else:
        sign = tag("rect", class_="bar", x=x + 4, y=y - 9.5, width=11, height=11, rx=2)
    target = tag("rect", class_="target", x=x - 2, y=y - 13, width=wide - 14, height=_LINE - 2)
    words = label(name, x + 24, y, width=_LONGEST, middle=True)
    return tag("g", target, sign, words, class_=f"entry {style_of(index)}", data_series=str(index))
