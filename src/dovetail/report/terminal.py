"""Views on a terminal, and as plain aligned text in a pipe.

rich is imported inside the functions: a program that never prints a view does not pay for it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dovetail.core.views import Figure, Heatmap, Series, Table, Text, View
from dovetail.report.blocks import is_number, show_cell
from dovetail.report.lettering import show_number
from dovetail.report.strips import STRIP, interval_rows, polar_rows

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

__all__ = ["print_view", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
_MARGIN = 4  # of a table's own borders and padding, a column
_SPARK = 24


def print_view(view: View, *, console: Console | None = None, wide: bool | None = None) -> None:
    """Print the blocks of a view, one after the other.

    On a terminal, tables fit its width and fold long cells.  In a pipe, or with ``wide=True``, they
    take the width they need, so that no cell is cut and a line is a row.

    >>> print_view((Table(("part", "accuracy"), (("lenet", 0.991),), ("", ".1%")),))
    part    accuracy
    ────────────────
    lenet      99.1%
    <BLANKLINE>
    """
    from rich.console import Console as RichConsole

    out = console if console is not None else RichConsole(highlight=False)
    unbounded = wide if wide is not None else not out.is_terminal
    room = STRIP if unbounded else min(max(out.width // 5, 8), STRIP)
    for block in view:
        if isinstance(block, Text):
            _print_text(block, out, unbounded)
        elif isinstance(block, Table):
            _print_table(block, out, unbounded)
        elif isinstance(block, Figure) and block.kind == "interval":
            rows = interval_rows(block, room)
            first = 2 if len(block.series) > 1 else 1
            _print_table(rows, out, unbounded, range(first, len(rows.columns) - 1), drawn=True)
        elif isinstance(block, Figure) and block.kind == "polar":
            right = range(1, len(block.series) + 1)
            _print_table(polar_rows(block, room), out, unbounded, right, drawn=True)
        elif isinstance(block, Figure):
            _print_table(_summary(block), out, unbounded, range(1, 5))
        else:
            _print_table(_matrix(block), out, unbounded, range(1, len(block.columns) + 1))


def sparkline(values: Sequence[float | None], *, width: int = _SPARK) -> str:
    """Values as a row of bars of eight heights; a gap where there is no value.

    More values than ``width`` are averaged in neighbouring groups.

    >>> sparkline([0.0, 1.0, None, 7.0]), sparkline([2.0, 2.0])
    ('▁▂ █', '▄▄')
    """
    groups = min(len(values), width)
    edges = [len(values) * i // groups for i in range(groups + 1)] if groups else [0]
    means = [_mean(values[a:b]) for a, b in pairwise(edges)]
    known = [mean for mean in means if mean is not None]
    if not known:
        return " " * len(means)
    low, span = min(known) / 2, max(known) / 2 - min(known) / 2  # halved: a span can overflow
    return "".join(
        " " if mean is None else _BARS[round((mean / 2 - low) / span * 7)] if span > 0 else "▄"
        for mean in means
    )


def _print_text(block: Text, out: Console, unbounded: bool) -> None:
    from rich.text import Text as RichText

    style = {"heading": "bold", "note": "dim", "warning": "yellow", "plain": "", "code": ""}[
        block.style
    ]
    words = f"Warning: {block.text}" if block.style == "warning" else block.text
    options: dict[str, Any] = {"soft_wrap": True} if unbounded else {}
    out.print(RichText(_clean(words), style=style), **options)
    out.print()


def _print_table(
    table: Table,
    out: Console,
    unbounded: bool,
    right: Collection[int] = (),
    *,
    drawn: bool = False,
) -> None:
    """Print a table; the last column of one that is ``drawn`` is a picture, and never folded."""
    from rich.text import Text as RichText

    page = _rich_table(table, right)
    if drawn:
        page.columns[-1].no_wrap = True
    if table.caption:
        options: dict[str, Any] = {"soft_wrap": True} if unbounded else {}
        out.print(RichText(_clean(table.caption), style="bold"), **options)
    if unbounded:
        cells = [table.columns, *_shown(table)]
        widest = sum(max(_cells_wide(row[j]) for row in cells) for j in range(len(table.columns)))
        needed = widest + _MARGIN * (len(table.columns) + 1)
        for line in _lines(page, out, needed):
            out.print(
                RichText.from_ansi(line) if out.is_terminal else RichText(line), soft_wrap=True
            )
    else:
        out.print(page)
    out.print()


def _lines(drawn: RichTable, out: Console, width: int) -> list[str]:
    """A table drawn at a width of its own, whatever the console's."""
    from io import StringIO

    from rich.console import Console as RichConsole

    page = RichConsole(
        file=StringIO(),
        width=width,
        force_terminal=out.is_terminal,
        color_system="standard" if out.is_terminal else None,
        highlight=False,
    )
    page.print(drawn)
    text: str = page.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


def _rich_table(table: Table, right: Collection[int]) -> RichTable:
    """With numbers to the right, as are the columns named so, which hold numbers in words."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text as RichText

    drawn = RichTable(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for j, name in enumerate(table.columns):
        known = [row[j] for row in table.rows if row[j] is not None]
        numeric = j in right or (bool(known) and all(is_number(cell) for cell in known))
        drawn.add_column(
            RichText(_one_line(name)), justify="right" if numeric else "left", overflow="fold"
        )
    for row in _shown(table):
        drawn.add_row(*(RichText(cell) for cell in row))
    return drawn


def _shown(table: Table) -> list[tuple[str, ...]]:
    formats = table.formats or ("",) * len(table.columns)
    return [
        tuple(_one_line(show_cell(cell, spec)) for cell, spec in zip(row, formats, strict=True))
        for row in table.rows
    ]


def _summary(figure: Figure) -> Table:
    """One row a series: where it begins and ends, how far it goes, and its course."""
    spec = figure.y_format
    rows = []
    for series in figure.series:
        known = [y for y in series.y if y is not None and math.isfinite(y)]
        ends = (known[0], known[-1], min(known), max(known)) if known else (None,) * 4
        rows.append(
            (series.name, *(show_number(y, spec) for y in ends), sparkline(_course(figure, series)))
        )
    axes = " by ".join(words for words in (figure.y_label, figure.x_label) if words)
    caption = ": ".join(words for words in (figure.title, axes) if words)
    return Table(("series", "first", "last", "min", "max", "course"), tuple(rows), (), caption)


def _course(figure: Figure, series: Series) -> list[float | None]:
    """The heights in the order they are drawn in: points by their x, and logarithms if asked."""
    pairs = list(zip(series.x, series.y, strict=False))
    if figure.kind == "scatter" and not any(isinstance(x, str) or math.isnan(x) for x, _ in pairs):
        pairs.sort(key=lambda pair: float(pair[0]))
    heights = [y for _, y in pairs]
    if not figure.log_y:
        return heights
    return [math.log10(y) if y is not None and 0 < y < math.inf else None for y in heights]


def _matrix(heatmap: Heatmap) -> Table:
    corner = " \\ ".join(words for words in (heatmap.row_label, heatmap.column_label) if words)
    rows = []
    for i, name in enumerate(heatmap.rows):
        values = heatmap.values[i] if i < len(heatmap.values) else ()
        cells = [values[j] if j < len(values) else None for j in range(len(heatmap.columns))]
        rows.append((name, *(show_number(value, heatmap.format) for value in cells)))
    return Table((corner, *heatmap.columns), tuple(rows), (), heatmap.title)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(value / len(known) for value in known) if known else None


def _cells_wide(text: str) -> int:
    from rich.cells import cell_len

    return max((cell_len(line) for line in text.splitlines()), default=0)


def _one_line(text: str) -> str:
    return _clean(" ".join(text.split("\n")))


def _clean(text: str) -> str:
    """Without control characters: a record of others must not steer the reader's terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in text)
