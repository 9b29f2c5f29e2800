"""Records as the sections of a report: what every format of it shares.

A report is made from what a record would store, so a record read back from a file, of a kind
this process knows or not, looks exactly as it did when it was measured.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dovetail.core.errors import FormatError
from dovetail.core.records import Record
from dovetail.core.views import View, read_view, write_view
from dovetail.core.words import shortened
from dovetail.report.bounds import LONGEST_TITLE, bounded

__all__ = ["Section", "sections"]

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
    facts = zip(stored, titles, _asides(titles, settings), _names(titles), settings, strict=True)
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
        told = [key for key in differ if len({settings[i].get(key) for i in places}) == count]
        told = [key for key in told if all(len(settings[i].get(key, "–")) < 32 for i in places)]
        for nth, i in enumerate(places, start=1):
            key = "seed" if "seed" in told else told[0] if told else ""
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


def _names(titles: Sequence[str]) -> list[str]:
    """Plain enough for files, no two alike, also where one title ends in another's number."""
    names: dict[str, None] = {}
    tried: Counter[str] = Counter()
    for title in titles:
        stem = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:60] or "record"
        name = stem
        while name in names:
            tried[stem] += 1
            name = f"{stem}-{tried[stem] + 1}"
        names[name] = None
    return list(names)
