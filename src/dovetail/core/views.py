"""What a record shows: text, tables, figures and heat maps, as plain data.

A view is a tuple of blocks.  The report draws them as HTML, the command line as text; neither
knows what was measured, and nothing here knows how it will be drawn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from dovetail.core.errors import FormatError
from dovetail.core.plain import from_plain, to_plain

__all__ = [
    "Block",
    "Figure",
    "Heatmap",
    "Series",
    "Table",
    "Text",
    "View",
    "read_view",
    "write_view",
]

Cell = str | bool | int | float | None

_FORMAT = re.compile(r"[+ -]?\d{0,2}[,_]?(\.\d{1,2})?[deEfFgGn%]?")
"""The formats a table applies; a file could name another that makes a number a gigabyte wide."""


@dataclass(frozen=True)
class Text:
    """A paragraph; in style ``"code"`` its line breaks and spaces are kept.

    >>> Text("Chance is 10 %.", style="note").style
    'note'
    """

    text: str
    style: Literal["plain", "heading", "note", "warning", "code"] = "plain"


@dataclass(frozen=True)
class Table:
    """Rows under named columns.

    ``formats`` holds one Python format specification a column (``".1%"``, ``".3f"``, ``""``),
    applied to numbers only; an empty tuple leaves every cell as it is.

    >>> Table(("part", "accuracy"), (("lenet", 0.991),), formats=("", ".1%")).shown()
    (('lenet', '99.1%'),)
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    formats: tuple[str, ...] = ()
    caption: str = ""

    def __post_init__(self) -> None:
        width = len(self.columns)
        if any(len(row) != width for row in self.rows) or len(self.formats) not in (0, width):
            raise ValueError(f"every row and the formats must have {width} cells")

    def shown(self) -> tuple[tuple[str, ...], ...]:
        """The cells as a reader sees them."""
        formats = self.formats or ("",) * len(self.columns)
        return tuple(
            tuple(_shown(cell, spec) for cell, spec in zip(row, formats, strict=True))
            for row in self.rows
        )


@dataclass(frozen=True)
class Series:
    """One named line, set of points or set of bars; ``low`` and ``high`` bound a band around it.

    ``points`` are marks without a line between them, in a figure of lines: data beside a curve.

    >>> Series("train", (1, 2), (0.5, 0.25)).name
    'train'
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    points: bool = False


@dataclass(frozen=True)
class Figure:
    """Series on common axes.

    ``"line"``, ``"scatter"`` and ``"bar"`` have x across and y upwards; the numbers across lines
    and points may be spaced by their logarithm, ``log_x``.  The other two have a name for every x:

    ``"interval"``
        One row a name, in the order given, so the best comes first; y is a dot in it, ``low`` and
        ``high`` are the ends of its whisker.
    ``"polar"``
        One direction a name, y the distance from the centre, which is zero and means the best:
        give what is smaller for the better, and nothing negative.  ``low``, ``high`` and ``log_y``
        have no meaning here.

    >>> Figure("line", "Loss", (Series("train", (1, 2), (0.5, 0.25)),), "epoch", "loss").kind
    'line'
    """

    kind: Literal["line", "scatter", "bar", "interval", "polar"]
    title: str
    series: tuple[Series, ...]
    x_label: str = ""
    y_label: str = ""
    y_format: str = ""
    log_y: bool = False
    log_x: bool = False


@dataclass(frozen=True)
class Heatmap:
    """A matrix of numbers with named rows and columns; ``None`` marks an empty cell.

    >>> Heatmap("Accuracy", ("a", "b"), ("a", "b"), ((0.9, 0.1), (0.1, 0.9))).values[0][0]
    0.9
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    row_label: str = ""
    column_label: str = ""
    format: str = ""
    low: float | None = None
    high: float | None = None


Block = Text | Table | Figure | Heatmap
View = tuple[Block, ...]

_BLOCKS: dict[str, type[Text] | type[Table] | type[Figure] | type[Heatmap]] = {
    "text": Text,
    "table": Table,
    "figure": Figure,
    "heatmap": Heatmap,
}


def write_view(view: View) -> list[Any]:
    """The blocks as JSON, each under its kind.

    >>> write_view((Text("hello"),))
    [{'text': {'text': 'hello', 'style': 'plain'}}]
    """
    names = {kind: name for name, kind in _BLOCKS.items()}
    return [{names[type(block)]: to_plain(block)} for block in view]


def read_view(value: Any, where: str = "view") -> View:
    """Read what :func:`write_view` wrote.

    >>> read_view([{"text": {"text": "hello"}}])
    (Text(text='hello', style='plain'),)
    """
    if not isinstance(value, list):
        raise FormatError(f"{where}: expected a list of blocks")
    return tuple(_read_block(block, f"{where}[{i}]") for i, block in enumerate(value))


def _read_block(value: Any, where: str) -> Block:
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in _BLOCKS:
        raise FormatError(f"{where}: expected one of {', '.join(_BLOCKS)}")
    ((name, fields),) = value.items()
    return from_plain(_BLOCKS[name], fields, where)


def _shown(cell: Cell, spec: str) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str | bool):
        return str(cell)
    try:
        return format(cell, spec if _FORMAT.fullmatch(spec) else "")
    except (ValueError, OverflowError):  # a fraction as "d", or an integer beyond all floats
        return str(cell)
