"""A report: records as one HTML file that needs nothing else, neither network nor server."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from dovetail.core.errors import SettingsError
from dovetail.core.files import write_whole
from dovetail.core.records import Record
from dovetail.core.views import Table
from dovetail.report.blocks import draw_table, draw_view
from dovetail.report.embedding import embed
from dovetail.report.markdown import write_markdown
from dovetail.report.sections import Section, sections
from dovetail.report.svg import figure_css
from dovetail.report.text import escape

__all__ = ["SUFFIXES", "check_suffix", "render_page", "write_report"]

SUFFIXES = (".html", ".htm", ".md", ".markdown")
"""Of the files a report can be written to."""

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""What the browser lets the page do: show itself, and nothing that leaves the machine."""


def render_page(records: Sequence[Record], *, title: str, subtitle: str = "") -> str:
    """The report of some records as the text of one HTML file.

    >>> from dovetail.core.records import StoredRecord
    >>> from dovetail.core.views import Text
    >>> record = StoredRecord(of_kind="note", of_title="A note", data={}, blocks=(Text("hello"),))
    >>> page = render_page([record], title="All notes")
    >>> "<h1>All notes</h1>" in page, "<p>hello</p>" in page
    (True, True)
    """
    parts = sections(records)
    below = f'<p class="subtitle">{escape(subtitle)}</p>' if subtitle else ""
    drawn = "\n".join(_section(part) for part in parts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{figure_css()}{_resource("page.css")}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>{below}</header>
{_contents(parts)}<main>
{drawn}
</main>
<script>
{_resource("page.js")}</script>
</body>
</html>
"""


def write_report(
    records: Sequence[Record], path: str | Path, *, title: str, subtitle: str = ""
) -> Path:
    """Write the report of some records to a file, whole or not at all.

    The suffix chooses the format: ``.html`` is one page, ``.md`` is Markdown with its figures in a
    folder beside it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_report([], folder / "empty.html", title="Nothing yet").name
    'empty.html'
    >>> write_report([], folder / "empty.pdf", title="Nothing yet")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: a report is .html or .md, not '.pdf': ...
    """
    path = Path(path)
    if check_suffix(path).startswith(".m"):
        return write_markdown(records, path, title=title, subtitle=subtitle)
    write_whole(path, render_page(records, title=title, subtitle=subtitle))
    return path


def check_suffix(path: Path) -> str:
    """The suffix of a report's file, if it is one of those a report can have.

    >>> check_suffix(Path("report.HTML"))
    '.html'
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise SettingsError(
            f"a report is .html or .md, not {path.suffix!r}: rename {path.name} "
            "(a browser prints the page to PDF)"
        )
    return suffix


def _contents(parts: Sequence[Section]) -> str:
    if len(parts) < 2:
        return ""
    lines = "\n".join(
        f'<li><a href="#{part.anchor}">{escape(part.title)}</a>{_aside(part)}</li>'
        for part in parts
    )
    return f'<nav aria-label="Contents"><ol>\n{lines}\n</ol></nav>\n'


def _section(part: Section) -> str:
    return f"""<section class="record" id="{part.anchor}">
<header><h2>{escape(part.title)}{_aside(part)}</h2>
<button type="button" class="save" data-file="{part.name}.json" hidden>JSON</button></header>
{draw_view(part.view)}
{_settings(part)}
{embed(part.plain)}
</section>"""


def _aside(part: Section) -> str:
    return f' <span class="aside">{escape(part.aside)}</span>' if part.aside else ""


def _settings(part: Section) -> str:
    if not part.settings:
        return ""
    table = draw_table(Table(("setting", "value"), part.settings))
    return f'<details class="settings"><summary>Settings</summary>{table}</details>'


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
