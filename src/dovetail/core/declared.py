"""Blocks that a record declares by the names of its fields, instead of making them in ``view()``.

A record lists in ``shows`` functions of itself that give blocks; :func:`text`, :func:`table`,
:func:`measures`, :func:`figure` and :func:`heatmap` make such functions from names, :func:`when`
leaves some away, and :func:`of_each` repeats them for what the record holds several of.  What is
special stays a function of the record, such as a method that gives a table of its own.

>>> from dataclasses import dataclass
>>> from dovetail.core.records import Record
>>> @dataclass(frozen=True, kw_only=True)
... class Race(Record, kind="race", title="{place}, {runs!n} runs"):
...     place: str
...     runs: tuple[dict[str, float], ...]
...     shows = (
...         text("Best: {runs[0][seconds]:.1f} s."),
...         table("runs", Column("lane"), Column("time, s", "seconds", ".2f")),
...         figure("line", "Times", "runs", "lane", ("seconds", "wind"), "lane"),
...     )
>>> race = Race(place="Ghent", runs=({"lane": 1, "seconds": 9.87}, {"lane": 2, "seconds": 9.9}))
>>> race.title
'Ghent, 2 runs'
>>> for block in race.view():
...     print(block)
Text(text='Best: 9.9 s.', style='plain')
Table(columns=('lane', 'time, s'), rows=((1, 9.87), (2, 9.9)), formats=('', '.2f'), caption='')
Figure(kind='line', title='Times', series=(Series(name='seconds', x=(1, 2), y=(9.87, 9.9), ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from string import Formatter
from typing import Any, Literal, NamedTuple

from dovetail.core.views import Block, Figure, Heatmap, Series, Table, Text, View

Get = str | int | Callable[[Any], Any]
"""How a value is had from a record or a row: by name (``"change.low"``), place, or a function."""

Lines = tuple[str, ...] | Mapping[str, Get]
"""The series of a figure: names in its items, or from what a line is called to where it is."""

Shown = Callable[[Any], View | Block | None]
"""A function of a record that gives what to show of it: blocks, one block, or nothing."""


class Column(NamedTuple):
    """A column of a :func:`table`: its heading, where its cells come from, how they are written.

    Without ``of`` the heading is the name of the field as well.  ``when`` is asked of the record,
    and says whether there is such a column at all.
    """

    heading: str
    of: Get = ""
    spec: str = ""
    when: Get | None = None


def text(
    template: str, style: Literal["plain", "heading", "note", "warning", "code"] = "plain"
) -> Shown:
    """A paragraph: a template, filled from the record (:func:`fill`); nothing if it is empty."""

    def shown(record: Any) -> Text | None:
        said = fill(template, record)
        return Text(said, style) if said else None

    return shown


def table(of: Get, *columns: Column, caption: str = "") -> Shown:
    """A row for each item of ``of``, of a mapping for each pair; nothing where there are none.

    >>> from types import SimpleNamespace
    >>> places = table("found", Column("place", 0), Column("metres", 1, ".1f"))
    >>> places(SimpleNamespace(found={"Ghent": 2.0})).rows
    (('Ghent', 2.0),)
    """

    def shown(record: Any) -> Table | None:
        items = _items(record, of)
        there = [c for c in columns if c.when is None or _get(record, c.when)]
        gets = [c.heading if c.of == "" else c.of for c in there]
        cells = tuple(tuple(_get(item, get) for get in gets) for item in items)
        formats = tuple(c.spec for c in there) if any(c.spec for c in there) else ()
        headings = tuple(c.heading for c in there)
        return Table(headings, cells, formats, fill(caption, record)) if items else None

    return shown


def measures(of: Get | Mapping[str, Get], spec: str = ".4g") -> Shown:
    """A table of names and values: the pairs of a mapping, or what is had for each name.

    >>> from types import SimpleNamespace
    >>> measures({"exchanges": "n"})(SimpleNamespace(n=3)).rows
    (('exchanges', 3),)
    """

    def shown(record: Any) -> Table:
        if isinstance(of, Mapping):
            pairs = tuple((name, _get(record, get)) for name, get in of.items())
        else:
            pairs = tuple(_get(record, of).items())
        return Table(("measure", "value"), pairs, ("", spec))

    return shown


def figure(
    kind: Literal["line", "scatter", "bar", "interval", "polar"],
    title: str,
    of: Get,
    x: Get,
    y: Lines | Callable[[Any], Lines],
    x_label: str = "",
    y_label: str = "",
    y_format: str = "",
    *,
    log_x: bool = False,
    log_y: bool = False,
) -> Shown:
    """A series for every ``y`` over the ``x`` of the items; title and labels are templates.

    ``y`` may be a function of the record.  A series without a value is left out, and so is a
    figure without series.
    """

    def shown(record: Any) -> Figure | None:
        named = y(record) if callable(y) else y
        gets = named if isinstance(named, Mapping) else {name: name for name in named}
        items = _items(record, of)
        along = tuple(_get(item, x) for item in items)
        lines = {name: tuple(_get(item, get) for item in items) for name, get in gets.items()}
        series = tuple(
            Series(name, along, line)
            for name, line in lines.items()
            if any(value is not None for value in line)
        )
        name, across, upwards = (fill(words, record) for words in (title, x_label, y_label))
        made = Figure(kind, name, series, across, upwards, y_format, log_y, log_x)
        return made if series else None

    return shown


def curves(
    title: str, y: tuple[str, ...] | Mapping[str, Get], y_label: str = "", *, log_y: bool = False
) -> Shown:
    """Lines along the epochs of a record's ``rows``.

    >>> from types import SimpleNamespace
    >>> rows = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    >>> curves("Loss", ("loss", "validation loss"))(SimpleNamespace(rows=rows)).series
    (Series(name='loss', x=(1, 2), y=(0.5, 0.25), low=(), high=(), points=False),)
    """
    return figure("line", title, "rows", "epoch", y, "epoch", y_label, log_y=log_y)


def heatmap(
    title: str,
    rows: Get,
    columns: Get,
    values: Get,
    row_label: str = "",
    column_label: str = "",
    spec: str = "",
    bounds: tuple[float | None, float | None] = (None, None),
) -> Shown:
    """Names of ``rows`` and of ``columns``, and a matrix of ``values``; the title is a template."""

    def shown(record: Any) -> Heatmap:
        down, across, cells = (_get(record, get) for get in (rows, columns, values))
        words = fill(title, record), down, across, cells
        return Heatmap(*words, row_label, column_label, spec, *bounds)

    return shown


def when(condition: Get, *shows: Shown) -> Shown:
    """The blocks where the condition is true of the record, else nothing."""
    return lambda record: blocks(record, shows) if _get(record, condition) else None


def of_each(of: Get, *shows: Shown) -> Shown:
    """The blocks of each item that ``of`` gives, one item after the other.

    >>> from types import SimpleNamespace
    >>> of_each("notes", text("{}", "warning"))(SimpleNamespace(notes=("Too few rows.",)))
    (Text(text='Too few rows.', style='warning'),)
    """
    return lambda record: tuple(
        block for item in _items(record, of) for block in blocks(item, shows)
    )


def blocks(record: Any, shows: tuple[Shown, ...]) -> View:
    """What all of them show of a record, in order."""
    views = (show(record) for show in shows)
    return tuple(
        block
        for shown in views
        if shown is not None
        for block in (shown if isinstance(shown, tuple) else (shown,))
    )


def fill(template: str, record: Any) -> str:
    """A template with a record's fields: as ``str.format``; ``!n`` counts, ``!l`` lists.

    ``{}`` is the record itself, for items that are words or numbers.

    >>> from types import SimpleNamespace
    >>> fill("{n!n} of {a.real:.1f}: {n!l}", SimpleNamespace(n=("x", "y"), a=2.0))
    '2 of 2.0: x, y'
    """
    return _Fields().vformat(template, (record,), {})


class _Fields(Formatter):
    """Names are attributes of the first argument, and there are two more conversions."""

    def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
        return args[0] if isinstance(key, int) else getattr(args[0], key)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion == "n":
            return len(value)
        if conversion == "l":
            return ", ".join(map(str, value))
        return super().convert_field(value, conversion)


def _get(item: Any, get: Get) -> Any:
    if callable(get):
        return get(item)
    if isinstance(get, int):
        return item[get]
    return item.get(get) if isinstance(item, Mapping) else attrgetter(get)(item)


def _items(record: Any, of: Get) -> tuple[Any, ...]:
    items = _get(record, of)
    return tuple(items.items() if isinstance(items, Mapping) else items)
