"""What every measurement returns: the numbers, the settings that made them, and a view.

A record's file carries its view beside its numbers.  A reader that does not know the kind (an
older dovetail, a machine without an extension) still shows it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from dovetail.core.declared import Shown, blocks, fill
from dovetail.core.errors import FormatError, first_line, shown
from dovetail.core.files import write_whole
from dovetail.core.notebook import html_of
from dovetail.core.plain import dumps, from_plain, read_fields, read_json, to_plain
from dovetail.core.views import View, at_most, read_view, write_view

FORMAT = 1
"""Raise when an old reader would misread a new file; keep reading every older number."""

_MOST_BYTES = 64 << 20
_FEW_CELLS = 10_000
_KINDS: dict[str, type[Record]] = {}


@dataclass(frozen=True, kw_only=True)
class Record:
    """A measurement: a frozen dataclass of plain values, to and from JSON.

    A subclass names its ``kind``, adds fields, and declares how they are shown: a ``title``, a
    ``brief`` (its ``repr``), both templates of its fields, and blocks in ``shows`` (see
    :mod:`dovetail.core.declared`).  ``view()`` by hand is for what is special.

    >>> from dovetail.core.declared import text
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Length(Record, kind="length", title="Length of {what}", brief="{metres} m"):
    ...     what: str
    ...     metres: float
    ...     shows = (text("{metres:.2f} m"),)
    >>> length = Length(what="a rope", metres=2.0, settings={"seed": 0})
    >>> length, length.title, length.view()
    (Length(2.0 m), 'Length of a rope', (Text(text='2.00 m', style='plain'),))
    >>> length.to_plain()["data"]
    {'settings': {'seed': 0}, 'what': 'a rope', 'metres': 2.0}
    """

    kind: ClassVar[str] = ""
    shows: ClassVar[tuple[Shown, ...]] = ()
    _title: ClassVar[str] = ""
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __init_subclass__(
        cls, kind: str = "", title: str = "", brief: str = "", **rest: Any
    ) -> None:
        super().__init_subclass__(**rest)
        if kind:
            cls.kind = kind
            _KINDS[kind] = cls
        if title:
            cls._title = title
        if brief:  # set on the class itself, else its dataclass would write another
            cls.__repr__ = lambda self: f"{type(self).__name__}({fill(brief, self)})"  # type: ignore[method-assign]

    @property
    def title(self) -> str:
        """A heading for reports."""
        return fill(self._title, self) or self.kind.replace("-", " ").capitalize()

    def view(self) -> View:
        """The blocks that show this record: those it declares."""
        if not self.shows:
            raise TypeError(f"{type(self).__name__} must say what it shows: declare shows")
        return blocks(self, self.shows)

    def _repr_html_(self) -> str:
        return html_of(self.title, self.view())

    def to_plain(self) -> dict[str, Any]:
        """The whole record as JSON values, its view included."""
        data = {f.name: to_plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {
            "record": self.kind,
            "format": FORMAT,
            "title": self.title,
            "data": data,
            "view": write_view(self.view()),
        }

    @classmethod
    def from_plain(cls, value: Any, where: str) -> Self:
        """A record within another's data, where the whole of it was written."""
        if not isinstance(value, dict) or value.get("record") != cls.kind:
            raise FormatError(f"{where}: expected a record of kind {cls.kind!r}")
        record: Self = read_fields(cls, value.get("data"), where)
        return record

    def to_json(self) -> str:
        """The record's file as text."""
        return dumps(self.to_plain())

    def save(self, path: str | Path) -> Path:
        """Write the record to a file, whole or not at all."""
        write_whole(Path(path), self.to_json())
        return Path(path)


@dataclass(frozen=True, kw_only=True)
class StoredRecord(Record):
    """A record of a kind this process does not know: its numbers are kept, its view is shown."""

    of_kind: str
    of_title: str
    data: dict[str, Any]
    blocks: View

    @property
    def title(self) -> str:
        """The heading it was stored with."""
        return self.of_title

    def view(self) -> View:
        """The blocks it was stored with."""
        return self.blocks

    def to_plain(self) -> dict[str, Any]:
        """The record as it was stored."""
        return {
            "record": self.of_kind,
            "format": FORMAT,
            "title": self.of_title,
            "data": self.data,
            "view": write_view(self.blocks),
        }


def load_record(path: str | Path) -> Record:
    """Read a record's file; of an unknown kind, what it shows.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "r.json"
    >>> text = '{"record": "new", "format": 1, "title": "New", "data": {}, "view": []}'
    >>> _ = file.write_text(text)
    >>> load_record(file).title
    'New'
    """
    value = read_json(Path(path), most_bytes=_MOST_BYTES)
    missing = {"record", "format", "title", "data", "view"} - set(
        value if isinstance(value, dict) else ()
    )
    if missing:
        raise FormatError(f"{path}: not a dovetail record (no {', '.join(sorted(missing))})")
    if value["format"] != FORMAT:
        raise FormatError(
            f"{path}: record format {shown(value['format'])}, this dovetail reads {FORMAT}; "
            "update it"
        )
    if not isinstance(value["record"], str):
        raise FormatError(f"{path}: a record's kind is a word, found {shown(value['record'])}")
    known = _KINDS.get(value["record"])
    if known is not None:
        # Every value of a file takes a byte and a comma, so an honest view has fewer cells.
        with at_most(_FEW_CELLS + Path(path).stat().st_size):
            return _read_known(known, value["data"], str(path))
    return _stored(value, str(path))


def record_within(value: Any, where: str) -> Record:
    """A record within another's data, of any kind; of an unknown one, what it shows.

    >>> record_within({"record": "new", "title": "New", "data": {}, "view": []}, "here").title
    'New'
    """
    if not isinstance(value, dict) or not isinstance(value.get("record"), str):
        raise FormatError(f"{where}: expected a record")
    known = _KINDS.get(value["record"])
    return _stored(value, where) if known is None else known.from_plain(value, where)


def _stored(value: dict[str, Any], where: str) -> StoredRecord:
    """A record of a kind that is not known here."""
    data = from_plain(dict[str, Any], value.get("data"), f"{where}: data")
    settings = data.get("settings")
    return StoredRecord(
        settings=settings if isinstance(settings, dict) else {},
        of_kind=value["record"],
        of_title=from_plain(str, value.get("title"), f"{where}: title"),
        data=data,
        blocks=read_view(value.get("view"), f"{where}: view"),
    )


def _read_known(kind: type[Record], data: Any, where: str) -> Record:
    """A record whose data make sense to its kind: whatever was read can be shown, and kept."""
    try:
        record: Record = read_fields(kind, data, where)
        read_view(record.to_plain()["view"], f"{where}: view")
    except FormatError:
        raise
    except Exception as error:  # a view goes where its data lead it, and may fall anywhere
        why = f"{type(error).__name__}: {first_line(error)}"
        raise FormatError(
            f"{where}: its data are not those of a record of kind {kind.kind!r} ({why})"
        ) from None
    return record


def slug(title: str) -> str:
    """A title as a file's name.

    >>> slug("Training lenet5 on digits[0,1]")
    'training-lenet5-on-digits-0-1'
    """
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())[:80]
