"""A view for a notebook: a fragment of HTML without scripts, of a bounded size.

Figures are images within it, so that their style stays theirs; nothing is fetched.
"""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace

from dovetail.core.views import Block, Cell, Pictures, Table, Text, View
from dovetail.core.words import counted, shortened
from dovetail.report.blocks import draw_block
from dovetail.report.export import draw
from dovetail.report.svg import standalone
from dovetail.report.text import escape

_MOST_ROWS, _MOST_COLUMNS, _MOST_LETTERS = 40, 30, 300
_MOST_BLOCK, _MOST = 256 << 10, 1 << 20
"""Bytes of a block, and of all of them."""


def draw_for_notebook(title: str, view: View) -> str:
    """A title and the blocks of a view, those that there is room for.

    >>> draw_for_notebook("Notes", (Text("one"),))
    '<div class="dovetail">\\n<h4>Notes</h4>\\n<p>one</p>\\n</div>'
    """
    drawn = [f"<h4>{escape(shortened(title, _MOST_LETTERS))}</h4>"]
    room = _MOST
    for i, block in enumerate(view):
        markup = _drawn(block)
        room -= len(markup)
        if room < 0:
            drawn.append(f"<p>{counted(len(view) - i, 'more block')} not shown.</p>")
            break
        drawn.append(markup)
    return "\n".join(['<div class="dovetail">', *drawn, "</div>"])


def _drawn(block: Block) -> str:
    if isinstance(block, Text):
        markup = draw_block(replace(block, text=shortened(block.text, 20 * _MOST_LETTERS)))
    elif isinstance(block, Table):
        markup = _table(block)
    elif isinstance(block, Pictures):
        markup = draw_block(block)
    else:
        picture = standalone(draw(block)).encode()
        source = b64encode(picture).decode()
        markup = f'<img alt="{escape(block.title)}" src="data:image/svg+xml;base64,{source}">'
    if len(markup) > _MOST_BLOCK:
        return f"<p>{type(block).__name__} of {len(markup):,} bytes not shown.</p>"
    return markup


def _table(table: Table) -> str:
    """Its first rows and columns, and how many more there are."""
    rows = len(table.rows) - _MOST_ROWS
    columns = len(table.columns) - _MOST_COLUMNS
    more = [counted(rows, "more row")] if rows > 0 else []
    more += [counted(columns, "more column")] if columns > 0 else []
    small = Table(
        tuple(shortened(name, _MOST_LETTERS) for name in table.columns[:_MOST_COLUMNS]),
        tuple(tuple(map(_short, row[:_MOST_COLUMNS])) for row in table.rows[:_MOST_ROWS]),
        table.formats[:_MOST_COLUMNS],
        shortened(table.caption, _MOST_LETTERS),
    )
    return draw_block(small) + (f"<p>{' and '.join(more)} not shown.</p>" if more else "")


def _short(cell: Cell) -> Cell:
    return shortened(cell, _MOST_LETTERS) if isinstance(cell, str) else cell
