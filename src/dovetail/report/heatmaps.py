"""Heat maps as SVG: coloured cells with their numbers, named rows and columns, a colour scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dovetail.core.views import Heatmap
from dovetail.report.colours import STEPS
from dovetail.report.svg import label, picture, tag, title
from dovetail.report.text import clip, escape, show_number, text_width

_WIDEST = 800.0
_SIZE = 12.0
_NAME = 170.0  # the longest name of a row, in pixels
_ROOMY = 72.0  # a cell's width where there are few
_LEAST = 0.75
_TITLE = 16.5
_SLANT = math.radians(45)


@dataclass(frozen=True)
class Colouring:
    """From a value to a step of a ramp; ``sides`` is ``"two"`` when zero lies within.

    >>> Colouring(0.0, 1.0, "one").step(0.5)
    10
    """

    low: float
    high: float
    sides: str

    def step(self, value: float) -> int:
        """The step of a value; one beyond the limits gets the last colour on its side."""
        # Halved, because the difference of two finite numbers need not be finite.
        span = self.high / 2 - self.low / 2
        share = (value / 2 - self.low / 2) / span if span > 0 else 0.5
        return round(min(max(share, 0.0), 1.0) * (STEPS - 1))


def colouring(heatmap: Heatmap) -> Colouring:
    """The limits the map asks for, or those of its values; symmetric when both signs occur.

    >>> colouring(Heatmap("", ("a",), ("b", "c"), ((-1.0, 3.0),)))
    Colouring(low=-3.0, high=3.0, sides='two')
    """
    values = [v for row in heatmap.values for v in row if v is not None and math.isfinite(v)]
    low = heatmap.low if heatmap.low is not None else min(values, default=0.0)
    high = heatmap.high if heatmap.high is not None else max(values, default=1.0)
    if not (math.isfinite(low) and math.isfinite(high)):
        low, high = min(values, default=0.0), max(values, default=1.0)
    if low < 0 < high:
        reach = max(-low, high)
        return Colouring(-reach, reach, "two")
    return Colouring(low, high, "one")


def draw_heatmap(heatmap: Heatmap, *, titled: bool = True) -> str:
    """A heat map as an SVG element; an empty cell is hatched with a dash.

    >>> heatmap = Heatmap("Accuracy", ("a",), ("b", "c"), ((0.9, None),), format=".0%")
    >>> drawing = draw_heatmap(heatmap)
    >>> ">90%</text>" in drawing, ">–</text>" in drawing
    (True, True)
    """
    colours = colouring(heatmap)
    shown = [show_number(v, heatmap.format) for row in heatmap.values for v in row]
    count = max(len(heatmap.columns), 1)
    left = (
        max((text_width(clip(name, _NAME, middle=True)) for name in heatmap.rows), default=0.0)
        + 12.0
    )
    left = max(left, text_width(heatmap.row_label) + 12.0) if heatmap.row_label else left
    needed = max((text_width(words, _SIZE) for words in shown), default=0.0) + 14.0
    # A few cells take some room, many share what there is.
    wide = min(max(needed, min(_ROOMY, _WIDEST * 0.6 / count), 44.0), (_WIDEST - left) / count)
    printed = wide >= needed
    tall = min(max(30.0, wide / 2), 36.0) if printed else max(min(wide, 24.0), 5.0)
    wide = wide if printed else max(wide, 3.0)
    slanted = any(text_width(name) > wide - 6 for name in heatmap.columns)
    head = [min(text_width(name), _NAME) for name in heatmap.columns] or [0.0]
    overhang = head[-1] * math.cos(_SLANT) - wide / 2 + 8 if slanted else 0.0
    width = max(left + wide * count + max(overhang, 2.0), 220.0)
    said = heatmap.title if titled else ""
    width = max(width, min(text_width(said, _TITLE), _WIDEST))
    parts, title_height = title(said, width)
    top = title_height or 4.0
    name_at = top + (16 if title_height else 10)
    top += 20.0 if heatmap.column_label else 0.0
    top += max(head) * math.sin(_SLANT) + 14 if slanted else 20.0

    box = _Box(left, top, wide, tall, printed, slanted)
    bottom = top + tall * len(heatmap.rows)
    if heatmap.column_label:
        parts.append(label(heatmap.column_label, left, name_at, class_="name"))
    if heatmap.row_label:
        parts.append(label(heatmap.row_label, left - 10, top - 7, class_="name", text_anchor="end"))
    parts += [box.column_name(j, name) for j, name in enumerate(heatmap.columns)]
    parts += [box.row_name(i, name) for i, name in enumerate(heatmap.rows)]
    parts.append(tag("g", *_cells(heatmap, box, colours), class_="plot"))
    if not heatmap.rows or not heatmap.columns:
        parts.append(label("no data", left + 10, bottom + 16, class_="name"))
    else:
        parts.append(_scale(colours, heatmap.format, left, bottom + 18))
    return picture(
        *parts,
        width=width,
        height=bottom + 54,
        name=heatmap.title,
        class_="chart heat" if printed else "chart heat tiny",
        # On a narrow page it shrinks as far as its numbers can still be read, then scrolls.
        style=f"min-width:{width * _LEAST:.0f}px",
    )


@dataclass(frozen=True)
class _Box:
    """The grid of cells."""

    left: float
    top: float
    wide: float
    tall: float
    printed: bool
    slanted: bool

    def column_name(self, index: int, name: str) -> str:
        if index % math.ceil(22.0 / self.wide):
            return ""  # crowded: the cells still tell their column
        x, y = self.left + (index + 0.5) * self.wide, self.top - 7
        if not self.slanted:
            return label(name, x, y, text_anchor="middle")
        turn = f"rotate(-45 {x:.1f} {y:.1f})"
        return label(name, x, y, width=_NAME, middle=True, transform=turn)

    def row_name(self, index: int, name: str) -> str:
        if index % math.ceil(16.0 / self.tall):
            return ""
        y = self.top + (index + 0.5) * self.tall + 4
        return label(name, self.left - 10, y, width=_NAME, middle=True, text_anchor="end")


def _cells(heatmap: Heatmap, box: _Box, colours: Colouring) -> list[str]:
    cells = []
    gap = 1.0 if box.printed else -0.5  # cells that touch overlap a little, lest seams show
    for i, (row, values) in enumerate(zip(heatmap.rows, heatmap.values, strict=True)):
        for j, (column, value) in enumerate(zip(heatmap.columns, values, strict=True)):
            words, said, fill = show_number(value, heatmap.format), "empty", "empty"
            if value is not None and math.isfinite(value):
                said, fill = words, f"{colours.sides}-{colours.step(value)}"
            x, y = box.left + j * box.wide, box.top + i * box.tall
            title = tag("title", escape(f"{row} · {column}: {said}"))
            wide, tall = box.wide - gap, box.tall - gap
            if not box.printed:  # there may be very many: as few bytes as will do
                square = f"M{x:.1f} {y:.1f}h{wide:.1f}v{tall:.1f}h-{wide:.1f}z"
                cells.append(tag("path", title, class_=f"cell {fill}", d=square))
                continue
            rect = tag("rect", x=x, y=y, width=wide, height=tall, rx=2, class_=fill)
            text = label(words, x + wide / 2, y + box.tall / 2 + 4, text_anchor="middle")
            data = {"data_row": row, "data_column": column, "data_value": said}
            cells.append(tag("g", title, rect, text, class_="cell", **data))
    return cells


def _scale(colours: Colouring, spec: str, left: float, top: float) -> str:
    """The ramp with its limits, and zero in the middle when both signs occur."""
    wide = 9.0
    steps = [
        tag(
            "rect",
            class_=f"{colours.sides}-{i}",
            x=left + i * wide,
            y=top,
            width=wide + 0.3,
            height=9,
        )
        for i in range(STEPS)
    ]
    ends = [(colours.low, left, "start"), (colours.high, left + wide * STEPS, "end")]
    if colours.sides == "two":
        ends.append((0.0, left + wide * STEPS / 2, "middle"))
    words = [label(show_number(v, spec), x, top + 24, text_anchor=a) for v, x, a in ends]
    return tag("g", *steps, *words, class_="scale")
