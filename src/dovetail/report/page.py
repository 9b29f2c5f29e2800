"""A report: records as one HTML file that needs nothing else, neither network nor server.

Every record is inside the page, for the reader to save.  Its file holds its numbers twice, as data
and as what is drawn of them; in the page a long list is written once, and the script puts it back
wherever it belongs.  It does so in the text, since parsing and writing again would change numbers
that JavaScript cannot hold.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dovetail.core.errors import SettingsError
from dovetail.core.files import write_whole
from dovetail.core.records import Record
from dovetail.core.views import Table
from dovetail.report.blocks import draw_table, draw_view
from dovetail.report.markdown import write_markdown
from dovetail.report.sections import Section, sections
from dovetail.report.svg import figure_css, resource
from dovetail.report.text import escape

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
{figure_css()}{resource("page.css")}</style>
</head>
<body>
<header><h1>{escape(title)}</h1>{below}</header>
{_contents(parts)}<main>
{drawn}
</main>
<script>
{resource("page.js")}</script>
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


MARK = "dovetail:list"
_LONG = 64  # items; a shorter list is not worth a reference


def embed(plain: Mapping[str, Any]) -> str:
    """The record as script elements that do nothing: its lists that occur again, and the rest.

    >>> "<b>" in embed({"a": "<b>"})
    False
    >>> long = list(range(100))
    >>> embed({"a": long, "b": long}).splitlines()[-1]
    '{"a":{"dovetail:list":0},"b":{"dovetail:list":0}}</script>'
    """
    record = _as_in_data(plain)
    seen = Counter(_dump(value) for value in _long_lists(record))
    places = {text: i for i, text in enumerate(text for text, n in seen.items() if n > 1)}
    if not places or any(MARK in text for text in seen):
        return _element(_dump(record))

    def shortened(value: list[Any]) -> Any:
        place = places.get(_dump(value))
        return value if place is None else {MARK: place}

    short = _dump(_mapped(record, shortened))
    if short.count(MARK) > sum(seen[text] for text in places):
        return _element(_dump(record))  # the record itself speaks of such marks: leave it whole
    lists = "\n".join(places)
    return f"{_element(lists, 'lists')}\n{_element(short)}"


def _as_in_data(plain: Mapping[str, Any]) -> dict[str, Any]:
    """With the view's lists spelt as the data's equal ones: a view has 1.0 where they have 1."""
    known = {tuple(value): value for value in _long_lists(plain.get("data"))}
    if not known or "view" not in plain:
        return dict(plain)
    view = _mapped(plain["view"], lambda value: known.get(tuple(value), value))
    return {**plain, "view": view}


def _long_lists(value: Any) -> Iterator[list[Any]]:
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _long_lists(item)
    elif isinstance(value, list):
        if _is_long(value):
            yield value
        else:
            for item in value:
                yield from _long_lists(item)


def _mapped(value: Any, change: Callable[[list[Any]], Any]) -> Any:
    """The value with each of its long lists changed."""
    if isinstance(value, Mapping):
        return {key: _mapped(item, change) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    return change(value) if _is_long(value) else [_mapped(item, change) for item in value]


def _is_long(value: list[Any]) -> bool:
    return len(value) >= _LONG and not any(isinstance(v, dict | list | bool) for v in value)


def _element(text: str, kind: str = "") -> str:
    """JSON that cannot end the element it lies in: the same value, spelt without markup."""
    for character in "<>&":  # in JSON these occur within strings only
        text = text.replace(character, f"\\u{ord(character):04x}")
    named = f' class="{kind}"' if kind else ""
    return f'<script type="application/json"{named}>\n{text}</script>'


def _dump(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, allow_nan=False)
