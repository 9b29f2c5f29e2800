"""What tells series apart: colour, dash and shape, and the legend that says which is which."""

from __future__ import annotations

from dovetail.core.views import Figure
from dovetail.report.svg import label, tag
from dovetail.report.text import clip, text_width

__all__ = ["draw_legend", "style_of", "symbol"]

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
