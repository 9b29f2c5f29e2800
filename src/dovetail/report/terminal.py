"""Views on a terminal, and as plain aligned text in a pipe.

rich and the drawings are imported inside the functions: who prints no view, or a list only, does
not pay for them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from dovetail.core.views import Figure, Heatmap, Series, Table, Text, View
from dovetail.core.words import harmless, one_line
from dovetail.report.bounds import MOST_CELLS, bounded
from dovetail.report.cells import is_numeric, show_cell
from dovetail.report.grid import columns_that_fit, lines_of
from dovetail.report.text import show_number

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_view", "sparkline"]

_BARS = "▁▂▃▄▅▆▇█"
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
    for block in bounded(view, most_rows=MOST_CELLS):
        if isinstance(block, Text):
            _print_text(block, out, unbounded)
        elif isinstance(block, Table):
            _print_table(block, out, unbounded)
        elif isinstance(block, Figure) and block.kind in ("interval", "polar"):
            _print_strips(block, out, unbounded)
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


def _print_strips(figure: Figure, out: Console, unbounded: bool) -> None:
    """Print intervals and wheels as rows with a small drawing behind each."""
    from dovetail.report.strips import STRIP, interval_rows, polar_rows

    room = STRIP if unbounded else min(max(out.width // 5, 8), STRIP)
    if figure.kind == "interval":
        rows, first = interval_rows(figure, room), 2 if len(figure.series) > 1 else 1
        right = range(first, len(rows.columns) - 1)
    else:
        rows, right = polar_rows(figure, room), range(1, len(figure.series) + 1)
    _print_table(rows, out, unbounded, right, drawn=True)


def _print_text(block: Text, out: Console, unbounded: bool) -> None:
    from rich.text import Text as RichText

    style = {"heading": "bold", "note": "dim", "warning": "yellow", "plain": "", "code": ""}[
        block.style
    ]
    words = f"Warning: {block.text}" if block.style == "warning" else block.text
    options: dict[str, Any] = {"soft_wrap": True} if unbounded else {}
    out.print(RichText(harmless(words), style=style), **options)
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
    from rich.cells import cell_len
    from rich.text import Text as RichText

    count = len(table.columns) if unbounded else columns_that_fit(len(table.columns), out.width)
    numeric = {j for j in range(count) if j in right or is_numeric([row[j] for row in table.rows])}
    cells = [row[:count] for row in (_heads(table), *_shown(table))]
    head, *rows = lines_of(cells, numeric, None if unbounded else out.width, drawn=drawn)
    body = [line for row in rows for line in row]
    rule = "─" * max(map(cell_len, (*head, *body)), default=0)
    if table.caption:
        options: dict[str, Any] = {"soft_wrap": True} if unbounded else {}
        out.print(RichText(harmless(table.caption), style="bold"), **options)
    said = RichText.assemble(("\n".join(head), "bold"), "\n" + "\n".join([rule, *body]))
    out.print(said, soft_wrap=True)
    if more := len(table.columns) - count:
        out.print(RichText(f"and {more:,} more columns; a pipe shows them all", style="dim"))
    out.print()


def _heads(table: Table) -> tuple[str, ...]:
    return tuple(one_line(name) for name in table.columns)


def _shown(table: Table) -> list[tuple[str, ...]]:
    formats = table.formats or ("",) * len(table.columns)
    return [
        tuple(one_line(show_cell(cell, spec)) for cell, spec in zip(row, formats, strict=True))
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
    pairs = list(zip(series.x, series.y, strict=True))
    if figure.kind == "scatter" and not any(isinstance(x, str) or math.isnan(x) for x, _ in pairs):
        pairs.sort(key=lambda pair: float(pair[0]))
    heights = [y for _, y in pairs]
    if not figure.log_y:
        return heights
    return [math.log10(y) if y is not None and 0 < y < math.inf else None for y in heights]


def _matrix(heatmap: Heatmap) -> Table:
    corner = " \\ ".join(words for words in (heatmap.row_label, heatmap.column_label) if words)
    rows = []
    for name, values in zip(heatmap.rows, heatmap.values, strict=True):
        rows.append((name, *(show_number(value, heatmap.format) for value in values)))
    return Table((corner, *heatmap.columns), tuple(rows), (), heatmap.title)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(value / len(known) for value in known) if known else None
