"""SVG elements as strings, with every attribute and every word escaped."""

from __future__ import annotations

from importlib.resources import files

from dovetail.report.colours import heat_css
from dovetail.report.lettering import clip, escape

__all__ = ["figure_css", "label", "picture", "standalone", "tag"]


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
    **attributes: str | float | None,
) -> str:
    """A text; one that is too wide is cut short and carries the whole of it as a title.

    >>> label("a long name", 0, 0, width=40)
    '<text x="0" y="0"><title>a long name</title>a lon…</text>'
    """
    short = text if width is None else clip(text, width, size, middle=middle)
    whole = tag("title", escape(text)) if short != text else ""
    return tag("text", whole, escape(short), x=x, y=y, **attributes)


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


def figure_css() -> str:
    """The style of all drawings, for light and for dark surroundings.

    >>> ".chart" in figure_css()
    True
    """
    return (files(__package__) / "figure.css").read_text(encoding="utf-8") + heat_css()


def standalone(drawing: str) -> str:
    """A drawing that carries its style, to be kept as an ``.svg`` file of its own.

    >>> "<style>" in standalone(picture(width=1, height=1, name="", class_="chart"))
    True
    """
    head, rest = drawing.split(">", 1) if not drawing.endswith("/>") else (drawing[:-2], "</svg>")
    return f"{head}><style>{figure_css()}</style>{rest}"


def _attribute(value: str | float) -> str:
    """Pixels to a hundredth: finer cannot be seen and costs bytes."""
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
