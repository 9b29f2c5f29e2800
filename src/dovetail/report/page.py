"""A report: records as one HTML file that needs nothing else, neither network nor server.

The page is made from what a record would store, so a record read back from a file, of a kind
this process knows or not, looks exactly as it did when it was measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from dovetail.core.errors import FormatError
from dovetail.core.files import write_whole
from dovetail.core.records import Record
from dovetail.core.views import Table, View, read_view, write_view
from dovetail.report.blocks import draw_block, draw_table
from dovetail.report.lettering import escape
from dovetail.report.svg import figure_css

__all__ = ["render_page", "write_report"]

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
    stored = [_stored(record) for record in records]
    titles = [str(plain["title"]) for plain, _ in stored]
    sections = "\n".join(
        _section(f"record-{number}", plain, view, name)
        for number, ((plain, view), name) in enumerate(
            zip(stored, _file_names(titles), strict=True), start=1
        )
    )
    below = f'<p class="subtitle">{escape(subtitle)}</p>' if subtitle else ""
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
{_contents(titles)}<main>
{sections}
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

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_report([], folder / "empty.html", title="Nothing yet").name
    'empty.html'
    """
    write_whole(Path(path), render_page(records, title=title, subtitle=subtitle))
    return Path(path)


def _stored(record: Record) -> tuple[dict[str, Any], View]:
    """The record as its file would hold it, and its view as it would be read back."""
    plain = record.to_plain()
    try:
        view = read_view(plain["view"])
    except FormatError:
        return plain, record.view()  # what no file can hold can still be shown
    return plain | {"view": write_view(view)}, view


def _contents(titles: Sequence[str]) -> str:
    if len(titles) < 2:
        return ""
    lines = "\n".join(
        f'<li><a href="#record-{number}">{escape(title)}</a></li>'
        for number, title in enumerate(titles, start=1)
    )
    return f'<nav aria-label="Contents"><ol>\n{lines}\n</ol></nav>\n'


def _section(anchor: str, plain: Mapping[str, Any], view: View, name: str) -> str:
    blocks = "\n".join(draw_block(block) for block in view)
    return f"""<section class="record" id="{anchor}">
<header><h2>{escape(plain["title"])}</h2>
<button type="button" class="save" data-file="{escape(name)}" hidden>JSON</button></header>
{blocks}
{_settings(plain["data"].get("settings"))}
<script type="application/json">
{_inert(plain)}</script>
</section>"""


def _settings(settings: object) -> str:
    if not isinstance(settings, Mapping) or not settings:
        return ""
    table = Table(("setting", "value"), tuple(_flat(settings)))
    return f'<details class="settings"><summary>Settings</summary>{draw_table(table)}</details>'


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as dotted names; lists and the rest as they would be typed."""
    rows: list[tuple[str, str]] = []
    for key, value in sorted(settings.items()):
        if isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list | tuple):
            rows.append((f"{prefix}{key}", ", ".join(_word(item) for item in value) or "–"))
        else:
            rows.append((f"{prefix}{key}", _word(value)))
    return rows


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else str(value)


def _inert(plain: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it lies in: the same value, spelt without markup."""
    text = json.dumps(plain, separators=(",", ":"), sort_keys=True, allow_nan=False)
    for character in "<>&":  # in JSON these occur within strings only
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _file_names(titles: Sequence[str]) -> list[str]:
    """A plain file name a record, no two alike."""
    names: list[str] = []
    for title in titles:
        stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "record"
        taken = sum(1 for name in names if re.fullmatch(rf"{stem}(-\d+)?\.json", name))
        names.append(f"{stem}-{taken + 1}.json" if taken else f"{stem}.json")
    return names


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
