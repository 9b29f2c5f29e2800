"""The blocks of a view as HTML."""

from __future__ import annotations

import math
from itertools import groupby

from dovetail.core.views import Block, Cell, Figure, Heatmap, Pictures, Plane, Table, Text, View
from dovetail.report.axes import HALF, NARROW, WIDTH
from dovetail.report.figures import draw_figure
from dovetail.report.heatmaps import draw_heatmap
from dovetail.report.planes import ALONE, draw_contours, draw_surface
from dovetail.report.text import escape, numeric_columns, shown_rows

_MOST_DATA = 400
"""A figure of at most this many points carries them as a folded table too."""

_SHORT = 24  # characters; a shorter word, name or interval stays on one line
_NUMBER = ' class="number"'
_LONG = 12  # rows; a longer table may break across printed pages


def draw_view(view: View) -> str:
    """The blocks of a view as HTML, one below the other; polar figures in a row are side by side.

    >>> draw_view((Text("one"), Text("two")))
    '<p>one</p>\\n<p>two</p>'
    """
    drawn = []
    for polar, blocks in groupby(view, key=lambda b: isinstance(b, Figure) and b.kind == "polar"):
        group = list(blocks)
        beside = polar and len(group) > 1
        inside = "\n".join(draw_block(block, wide=HALF if beside else WIDTH) for block in group)
        drawn.append(f'<div class="beside">\n{inside}\n</div>' if beside else inside)
    return "\n".join(drawn)


def draw_block(block: Block, *, wide: float = WIDTH) -> str:
    """One block of a view as HTML.

    >>> draw_block(Text("Chance is < 10 %.", style="note"))
    '<p class="note">Chance is &lt; 10 %.</p>'
    """
    if isinstance(block, Text):
        return _text(block)
    if isinstance(block, Table):
        return draw_table(block)
    caption = _caption(block.title)
    if isinstance(block, Heatmap):
        drawing = draw_heatmap(block, titled=False)
        return f"<figure>{caption}{_scroll(drawing, block.title)}</figure>"
    if isinstance(block, Plane):
        return f"<figure>{caption}{_plane(block)}</figure>"
    if isinstance(block, Pictures):
        return f'<figure class="pictures">{caption}<div>{_thumbnails(block)}</div></figure>'
    # Two drawings, of which the style sheet shows one: letters do not shrink with the screen.
    drawing = "".join(
        f'<div class="{room}">{draw_figure(block, width=width, titled=False)}</div>'
        for room, width in (("wide", wide), ("narrow", NARROW))
    )
    table = figure_data(block)
    data = f"<summary>Data</summary>{draw_table(table)}" if table else ""
    folded = f'<details class="data">{data}</details>' if data else ""
    return f"<figure>{caption}{drawing}{folded}</figure>"


def _plane(plane: Plane) -> str:
    """Contours and surface side by side, or below each other where there is less room."""
    if not plane.surface or plane.classes:
        return draw_contours(plane, width=ALONE)
    drawn = draw_contours(plane, width=HALF) + draw_surface(plane)
    return f'<div class="beside">{drawn}</div>'


def draw_table(table: Table) -> str:
    """A table that scrolls in a box of its own; raw values ride along for sorting.

    >>> drawn = draw_table(Table(("a",), ((0.5,),), (".0%",)))
    >>> '<td class="number" data-raw="0.5">50%</td>' in drawn
    True
    """
    numeric = numeric_columns(table)
    heads = "".join(
        f'<th scope="col"{_NUMBER * right}>{escape(name)}</th>'
        for name, right in zip(table.columns, numeric, strict=True)
    )
    rows = "".join(
        "<tr>" + "".join(_cell(*one) for one in zip(row, words, numeric, strict=True)) + "</tr>\n"
        for row, words in zip(table.rows, shown_rows(table), strict=True)
    )
    sortable = ' class="sortable"' if rows else ""
    rows = rows or f'<tr><td class="none" colspan="{len(table.columns)}">no rows</td></tr>'
    kind = "table long" if len(table.rows) > _LONG else "table"
    return (
        f'<figure class="{kind}" style="--columns:{len(table.columns)}">{_caption(table.caption)}'
        + _scroll(
            f"<table{sortable}><thead><tr>{heads}</tr></thead>\n<tbody>{rows}</tbody></table>",
            table.caption or "table",
        )
        + "</figure>"
    )


def _text(block: Text) -> str:
    words = escape(block.text)
    if block.style == "heading":
        return f"<h3>{words}</h3>"
    if block.style == "warning":
        return f'<p class="warning" role="note"><b>Warning.</b> {words}</p>'
    if block.style == "code":
        return _scroll(f"<pre>{words}</pre>", "code")
    return f'<p class="note">{words}</p>' if block.style == "note" else f"<p>{words}</p>"


def _thumbnails(block: Pictures) -> str:
    """Each picture with its words; a picture's text was checked to be base64 when it was made."""
    return "".join(
        f'<figure><img alt="{escape(one.words)}" src="data:image/png;base64,{one.png}">'
        f"{_caption(one.words)}</figure>"
        for one in block.pictures
    )


def _caption(words: str) -> str:
    return f"<figcaption>{escape(words)}</figcaption>" if words else ""


def _scroll(content: str, name: str) -> str:
    """A box that scrolls sideways, by keys too."""
    words = escape(name or "figure")
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{words}">{content}</div>'


def _cell(cell: Cell, words: str, right: bool) -> str:
    raw = "" if cell is None else _raw(cell)
    length = "short" if len(str(cell)) <= _SHORT else "words"
    plain = isinstance(cell, str) and not right
    classes = " ".join(["number"] * right + [length] * plain + ["none"] * (cell is None))
    kind = f' class="{classes}"' if classes else ""
    return f'<td{kind} data-raw="{escape(raw)}">{escape(words)}</td>'


def _raw(cell: str | int | float) -> str:
    """What the script sorts by; it reads JavaScript's names of the infinite, and no NaN."""
    if isinstance(cell, str | int):
        return {"nan": "", "inf": "Infinity", "-inf": "-Infinity"}.get(str(cell), str(cell))
    if math.isnan(cell):
        return ""
    return repr(cell) if math.isfinite(cell) else ("Infinity" if cell > 0 else "-Infinity")


def figure_data(figure: Figure) -> Table | None:
    """The points of a figure as a table; ``None`` where there are none, or too many to read.

    >>> from dovetail.core.views import Series
    >>> figure_data(Figure("line", "", (Series("a", (1,), (2.0,)),))).rows
    (('a', 1, 2.0),)
    """
    rows: list[tuple[Cell, ...]] = []
    bounded = figure.kind != "polar" and any(s.low or s.high for s in figure.series)
    for series in figure.series:
        for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            bounds = [side[i] if i < len(side) else None for side in (series.low, series.high)]
            rows.append((series.name, x, y, *(bounds if bounded else ())))
    if not rows or len(rows) > _MOST_DATA:
        return None
    axes = ("name", "value") if figure.kind in ("interval", "polar") else ("x", "y")
    columns = ("series", figure.x_label or axes[0], figure.y_label or axes[1])
    # An axis rounds to whole percents; the reader of a table wants to know which of two is more.
    spec = ".2%" if figure.y_format.endswith("%") else figure.y_format or ".6g"
    return Table(
        (*columns, "low", "high") if bounded else columns,
        tuple(rows),
        ("", ".6g", spec, spec, spec) if bounded else ("", ".6g", spec),
    )
