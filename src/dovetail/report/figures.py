"""Figures as SVG: a title, a legend, and the plot of their kind."""

from __future__ import annotations

import math

from dovetail.core.views import Figure
from dovetail.report.axes import WIDTH, Frame, lay_out
from dovetail.report.intervals import draw_intervals
from dovetail.report.legend import draw_legend
from dovetail.report.marks import draw_series
from dovetail.report.plot import Plot
from dovetail.report.polar import draw_polar
from dovetail.report.svg import label, picture, tag, title
from dovetail.report.text import wrap

__all__ = ["draw_figure"]


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
