"""Records as the sections of a report: what every format of it shares, and how much of it.

A report is made from what a record would store, so a record read back from a file, of a kind
this process knows or not, looks exactly as it did when it was measured.  Records are also read from
files of others: what a page costs is bounded here, with what is left out said below it.  The record
itself keeps everything, and the page's JSON has it all.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress, islice
from typing import Any

from dovetail.core.errors import FormatError
from dovetail.core.records import Record
from dovetail.core.views import (
    Block,
    Cell,
    Figure,
    Heatmap,
    Pictures,
    Plane,
    Series,
    Table,
    Text,
    View,
    read_view,
    write_view,
)
from dovetail.core.words import numbered, shortened
from dovetail.report.text import place_name

_MOST_SETTINGS = 500
_LONGEST_SETTING = 500
_MOST_ITEMS = 100  # of a list among the settings


@dataclass(frozen=True)
class Section:
    """One record: its number, its title, and an ``aside`` that tells it from others of that title.

    ``name`` is plain enough for a file's, and no two sections of a report share it.
    """

    number: int
    title: str
    aside: str
    name: str
    plain: dict[str, Any]
    view: View
    settings: tuple[tuple[str, str], ...]

    @property
    def anchor(self) -> str:
        """Where links lead to."""
        return f"record-{self.number}"


def sections(records: Sequence[Record]) -> list[Section]:
    """The sections of a report, in the order of the records.

    >>> from dovetail.core.records import StoredRecord
    >>> runs = [
    ...     StoredRecord(of_kind="run", of_title="A run", data={"settings": {"seed": s}}, blocks=())
    ...     for s in (0, 1)
    ... ]
    >>> [(section.name, section.aside) for section in sections(runs)]
    [('a-run', 'seed 0'), ('a-run-2', 'seed 1')]
    """
    stored = [_stored(record) for record in records]
    titles = [shortened(str(plain["title"]), LONGEST_TITLE) for plain, _ in stored]
    settings = [_settings(plain["data"].get("settings")) for plain, _ in stored]
    facts = zip(stored, titles, _asides(titles, settings), _anchors(titles), settings, strict=True)
    return [
        Section(number, title, aside, name, plain, bounded(view), tuple(rows.items()))
        for number, ((plain, view), title, aside, name, rows) in enumerate(facts, start=1)
    ]


def _stored(record: Record) -> tuple[dict[str, Any], View]:
    """The record as its file would hold it, and its view as it would be read back."""
    plain = record.to_plain()
    try:
        view = read_view(plain["view"])
    except FormatError:
        return plain, record.view()  # what no file can hold can still be shown
    return plain | {"view": write_view(view)}, view


def _asides(titles: Sequence[str], settings: Sequence[Mapping[str, str]]) -> list[str]:
    """For titles that occur again, the settings in which the records differ, else a count."""
    asides = [""] * len(titles)
    alike: dict[str, list[int]] = defaultdict(list)
    for i, title in enumerate(titles):
        alike[title].append(i)
    for places in alike.values():
        if (count := len(places)) == 1:
            continue
        keys = sorted({key for i in places for key in settings[i]})
        differ = [key for key in keys if len({settings[i].get(key) for i in places}) > 1]
        # One setting that tells all of them apart says it best; it must be short enough to read.
        distinct = [key for key in differ if len({settings[i].get(key) for i in places}) == count]
        distinct = [
            key for key in distinct if all(len(settings[i].get(key, "–")) < 32 for i in places)
        ]
        for nth, i in enumerate(places, start=1):
            key = "seed" if "seed" in distinct else distinct[0] if distinct else ""
            aside = f"{key} {settings[i].get(key, '–')}" if key else f"{nth} of {count}"
            asides[i] = aside
    return asides


def _settings(settings: object) -> dict[str, str]:
    """The first of the settings by name, and how many more there are."""
    rows = _flat(settings) if isinstance(settings, Mapping) else iter(())
    shown = dict(islice(rows, _MOST_SETTINGS))
    more = sum(1 for _ in rows)
    return shown | ({"…": f"and {more:,} more"} if more else {})


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names; lists and the rest as they would be typed."""
    for key, value in sorted(settings.items()):
        name = shortened(f"{prefix}{key}", _LONGEST_SETTING)
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{name}.")
        elif isinstance(value, list | tuple):
            words = [_word(item) for item in value[:_MOST_ITEMS]]
            if more := len(value) - len(words):
                words.append(f"and {more:,} more")
            yield name, ", ".join(words) or "–"
        else:
            yield name, _word(value)


def _word(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else shortened(str(value), _LONGEST_SETTING)


def _anchors(titles: Sequence[str]) -> list[str]:
    """Plain enough for files, no two alike, also where one title ends in another's number."""
    plain = (re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] for title in titles)
    return numbered(word or "record" for word in plain)


MOST_CELLS = 200_000
"""Of all tables, maps and figures of a view together."""

MOST_ROWS = 1000
"""Of a table on a page."""

LONGEST_TITLE = 300

_MOST_BLOCKS = 200
_MOST_COLUMNS = 200
_SIDE = 200  # of a heat map whose rows and columns are both many
_MOST_SERIES = 200
_MOST_NAMES = 500  # along an axis
_MOST_PICTURES = 48
_MOST_MARKS = 2000  # of each kind, on a plane
_MOST_CLASSES = 100
_MOST_POINTS = 50_000  # of a figure; a screen shows fewer
_LONGEST_TEXT = 20_000
_LONGEST_CELL = 2000
_LONGEST_NAME = 100


def bounded(view: View, *, most_rows: int = MOST_ROWS) -> View:
    """The view with long words cut, and no more rows, marks or blocks than can be read.

    >>> table = Table(("n",), tuple((i,) for i in range(5000)))
    >>> short, note = bounded((table,))
    >>> len(short.rows), note.text
    (1000, 'and 4,000 more rows')
    """
    shown: list[Block] = []
    room = MOST_CELLS
    for place, block in enumerate(view):
        if place == _MOST_BLOCKS or room <= 0:
            shown.append(_and_more([(len(view) - place, "blocks of this record")]))
            break
        short, lost = _shorten(block, room, most_rows)
        room -= _cells(short)
        shown.append(short)
        if lost := [(count, of) for count, of in lost if count]:
            shown.append(_and_more(lost))
    return tuple(shown)


_Lost = list[tuple[int, str]]
"""What is left out: how many, and of what."""


def _shorten(block: Block, room: int, most_rows: int) -> tuple[Block, _Lost]:
    if isinstance(block, Text):
        return replace(block, text=shortened(block.text, _LONGEST_TEXT)), []
    if isinstance(block, Table):
        return _table(block, room, most_rows)
    if isinstance(block, Pictures):
        return _pictures(block)
    if isinstance(block, Plane):
        return _plane(block)
    return _heatmap(block) if isinstance(block, Heatmap) else _figure(block)


def _table(table: Table, room: int, most_rows: int) -> tuple[Table, _Lost]:
    columns = min(len(table.columns), _MOST_COLUMNS)
    rows = min(len(table.rows), most_rows, math.ceil(room / max(columns, 1)))
    short = Table(
        _names(table.columns[:columns]),
        tuple(tuple(_cell(cell) for cell in row[:columns]) for row in table.rows[:rows]),
        table.formats[:columns],
        _title(table.caption),
    )
    return short, [(len(table.rows) - rows, "rows"), (len(table.columns) - columns, "columns")]


def _heatmap(heatmap: Heatmap) -> tuple[Heatmap, _Lost]:
    rows, columns = len(heatmap.rows), len(heatmap.columns)
    # A long side may be longer where the other is short.
    tall = min(rows, max(_SIDE, _SIDE * _SIDE // max(columns, 1)))
    wide = min(columns, _SIDE * _SIDE // max(tall, 1))
    short = replace(
        heatmap,
        title=_title(heatmap.title),
        rows=_names(heatmap.rows[:tall]),
        columns=_names(heatmap.columns[:wide]),
        values=tuple(row[:wide] for row in heatmap.values[:tall]),
        row_label=_title(heatmap.row_label),
        column_label=_title(heatmap.column_label),
    )
    return short, [(rows - tall, "rows"), (columns - wide, "columns")]


def _plane(plane: Plane) -> tuple[Plane, _Lost]:
    rows, columns = len(plane.values), len(plane.values[0])
    tall, wide = _spread(rows), _spread(columns)
    arrows, points = plane.arrows[:_MOST_MARKS], plane.points[:_MOST_MARKS]
    classes = len(plane.classes) > _MOST_CLASSES  # more than can be told apart: numbers then
    short = replace(
        plane,
        title=_title(plane.title),
        values=tuple(tuple(plane.values[i][j] for j in wide) for i in tall),
        x_label=_title(plane.x_label),
        y_label=_title(plane.y_label),
        value_label=_title(plane.value_label),
        classes=() if classes else _names(plane.classes),
        arrows=arrows,
        points=points,
    )
    lost = [
        (rows * columns - len(tall) * len(wide), "values between these"),
        (len(plane.arrows) - len(arrows), "arrows"),
        (len(plane.points) - len(points), "points"),
    ]
    return short, lost


def _spread(count: int) -> list[int]:
    """Places from the first to the last, as many as a plane shows along a side."""
    few = min(count, _SIDE)
    return [round(i * (count - 1) / (few - 1)) for i in range(few)]


def _pictures(block: Pictures) -> tuple[Pictures, _Lost]:
    few = tuple(replace(one, words=_title(one.words)) for one in block.pictures[:_MOST_PICTURES])
    return Pictures(_title(block.title), few), [(len(block.pictures) - len(few), "pictures")]


def _figure(figure: Figure) -> tuple[Figure, _Lost]:
    series = figure.series[:_MOST_SERIES]
    lost = [(len(figure.series) - len(series), "series")]
    if figure.kind in ("bar", "interval", "polar") or any(
        isinstance(x, str) for one in series for x in one.x
    ):
        names = dict.fromkeys(place_name(x) for one in series for x in one.x)
        known = set(list(names)[:_MOST_NAMES])
        lost.append((len(names) - len(known), "names"))
        series = tuple(_of(one, lambda i, x: place_name(x) in known) for one in series)
    count = sum(len(one.x) for one in series)
    each = math.ceil(count / _MOST_POINTS)
    if each > 1:  # spread over the whole, so that a curve keeps its course
        series = tuple(_of(one, lambda i, x: i % each == 0) for one in series)
        lost.append((count - sum(len(one.x) for one in series), "points between these"))
    short = replace(
        figure,
        title=_title(figure.title),
        series=tuple(_named(one) for one in series),
        x_label=_title(figure.x_label),
        y_label=_title(figure.y_label),
    )
    return short, lost


def _named(series: Series) -> Series:
    places = tuple(_name(x) if isinstance(x, str) else x for x in series.x)
    return replace(series, name=_name(series.name), x=places)


def _of(series: Series, keeps: Callable[[int, float | str], bool]) -> Series:
    """Those of a series' points, and of their bounds, that are kept."""
    stays = [keeps(i, x) for i, x in enumerate(series.x)]
    if all(stays):
        return series
    return replace(
        series,
        x=tuple(compress(series.x, stays)),
        y=tuple(compress(series.y, stays)),
        low=tuple(compress(series.low, stays)),
        high=tuple(compress(series.high, stays)),
    )


def _cells(block: Block) -> int:
    if isinstance(block, Table | Heatmap):
        return len(block.rows) * len(block.columns)
    if isinstance(block, Plane):
        return len(block.values) * len(block.values[0]) + len(block.arrows) + len(block.points)
    return sum(len(one.x) for one in block.series) if isinstance(block, Figure) else 0


def _and_more(lost: _Lost) -> Text:
    return Text("and " + ", ".join(f"{count:,} more {of}" for count, of in lost), style="note")


def _title(words: str) -> str:
    return shortened(words, LONGEST_TITLE)


def _name(words: str) -> str:
    return shortened(words, _LONGEST_NAME)


def _names(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(_name, names))


def _cell(cell: Cell) -> Cell:
    return shortened(cell, _LONGEST_CELL) if isinstance(cell, str) else cell
