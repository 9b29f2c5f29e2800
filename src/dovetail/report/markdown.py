"""A report as Markdown: tables as GitHub writes them, figures as .svg files in a folder beside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from dovetail.core.errors import FormatError
from dovetail.core.files import whole_folder, write_whole
from dovetail.core.records import Record
from dovetail.core.views import Block, Pictures, Table, Text
from dovetail.report.blocks import figure_data
from dovetail.report.export import Drawn, drawings_of
from dovetail.report.sections import Section, sections
from dovetail.report.svg import standalone
from dovetail.report.text import escape, numeric_columns, shown_rows

_SPECIAL = re.compile(r"([\\`*_{}\[\]#|~$!])")
_LIST = re.compile(r"^([-+=:]|\d+(?=[.)]))")  # what a line must not begin with, and a number's end


def render_markdown(
    records: Sequence[Record], *, title: str, subtitle: str = "", figures: str = "report_files"
) -> str:
    """The report of some records as the text of a Markdown file.

    ``figures`` is the folder its links lead to; :func:`dovetail.report.export_figures` fills one.

    >>> from dovetail.core.records import StoredRecord
    >>> table = Table(("part", "accuracy"), (("a|b", 0.5),), ("", ".0%"))
    >>> record = StoredRecord(of_kind="t", of_title="A table", data={}, blocks=(table,))
    >>> print(render_markdown([record], title="All"))
    # All
    <BLANKLINE>
    ## A table
    <BLANKLINE>
    | part | accuracy |
    | --- | ---: |
    | a\\|b | 50% |
    <BLANKLINE>
    """
    parts = sections(records)
    return _rendered(parts, drawings_of(parts), title, subtitle, figures)


def _rendered(
    parts: Sequence[Section], drawings: Sequence[Drawn], title: str, subtitle: str, figures: str
) -> str:
    drawn = {(one.section, one.place): one for one in drawings}
    pieces = [f"# {_line(title)}", _words(subtitle), _contents(parts)]
    for part in parts:
        anchor = f'<a id="{part.anchor}"></a>\n\n' if len(parts) > 1 else ""
        pieces.append(f"{anchor}## {_heading(part)}")
        for place, block in enumerate(part.view):
            pieces.append(_block(block, drawn.get((part.number, place)), figures))
        if part.settings:
            pieces.append(_folded("Settings", Table(("setting", "value"), part.settings)))
    return "\n\n".join(piece for piece in pieces if piece) + "\n"


def write_markdown(
    records: Sequence[Record], path: Path, *, title: str, subtitle: str = ""
) -> Path:
    """Write ``report.md``, and the figures it shows to ``report_files/`` beside it.

    >>> import tempfile
    >>> write_markdown([], Path(tempfile.mkdtemp()) / "report.md", title="Nothing yet").name
    'report.md'
    """
    folder = path.with_name(f"{path.stem}_files")
    parts = sections(records)
    drawn = drawings_of(parts)
    _check_ours(folder)
    if drawn or folder.exists():
        # The figures first: a text whose links lead nowhere is worse than figures without a text.
        with whole_folder(folder, replace=True) as fresh:
            for one in drawn:
                write_whole(fresh / f"{one.name}.svg", standalone(one.drawing))
    text = _rendered(parts, drawn, title, subtitle, folder.name)
    write_whole(path, text)
    return path


def _check_ours(folder: Path) -> None:
    """Refuse to replace a folder that holds anything a report did not write."""
    if not folder.exists():
        return
    others = (
        [folder] if not folder.is_dir() else [f for f in folder.iterdir() if f.suffix != ".svg"]
    )
    if others:
        raise FormatError(
            f"{folder} is where the figures go, and {others[0].name} is not one of them: "
            "move it, or name the report otherwise"
        )


def _contents(parts: Sequence[Section]) -> str:
    if len(parts) < 2:
        return ""
    return "\n".join(f"{part.number}. [{_heading(part)}](#{part.anchor})" for part in parts)


def _heading(part: Section) -> str:
    return _line(f"{part.title} ({part.aside})" if part.aside else part.title)


def _block(block: Block, drawn: Drawn | None, folder: str) -> str:
    if isinstance(block, Text):
        return _text(block)
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Pictures):
        return _table(
            Table((block.title or "pictures",), tuple((p.words,) for p in block.pictures))
        )
    assert drawn is not None  # every figure and heat map of a record is drawn
    image = f"![{_line(block.title or 'figure')}]({quote(folder)}/{drawn.name}.svg)"
    data = figure_data(drawn.figure) if drawn.figure else None
    return f"{image}\n\n{_folded('Data', data)}" if data else image


def _text(block: Text) -> str:
    if block.style == "heading":
        return f"### {_line(block.text)}"
    if block.style == "code":
        longest = max((len(run) for run in re.findall("`+", block.text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}text\n{block.text}\n{fence}"
    words = _words(block.text)
    if block.style == "warning":
        return "\n".join(f"> {line}" for line in f"**Warning.** {words}".splitlines())
    return f"<sub>{words}</sub>" if block.style == "note" and words else words


def _table(table: Table) -> str:
    head, *rows = ([_cell(words) for words in row] for row in (table.columns, *shown_rows(table)))
    lines = [head, ["---:" if right else "---" for right in numeric_columns(table)], *rows]
    drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines if table.columns)
    return f"**{_line(table.caption)}**\n\n{drawn}" if table.caption.strip() else drawn


def _folded(name: str, table: Table) -> str:
    return f"<details><summary>{name}</summary>\n\n{_table(table)}\n\n</details>"


def _words(text: str) -> str:
    """Text that stays text: no markup of Markdown's or of HTML's, line breaks kept."""
    lines = [_tame(" ".join(line.split())) for line in text.splitlines()]
    return "\\\n".join(line for line in lines if line)


def _tame(line: str) -> str:
    line = escape_html(_SPECIAL.sub(r"\\\1", line))
    return _LIST.sub(lambda m: f"{m[1]}\\" if m[1].isdigit() else f"\\{m[1]}", line)


def _line(text: str) -> str:
    return _words(" ".join(text.split()))


def _cell(text: str) -> str:
    return _words(text).replace("\\\n", "<br>")


def escape_html(text: str) -> str:
    """Escaped, but with quotes as they are: between tags they mean nothing.

    >>> escape_html('"<b>"')
    '"&lt;b&gt;"'
    """
    return escape(text).replace("&quot;", '"').replace("&#x27;", "'")
