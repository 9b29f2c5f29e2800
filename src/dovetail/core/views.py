"""What a record shows: text, tables, figures, heat maps, planes and pictures, as plain data.

A view is a tuple of blocks.  The report draws them as HTML, the command line as text; neither
knows what was measured, and nothing here knows how it will be drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from dovetail.core.errors import FormatError
from dovetail.core.plain import from_plain, to_plain

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
        _take(width * len(self.rows))

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

    There are as many y as x; bounds may be fewer.  ``points`` are marks without a line between
    them, in a figure of lines: data beside a curve.

    >>> Series("train", (1, 2), (0.5, 0.25)).name
    'train'
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    points: bool = False

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"a series has as many y as x, not {len(self.y)} and {len(self.x)}")
        if any(isinstance(y, str) for y in self.y):
            raise ValueError("the y of a series are numbers, or nothing")
        _take(len(self.x))


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
    """A matrix of numbers, a value for every named row and column; ``None`` marks an empty cell.

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

    def __post_init__(self) -> None:
        wide = len(self.columns)
        # Else a few names would ask for the cells of a matrix that nobody measured.
        if len(self.values) != len(self.rows) or any(len(row) != wide for row in self.values):
            raise ValueError(f"a heat map has values for its {len(self.rows)} x {wide} cells")
        _take(wide * len(self.rows))


@dataclass(frozen=True)
class Plane:
    """A number at every node of a grid over two axes, drawn as contour lines over colour.

    ``values[i][j]`` belongs to the ``i``-th of as many evenly spaced y from ``y[0]`` to ``y[1]``,
    and to the ``j``-th such x: the first row is the lowest.  ``None`` marks what is not known.

    ``log``
        Colours and lines by the logarithm of the values; what is not positive gets the least.
    ``surface``
        The same grid as a surface too, beside the contours.
    ``classes``
        Names, of which the values are the places: flat regions without lines, in a colour each.
    ``arrows``
        ``(x, y, dx, dy)``, all drawn to one scale, such that the longest leave room for others.
    ``points``
        ``(x, y, class)``: marks in the colour of a class.

    >>> Plane("Loss", (-1.0, 1.0), (0.0, 2.0), ((1.0, 0.0, 1.0), (2.0, 1.0, 2.0))).values[1][0]
    2.0
    """

    title: str
    x: tuple[float, float]
    y: tuple[float, float]
    values: tuple[tuple[float | None, ...], ...]
    x_label: str = ""
    y_label: str = ""
    value_label: str = ""
    format: str = ""
    log: bool = False
    surface: bool = False
    classes: tuple[str, ...] = ()
    arrows: tuple[tuple[float, float, float, float], ...] = ()
    points: tuple[tuple[float, float, int], ...] = ()

    def __post_init__(self) -> None:
        for low, high in (self.x, self.y):
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError("a plane's axes run from a number to a greater one")
        wide = len(self.values[0]) if self.values else 0
        if wide < 2 or len(self.values) < 2 or any(len(row) != wide for row in self.values):
            raise ValueError("a plane has two rows or more, of equal length, of two values or more")
        if self.classes and not all(self._is_class(v) for row in self.values for v in row):
            raise ValueError(
                f"the values of a plane of {len(self.classes)} classes are their places"
            )
        if any(place < 0 for *_, place in self.points):
            raise ValueError("the class of a point is a place, counted from zero")
        _take(wide * len(self.values) + len(self.arrows) + len(self.points))

    def _is_class(self, value: float | None) -> bool:
        return value is None or (0 <= value < len(self.classes) and float(value).is_integer())


_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}")
_LARGEST = 1 << 16
"""Characters of a picture: a thumbnail has a tenth of that."""


@dataclass(frozen=True)
class Picture:
    """A small PNG image as base64, and the words below it.

    >>> Picture("iVBORw0KGgo=", "cat, taken for a dog").words
    'cat, taken for a dog'
    """

    png: str
    words: str = ""

    def __post_init__(self) -> None:
        if len(self.png) > _LARGEST or not _BASE64.fullmatch(self.png):
            raise ValueError(f"a picture is base64 of at most {_LARGEST} characters")


@dataclass(frozen=True)
class Pictures:
    """Small pictures side by side.

    >>> len(Pictures("Mistakes", (Picture("iVBORw0KGgo="),)).pictures)
    1
    """

    title: str
    pictures: tuple[Picture, ...]

    def __post_init__(self) -> None:
        _take(len(self.pictures))


def refuse_mostly_empty(rows: int, columns: int, known: int) -> None:
    """Refuse a large table of which little is known, before it is filled with gaps.

    A few thousand names in a file could else ask for millions of cells.

    >>> refuse_mostly_empty(3, 3, 1)
    >>> refuse_mostly_empty(5000, 5000, 5000)
    Traceback (most recent call last):
    ...
    ValueError: 5000 rows and 5000 columns, and no more than 5000 values to fill them
    """
    if rows * columns > 10_000 + 4 * known:
        raise ValueError(
            f"{rows} rows and {columns} columns, and no more than {known} values to fill them"
        )


@contextmanager
def at_most(cells: int) -> Iterator[None]:
    """A view that is made within has no more cells and points than this, or is a ``ValueError``.

    >>> with at_most(2):
    ...     _ = Series("a", (1, 2, 3), (1.0, 2.0, 3.0))
    Traceback (most recent call last):
    ...
    ValueError: what it shows would be larger than what it holds
    """
    before = _room.set([cells])
    try:
        yield
    finally:
        _room.reset(before)


_room: ContextVar[list[int] | None] = ContextVar("room", default=None)


def _take(cells: int) -> None:
    room = _room.get()
    if room is not None:
        room[0] -= cells
        if room[0] < 0:
            raise ValueError("what it shows would be larger than what it holds")


Block = Text | Table | Figure | Heatmap | Plane | Pictures
View = tuple[Block, ...]

_BLOCKS: dict[str, type[Block]] = {
    "text": Text,
    "table": Table,
    "figure": Figure,
    "heatmap": Heatmap,
    "plane": Plane,
    "pictures": Pictures,
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
