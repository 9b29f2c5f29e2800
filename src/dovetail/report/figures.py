"""Figures as SVG: a title, a legend, and the plot of their kind; dots with whiskers in rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.core.views import Figure, Series
from dovetail.report.axes import WIDTH, Frame, Plot, lay_out, value_axis
from dovetail.report.marks import draw_legend, draw_series, series_group, symbol
from dovetail.report.polar import draw_polar
from dovetail.report.scales import Scale
from dovetail.report.svg import label, picture, tag, title
from dovetail.report.text import clip_apart, names_of, place_name, show_number, text_width, wrap


def draw_figure(figure: Figure, *, width: float = WIDTH, titled: bool = True) -> str:
    """A figure of any kind as an SVG element.

    Colours come from the page's style sheet; :func:`dovetail.report.standalone` adds it for a file
    of its own.  A page that sets the title itself asks for a drawing without.

    >>> from dovetail.core.views import Series
    >>> figure = Figure("line", "Loss", (Series("train", (1, 2), (0.5, 0.25)),), "epoch", "loss")
    >>> drawing = draw_figure(figure)
    >>> drawing.startswith("<svg "), ">epoch</text>" in drawing
    (True, True)
    """
    parts, top = title(figure.title if titled else "", width)
    names, tall = draw_legend(figure, top=top, width=width)
    top += tall
    draw = {"interval": draw_intervals, "polar": draw_polar}.get(figure.kind, _draw_upright)
    plot = draw(figure, top=top, width=width)
    parts.append(names)
    if plot.is_empty:
        parts.append(label("no data", 0, top + 16, class_="name"))
        foot = top + 30
    else:
        parts.append(plot.frame)
        foot = plot.foot
    parts.append(tag("g", *plot.series, class_="plot"))
    if plot.lost:
        values = "value is" if plot.lost == 1 else "values are"
        for line in wrap(f"{plot.lost} {values} not shown: {plot.why}.", width):
            parts.append(label(line, 0, foot + 12, class_="name"))
            foot += 16.0
        foot += 4.0
    named = figure.kind in ("interval", "polar")  # there a place speaks for itself
    return picture(
        *parts,
        width=width,
        height=foot,
        name=figure.title,
        class_=f"chart {figure.kind}",
        data_x=figure.x_label if named else figure.x_label or None,
    )


def _draw_upright(figure: Figure, *, top: float, width: float) -> Plot:
    """Lines, points and bars: x across, y upwards."""
    frame = lay_out(figure, top=top, width=width)
    log = figure.log_y or figure.log_x
    return Plot(
        frame.draw(figure),
        tuple(draw_series(figure, frame, index) for index in range(len(figure.series))),
        frame.bottom + frame.depth + (26.0 if figure.x_label else 6.0),
        # A gap (None, NaN) is no value; what is a value and has no place is said.
        sum(_is_lost(x, y, frame) for s in figure.series for x, y in zip(s.x, s.y, strict=True)),
        "not finite" + (", or not positive on a logarithmic axis" if log else ""),
    )


def _is_lost(x: float | str, y: float | None, frame: Frame) -> bool:
    return y is not None and not math.isnan(y) and (not frame.y.shows(y) or frame.across(x) is None)


_SHARE = 0.4  # of the width, at most, for names beside their rows
_LEAST = 280.0  # for the values; where names beside would leave less, they go above their rows
_INSET = 8.0  # from the frame to the first and the last tick
_LINE = 16.0
_TALLEST = 60  # rows of full height; more of them share the height of as many
_TICKED = 24  # rows; above that many the axis is written on top too


@dataclass(frozen=True)
class _Rows:
    """The grid of rows, and the scale that runs across it."""

    names: tuple[str, ...]
    short: tuple[str, ...]
    left: float
    right: float
    top: float
    tall: float
    above: bool
    series: int
    scale: Scale
    ticks: tuple[tuple[float, str], ...]

    @property
    def bottom(self) -> float:
        return self.top + self.tall * len(self.names)

    @property
    def step(self) -> float:
        """From one series to the next within a row."""
        return min(9.0, self._inside * 0.8 / self.series)

    @property
    def _inside(self) -> float:
        return self.tall - (_LINE if self.above else 0.0)

    def middle(self, row: int) -> float:
        return self.top + (row + 1) * self.tall - self._inside / 2


def draw_intervals(figure: Figure, *, top: float, width: float) -> Plot:
    """The plot of an interval figure.

    >>> figure = Figure("interval", "", (Series("", ("a", "b"), (2.0, 1.0), (1.0, 0.0)),))
    >>> draw_intervals(figure, top=0.0, width=800.0).series[0].count('class="dot"')
    2
    """
    rows = _lay_out(figure, top, width)
    values = [y for series in figure.series for y in series.y if y is not None]
    return Plot(
        _frame(figure, rows),
        tuple(_series(figure, rows, index) for index in range(len(figure.series))),
        rows.bottom + 20.0 + (26.0 if figure.y_label else 6.0),
        sum(1 for y in values if not math.isnan(y) and not rows.scale.shows(y)),
        "not finite" + (", or not positive on a logarithmic axis" if figure.log_y else ""),
    )


def _lay_out(figure: Figure, top: float, width: float) -> _Rows:
    names, count = names_of(figure), max(len(figure.series), 1)
    longest = max((text_width(name) for name in names), default=0.0)
    above = longest > width * _SHARE and width * (1 - _SHARE) < _LEAST
    tall = min(14.0 + 8.0 * count, 70.0) + (_LINE if above else 0.0)
    if len(names) > _TALLEST:
        above, tall = False, tall * _TALLEST / len(names)
    beside = 0.0 if above else min(longest, width * _SHARE)
    short = clip_apart(names, width if above else beside + 0.01)  # whatever the rounding
    left, right = beside + (0.0 if above else 14.0), width - _INSET
    for most in (8, 6, 5, 4, 3):
        _, ticks = value_axis(figure, left, right, most=most)
        if sum(text_width(words) + 16 for _, words in ticks) <= right - left:
            break
    if ticks:  # the words of a tick are as far to its left as to its right
        left = max(left, text_width(ticks[0][1]) / 2 - _INSET)
        right = min(right, width - text_width(ticks[-1][1]) / 2 + _INSET)
    scale, _ = value_axis(figure, left + _INSET, right - _INSET, most=most)
    if (figure.x_label and not above) or len(names) > _TICKED:
        top += 22.0
    return _Rows(names, tuple(short), left, right, top + 4.0, tall, above, count, scale, ticks)


def _frame(figure: Figure, rows: _Rows) -> str:
    parts = [_tick(rows, at, words) for at, words in rows.ticks]
    each = math.ceil(14.0 / rows.tall)  # name every so many, where they are crowded
    parts += [_name(rows, i) for i in range(0, len(rows.names), each)]
    line = f"M{rows.left:.1f} {rows.bottom:.1f}H{rows.right:.1f}"
    parts.append(tag("path", class_="axis", d=line))
    if (words := figure.x_label) and not rows.above:
        where, room = rows.left - 14, rows.left - 14
        parts.append(
            label(words, where, rows.top - 10, width=room, class_="name", text_anchor="end")
        )
    if words := figure.y_label:
        middle, room = (rows.left + rows.right) / 2, rows.right - rows.left
        at = rows.bottom + 38
        parts.append(label(words, middle, at, width=room, class_="name", text_anchor="middle"))
    return tag("g", *parts, class_="frame")


def _tick(rows: _Rows, at: float, words: str) -> str:
    x = rows.scale(at)
    line = tag("line", x1=x, x2=x, y1=rows.top, y2=rows.bottom, class_="grid")
    heights = [rows.bottom + 18, *([rows.top - 10] if len(rows.names) > _TICKED else [])]
    texts = [label(words, x, y, text_anchor="middle") for y in heights]
    return tag("g", line, *texts, class_="tick-x", data_at=repr(at))


def _name(rows: _Rows, row: int) -> str:
    y, words, short = rows.middle(row), rows.names[row], rows.short[row]
    guide = tag("line", x1=rows.left, x2=rows.right, y1=y, y2=y, class_="guide")
    if rows.above:
        text = label(words, 0, rows.top + row * rows.tall + 13, short=short)
    else:
        text = label(words, rows.left - 14, y + 4, short=short, text_anchor="end")
    return tag("g", guide, text, class_="row")


def _series(figure: Figure, rows: _Rows, index: int) -> str:
    series = figure.series[index]
    places = {name: row for row, name in enumerate(rows.names)}
    aside = (index - (rows.series - 1) / 2) * rows.step
    r = max(min(4.0, rows.step * 0.5, rows.tall * 0.4), 0.8)
    marks, points = [], []
    for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        if y is None or not rows.scale.shows(y):
            continue
        name = place_name(x)
        across, down = rows.scale(y), rows.middle(places[name]) + aside
        marks.append(_whisker(series, i, rows, across, down, min(r, 3.5)))
        marks.append(symbol(across, down, shape=index, r=round(r, 1)))
        points.append((across, down, name, _words(series, i, figure.y_format)))
    return series_group(figure, index, marks, points)


def _whisker(series: Series, i: int, rows: _Rows, x: float, y: float, cap: float) -> str:
    """From end to end; one without end runs to the edge of the plot and has no cap there."""
    ends = [_end(values, i) for values in (series.low, series.high)]
    if ends == [None, None]:
        return ""
    path, caps = [], []
    for end, edge in zip(ends, (rows.left, rows.right), strict=True):
        known = end is not None and rows.scale.shows(end)
        path.append(rows.scale(end) if end is not None and known else x if end is None else edge)
        caps += [path[-1]] if known else []
    line = f"M{path[0]:.2f} {y:.2f}H{path[1]:.2f}"
    across = "".join(f"M{at:.2f} {y - cap:.2f}v{2 * cap:.2f}" for at in caps)
    return tag("path", class_="whisker", d=line + across)


def _end(values: Sequence[float], i: int) -> float | None:
    return None if i >= len(values) or math.isnan(values[i]) else values[i]


def _words(series: Series, i: int, spec: str) -> str:
    """The value, and its interval if it has one."""
    value = show_number(series.y[i], spec)
    low, high = (_end(values, i) for values in (series.low, series.high))
    if low is None and high is None:
        return value
    return f"{value} ({show_number(low, spec)} to {show_number(high, spec)})"
