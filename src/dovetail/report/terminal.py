"""Views on a terminal, and as plain aligned text in a pipe.

rich and the drawings are imported inside the functions: who prints no view, or a list only, does
not pay for them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from dovetail.core.views import Cell, Figure, Heatmap, Pictures, Plane, Series, Table, Text, View
from dovetail.core.words import harmless, one_line
from dovetail.report.sections import MOST_CELLS, bounded
from dovetail.report.text import names_of, numeric_columns, place_name, show_number, shown_rows

if TYPE_CHECKING:
    from rich.console import Console

    from dovetail.report.scales import Scale


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
        elif isinstance(block, Pictures):
            words = tuple((one.words,) for one in block.pictures)
            _print_table(Table((block.title or "pictures",), words), out, unbounded)
        elif isinstance(block, Plane):
            from dovetail.report.levels import shaded_rows

            _print_table(shaded_rows(block), out, unbounded, (0,), drawn=True)
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
    room = STRIP if unbounded else min(max(out.width // 5, 8), STRIP)
    if figure.kind == "interval":
        rows, first = interval_rows(figure, room), 2 if len(figure.series) > 1 else 1
        right = range(first, len(rows.columns) - 1)
    else:
        rows, right = polar_rows(figure, room), range(1, len(figure.series) + 1)
    _print_table(rows, out, unbounded, right, drawn=True)


def _print_text(block: Text, out: Console, unbounded: bool) -> None:
    style = {"heading": "bold", "note": "dim", "warning": "yellow"}.get(block.style, "")
    words = f"Warning: {block.text}" if block.style == "warning" else block.text
    _print_words(words, style, out, unbounded)
    out.print()


def _print_words(words: str, style: str, out: Console, unbounded: bool) -> None:
    from rich.text import Text as RichText

    options: dict[str, Any] = {"soft_wrap": True} if unbounded else {}
    out.print(RichText(harmless(words), style=style), **options)


def _print_table(
    table: Table, out: Console, unbounded: bool, right: Collection[int] = (), *, drawn: bool = False
) -> None:
    """Print a table; the last column of one that is ``drawn`` is a picture, and never folded."""
    from rich.cells import cell_len
    from rich.text import Text as RichText

    count = len(table.columns) if unbounded else columns_that_fit(len(table.columns), out.width)
    numeric = {j for j, number in enumerate(numeric_columns(table)) if j in right or number}
    cells = [list(map(one_line, row[:count])) for row in (table.columns, *shown_rows(table))]
    head, *rows = lines_of(cells, numeric, None if unbounded else out.width, drawn=drawn)
    body = [line for row in rows for line in row]
    rule = "─" * max(map(cell_len, (*head, *body)), default=0)
    if table.caption:
        _print_words(table.caption, "bold", out, unbounded)
    said = RichText.assemble(("\n".join(head), "bold"), "\n" + "\n".join([rule, *body]))
    out.print(said, soft_wrap=True)
    if more := len(table.columns) - count:
        out.print(RichText(f"and {more:,} more columns; a pipe shows them all", style="dim"))
    out.print()


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


# Rows of named values: each on a line of text that runs from the least to the greatest ------------


STRIP = 32
"""The characters of a line where there is room."""

_SIGNS = "●■◆▲"


def strip(marks: Sequence[tuple[float, str]], scale: Scale, ends: Sequence[float] = ()) -> str:
    """Signs at their places along a line of text, with a whisker from one end to the other.

    >>> from dovetail.report.scales import Scale
    >>> strip([(5.0, "●")], Scale(0.0, 10.0, 0.0, 10.0), (2.0, 9.0))
    '  ├──●───┤'
    """
    line = [" "] * (round(max(scale.start, scale.end)) + 1)
    shown = [_place(end, scale) for end in ends]
    if len(shown) == 2:
        for i in range(min(shown), max(shown) + 1):
            line[i] = "─"
        for end, i, sign in zip(ends, shown, "├┤", strict=True):
            line[i] = sign if scale.shows(end) else "─"
    for value, sign in marks:
        line[_place(value, scale)] = sign
    return "".join(line).rstrip()


def interval_rows(figure: Figure, wide: int = STRIP) -> Table:
    """An interval figure as a table for a terminal: a row for each value, with its whisker.

    >>> figure = Figure("interval", "", (Series("", ("a", "b"), (2.0, 1.0)),))
    >>> interval_rows(figure).rows[1]
    ('b', '1', '●')
    """
    places = {name: place for place, name in enumerate(names_of(figure))}
    bounded = any(series.low or series.high for series in figure.series)
    several = len(figure.series) > 1
    scale = _scale(figure, [v for s in figure.series for v in (*s.y, *s.low, *s.high)], wide)
    rows: list[tuple[int, tuple[Cell, ...]]] = []
    for index, series in enumerate(figure.series):
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            ends = [side[i] if i < len(side) else None for side in (series.low, series.high)]
            words = [show_number(v, figure.y_format) for v in (y, *(ends if bounded else ()))]
            name = place_name(x)
            drawn = _drawn(y, ends, scale, _SIGNS[index % 4])
            row = (name, *([series.name] if several else []), *words, drawn)
            rows.append((places[name], row))
    rows.sort(key=lambda row: row[0])  # the series of one name together, each in its own order
    columns = (
        figure.x_label or "name",
        *(["series"] if several else []),
        figure.y_label or "value",
        *(["low", "high"] if bounded else []),
        _limits(scale, figure.y_format),
    )
    return Table(columns, tuple(row for _, row in rows), (), figure.title)


def polar_rows(figure: Figure, wide: int = STRIP) -> Table:
    """A polar figure as a table for a terminal: a row for each direction, the centre on the left.

    >>> near = Series("near", ("a", "b"), (1.0, 2.0))
    >>> polar_rows(Figure("polar", "", (near,))).rows[0]
    ('a', '1', '               ●')
    """
    values = [y for series in figure.series for y in series.y if y is not None and y >= 0]
    scale = _scale(figure, [0.0, *values], wide)
    known = [_by_name(series) for series in figure.series]
    rows = []
    for name in names_of(figure):
        heights = [values_of.get(name) for values_of in known]
        marks = [
            (y, _SIGNS[index % 4])
            for index, y in enumerate(heights)
            if y is not None and math.isfinite(y) and y >= 0
        ]
        words = [show_number(y, figure.y_format) for y in heights]
        # The first series is drawn last: it is the one the others are held against.
        rows.append((name, *words, strip(marks[::-1], scale)))
    said = [
        f"{_SIGNS[i % 4]} {series.name or figure.y_label or 'value'}"
        for i, series in enumerate(figure.series)
    ]
    columns = (figure.x_label or "name", *said, _limits(scale, figure.y_format))
    caption = ": ".join(words for words in (figure.title, figure.y_label) if words)
    return Table(columns, tuple(rows), (), caption)


def _drawn(y: float | None, ends: Sequence[float | None], scale: Scale, sign: str) -> str:
    if y is None or not scale.shows(y):
        return ""
    known = [end if end is not None and not math.isnan(end) else y for end in ends]
    return strip([(y, sign)], scale, known if known != [y, y] else ())


def _by_name(series: Series) -> dict[str, float | None]:
    values: dict[str, float | None] = {}
    for x, y in zip(series.x, series.y, strict=True):
        values.setdefault(place_name(x), y)
    return values


def _scale(figure: Figure, values: Sequence[float | None], wide: int) -> Scale:
    from dovetail.report.scales import Scale, span_of

    log = figure.log_y and figure.kind == "interval"
    known = [v for v in values if v is not None and math.isfinite(v) and (v > 0 or not log)]
    low, high = span_of(known or ([1.0, 10.0] if log else []))
    return Scale(low, high, 0.0, wide - 1.0, log=log and low > 0)


def _place(value: float, scale: Scale) -> int:
    """The nearest place on the line; what lies beyond it, or has no place, is at an end."""
    if not scale.shows(value):
        return round(scale.end if value > 0 else scale.start)
    return round(min(max(scale(value), scale.start), scale.end))


def _limits(scale: Scale, spec: str) -> str:
    """The two ends of the line as a heading above it."""
    low, high = show_number(scale.low, spec), show_number(scale.high, spec)
    return low + " " * max(round(scale.end) + 1 - len(low) - len(high), 1) + high


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
