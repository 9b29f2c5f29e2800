"""Figures as SVG: a title, a legend, two axes and the series."""

from __future__ import annotations

import math

from dovetail.core.views import Figure
from dovetail.report.axes import WIDTH, Frame, lay_out
from dovetail.report.legend import draw_legend
from dovetail.report.lettering import wrap
from dovetail.report.marks import draw_series
from dovetail.report.svg import label, picture, tag, title

__all__ = ["draw_figure"]


def draw_figure(figure: Figure, *, width: float = WIDTH, titled: bool = True) -> str:
    """A line, scatter or bar figure as an SVG element.

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
    frame = lay_out(figure, top=top + tall, width=width)
    drawn = [draw_series(figure, frame, index) for index in range(len(figure.series))]
    parts.append(names)
    if any('data-points="[]"' not in group for group in drawn):
        parts.append(frame.draw(figure))
        foot = frame.bottom + frame.depth + (26.0 if figure.x_label else 6.0)
    else:
        parts.append(label("no data", 0, top + tall + 16, class_="name"))
        foot = top + tall + 30
    parts.append(tag("g", *drawn, class_="plot"))
    if lost := _cannot_show(figure, frame):
        why = "not finite" + (", or not positive on a logarithmic axis" if figure.log_y else "")
        values = "value is" if lost == 1 else "values are"
        for line in wrap(f"{lost} {values} not shown: {why}.", width):
            parts.append(label(line, 0, foot + 12, class_="name"))
            foot += 16.0
        foot += 4.0
    return picture(
        *parts,
        width=width,
        height=foot,
        name=figure.title,
        class_=f"chart {figure.kind}",
        data_x=figure.x_label or None,
    )


def _cannot_show(figure: Figure, frame: Frame) -> int:
    """How many values were given that have no place; a gap (``None``, NaN) is no value."""
    values = [y for series in figure.series for y in series.y if y is not None]
    return sum(1 for y in values if not math.isnan(y) and not frame.y.shows(y))
