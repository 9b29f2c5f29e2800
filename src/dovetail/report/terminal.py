"""Views on a terminal, and as plain aligned text in a pipe.

rich and the drawings are imported inside the functions: who prints no view, or a list only, does
not pay for them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from dovetail.core.views import Figure, Heatmap, Series, Table, Text, View
from dovetail.core.words import harmless, one_line
from dovetail.report.sections import MOST_CELLS, bounded
from dovetail.report.text import is_numeric, show_cell, show_number

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["columns_that_fit", "lines_of", "print_view", "sparkline"]

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


# Tables as lines of text: columns side by side, folded where there is less room than they need ----


_GAP = "   "
_ALIGNED = 120  # cells wider than this stick out, or one of them would pad every other row
_LEAST = 3  # the narrowest column that still tells something


def lines_of(
    rows: Sequence[Sequence[str]],
    right: Collection[int] = (),
    room: int | None = None,
    *,
    drawn: bool = False,
) -> list[list[str]]:
    """Each row of cells as lines; with ``room`` none is wider, and cells fold.

    The columns in ``right`` end flush, and the last one is never folded if it is ``drawn``.

    >>> lines_of([["part", "n"], ["lenet", "9"]], {1})
    [['part    n'], ['lenet   9']]
    >>> lines_of([["two words", "n"]], room=9)
    [['two     n', 'words']]
    """
    widths = _widths(rows, room, drawn)
    return [list(_row(row, widths, right, room is not None)) for row in rows]


def columns_that_fit(count: int, room: int) -> int:
    """How many of some columns can stand side by side, folded as far as they can be.

    >>> columns_that_fit(5, 80), columns_that_fit(500, 80)
    (5, 13)
    """
    return min(count, max((room + len(_GAP)) // (_LEAST + len(_GAP)), 1))


def _widths(rows: Sequence[Sequence[str]], room: int | None, drawn: bool) -> list[int]:
    from rich.cells import cell_len

    widths = [
        min(max(map(cell_len, column)), _ALIGNED if room is None else room)
        for column in zip(*rows, strict=True)
    ]
    if room is None:
        return widths
    free = room - len(_GAP) * (len(widths) - 1)
    fixed = widths[-1:] if drawn else []
    loose = widths[: len(widths) - len(fixed)]
    level = max(loose, default=0)
    # The widest give way first, all to the same width.
    while level > _LEAST and sum(min(width, level) for width in loose) > free - sum(fixed):
        level -= 1
    return [min(width, level) for width in loose] + fixed


def _row(
    cells: Sequence[str], widths: Sequence[int], right: Collection[int], folds: bool
) -> Iterator[str]:
    from rich.cells import cell_len

    folded = [
        _fold(cell, width) if folds and cell_len(cell) > width else [cell]
        for cell, width in zip(cells, widths, strict=True)
    ]
    for line in zip_longest(*folded, fillvalue=""):
        padded = []
        for j, (piece, width) in enumerate(zip(line, widths, strict=True)):
            pad = " " * (width - cell_len(piece))
            padded.append(pad + piece if j in right else piece + pad)
        yield _GAP.join(padded).rstrip()


def _fold(text: str, width: int) -> list[str]:
    """Lines of at most a width, broken between words and, if it must be, within one."""
    from rich.cells import cell_len, chop_cells

    lines: list[str] = []
    used = width + 1
    for word in text.split():
        wide = cell_len(word)
        if lines and used + 1 + wide <= width:
            lines[-1] += f" {word}"
            used += 1 + wide
            continue
        lines += chop_cells(word, max(width, 2)) if wide > width else [word]
        used = cell_len(lines[-1])
    return lines or [""]
