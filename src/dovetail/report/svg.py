"""SVG elements as strings, with every attribute and every word escaped."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Literal

from dovetail.report.colours import PALETTES, by_theme, heat_rules, palette_rules
from dovetail.report.text import clip, escape, wrap

_MARGIN = 12  # around a drawing that is a file of its own
_TITLE = 16.5  # a title's size as wide as it gets in bold


def tag(name: str, *children: str, **attributes: str | float | None) -> str:
    """An element around children that are markup already.

    Attributes in Python's spelling (``class_``, ``data_x``); ``None`` leaves one out.

    >>> tag("g", tag("rect", x=1.0, width=2.505), class_="a<b")
    '<g class="a&lt;b"><rect x="1" width="2.5"/></g>'
    """
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_attribute(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(children)
    return f"<{name}{written}>{inside}</{name}>" if inside else f"<{name}{written}/>"


def label(
    text: str,
    x: float,
    y: float,
    *,
    width: float | None = None,
    size: float = 12.0,
    middle: bool = False,
    short: str | None = None,
    **attributes: str | float | None,
) -> str:
    """A text; one that is too wide is cut short and carries the whole of it as a title.

    ``short`` is a text that was cut already.

    >>> label("a long name", 0, 0, width=40)
    '<text x="0" y="0"><title>a long name</title>a lo…</text>'
    """
    if short is None:
        short = text if width is None else clip(text, width, size, middle=middle)
    title = tag("title", escape(text)) if short != text else ""
    return tag("text", title, escape(short), x=x, y=y, **attributes)


def picture(
    *children: str, width: float, height: float, name: str, class_: str, **attributes: str | None
) -> str:
    """The outermost element, named for those who cannot see it.

    >>> picture(width=10, height=5, name="Loss", class_="chart")[:41]
    '<svg xmlns="http://www.w3.org/2000/svg" v'
    """
    return tag(
        "svg",
        *children,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_attribute(width)} {_attribute(height)}",
        width=width,
        height=height,
        class_=class_,
        role="group",
        aria_label=name,
        **attributes,
    )


def title(text: str, width: float) -> tuple[list[str], float]:
    """A drawing's title in as many lines as it needs, and the height that takes.

    >>> title("", 100.0), title("Loss", 100.0)[1]
    (([], 0.0), 32.0)
    """
    lines = wrap(text, width, _TITLE)
    drawn = [label(line, 0, 18 + 20 * i, class_="title") for i, line in enumerate(lines)]
    return drawn, 12.0 + 20.0 * len(lines) if lines else 0.0


def figure_css() -> str:
    """The style of all drawings in a page, for light and for dark surroundings.

    >>> ".chart" in figure_css()
    True
    """
    palettes = by_theme(palette_rules("light"), palette_rules("dark"))
    # The ramps come last: their ink must win over that of other text.
    return palettes + resource("figure.css") + by_theme(heat_rules("light"), heat_rules("dark"))


def standalone(drawing: str, *, theme: Literal["auto", "light", "dark"] = "auto") -> str:
    """A drawing that carries its style, to be kept as an ``.svg`` file of its own.

    Its colours follow the reader's setting, or are of one theme.  They are written out: variables
    in style sheets are understood by browsers, and by few other programs.

    >>> drawing = standalone(picture(width=1, height=1, name="", class_="chart"))
    >>> "<style>" in drawing, "var(" in drawing
    (True, False)
    """
    style = by_theme(_fixed("light"), _fixed("dark")) if theme == "auto" else _fixed(theme)
    head, rest = drawing.split(">", 1) if not drawing.endswith("/>") else (drawing[:-2], "</svg>")
    return f"{_with_margin(head)}><style>{style}</style>{rest}"


def _with_margin(head: str) -> str:
    """A page has margins of its own; a file needs them."""
    _, _, width, height = (float(v) for v in re.findall(r'viewBox="([^"]*)"', head)[0].split())
    wide, tall = (_attribute(size + 2 * _MARGIN) for size in (width, height))
    box = f'viewBox="-{_MARGIN} -{_MARGIN} {wide} {tall}" width="{wide}" height="{tall}"'
    return re.sub(r'viewBox="[^"]*" width="[^"]*" height="[^"]*"', box, head, count=1)


def resource(name: str) -> str:
    """The text of a file of this package.

    >>> ".chart" in resource("figure.css")
    True
    """
    return (files(__package__) / name).read_text(encoding="utf-8")


def _fixed(theme: str) -> str:
    """All rules with the colours of one theme in place of variables."""
    palette = PALETTES[theme]
    written = []
    rules = re.sub(r"/\*.*?\*/", "", resource("figure.css"))
    for selector, body in re.findall(r"([^{}]+)\{([^{}]*)\}", rules):
        whose = [c for c in palette if c[1:].isdigit()] if "var(--c)" in body else [""]
        for one in whose:  # a mark's colour is that of the series it lies in
            colours = palette | ({"c": palette[one]} if one else {})
            fixed = re.sub(r"var\(--(\w+)\)", lambda m, c=colours: c[m[1]], body)  # type: ignore[misc]
            names = [_within(name, one) for name in selector.strip().split(",")]
            written.append(f"{','.join(names)}{{{' '.join(fixed.split())}}}\n")
    return "".join(written) + heat_rules(theme)


def _within(selector: str, series: str) -> str:
    around, _, mark = selector.strip().rpartition(" ")
    return f"{around} .{series} {mark}" if series else selector.strip()


def _attribute(value: str | float) -> str:
    """Pixels to a hundredth: finer cannot be seen and costs bytes."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
