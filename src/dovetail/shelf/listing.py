"""What the shelf shows: the list of its parts, and the card of one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dovetail.core.plain import dumps, to_plain
from dovetail.core.records import Record
from dovetail.core.views import Table, Text, View
from dovetail.parts.contract import Contract, Port, shown_shape
from dovetail.parts.origin import Origin
from dovetail.shelf.entry import Entry
from dovetail.shelf.glance import emptiness
from dovetail.shelf.lineage import Ancestor, Lineage, family_view

__all__ = ["PartCard", "ShelfList", "ShelfRow", "card_of", "list_of", "shown_bytes"]


@dataclass(frozen=True)
class ShelfRow:
    """One line of a shelf's list.

    ``accuracy`` is the most telling one in the part's origin, ``joined`` the best one measured
    together with the part that it was asked to fit.
    """

    ref: str
    what: str
    takes: str = ""
    gives: str = ""
    space: str | None = None
    classes: int | None = None
    task: str | None = None
    accuracy: float | None = None
    bytes: int = 0
    added: str | None = None
    tags: tuple[str, ...] = ()
    problem: str | None = None
    joined: float | None = None


@dataclass(frozen=True, kw_only=True)
class ShelfList(Record, kind="shelf-list"):
    """The parts on a shelf (or some of them, when not ``complete``), one row a version.

    >>> ShelfList(shelf="shelf", rows=()).view()
    (Text(text="The shelf 'shelf' is empty.", style='plain'),)
    """

    shelf: str
    rows: tuple[ShelfRow, ...]
    complete: bool = True

    def view(self) -> View:
        """One table of the columns that say something, and a warning for what is damaged."""
        if not self.rows:
            nothing = f"The shelf {self.shelf!r} has no such part."
            return (Text(emptiness(self.shelf) if self.complete else nothing),)
        columns: tuple[str, ...] = (
            *("part", "what", "takes → gives", "space", "classes", "task"),
            *("accuracy", "size", "added", "tags"),
        )
        formats: tuple[str, ...] = ("", "", "", "", "d", "", ".1%", "", "", "")
        cells = tuple(_cells(row) for row in self.rows)
        if any(row.joined is not None for row in self.rows):
            columns, formats = (*columns, "joined"), (*formats, ".1%")
            cells = tuple((*c, row.joined) for c, row in zip(cells, self.rows, strict=True))
        told = [j for j in range(len(columns)) if any(row[j] not in (None, "") for row in cells)]
        table = Table(
            tuple(columns[j] for j in told),
            tuple(tuple(row[j] for j in told) for row in cells),
            tuple(formats[j] for j in told),
        )
        damaged = [f"{row.ref}: {row.problem}" for row in self.rows if row.problem is not None]
        return (table, *(Text(f"Damaged: {line}.", "warning") for line in damaged))


@dataclass(frozen=True, kw_only=True)
class PartCard(Record, kind="part-card"):
    """All the shelf knows of one version."""

    ref: str
    what: str
    contract: Contract
    recipe: dict[str, Any]
    origin: Origin
    digest: str
    bytes: int
    tags: tuple[str, ...]
    added: str | None
    family: Ancestor | None
    children: tuple[str, ...]
    problem: str | None = None

    @property
    def title(self) -> str:
        """The reference."""
        return self.ref

    def view(self) -> View:
        """Facts, ports, what was measured, lineage and recipe."""
        if self.problem is not None:
            return (Text(f"{self.ref} is damaged: {self.problem}.", "warning"),)
        return (
            Table(("", self.ref), self._facts()),
            Table(("port", "shape", "dtype", "activation", "space"), _ports(self.contract)),
            *self._measured(),
            Text("Lineage", "heading"),
            *family_view(self.family, self.children),
            Text("Recipe", "heading"),
            Text(dumps(self.recipe).rstrip(), "code"),
        )

    def _facts(self) -> tuple[tuple[str, str | None], ...]:
        origin = self.origin
        settings = ", ".join(f"{name}={value}" for name, value in origin.settings.items())
        classes = self.contract.classes
        facts = {
            "what": self.what,
            "made by": f"{origin.how} ({settings})" if settings else origin.how,
            "task": origin.task,
            "classes": ", ".join(classes) if classes else None,
            "preprocess": _preprocess(self.contract),
            "tags": ", ".join(self.tags),
            "added": self.added,
            "size": shown_bytes(self.bytes),
            "weights": f"sha256 {self.digest[:12]}",
        }
        return tuple((name, value) for name, value in facts.items() if value)

    def _measured(self) -> View:
        rows = tuple(self.origin.measured.items())
        return (Table(("measured", "value"), rows, ("", ".4g")),) if rows else ()


def list_of(
    shelf: str,
    entries: Iterable[Entry],
    *,
    complete: bool = True,
    joined: Mapping[str, float] | None = None,
) -> ShelfList:
    """The list of some entries; ``complete`` when it is all of the shelf.

    ``joined`` are accuracies by digest, measured together with the part that was asked about.
    """
    known = joined or {}
    rows = tuple(replace(_row(entry), joined=known.get(entry.digest)) for entry in entries)
    return ShelfList(shelf=shelf, rows=rows, complete=complete)


def card_of(entry: Entry, lineage: Lineage | None) -> PartCard:
    """The card of one entry."""
    return PartCard(
        ref=entry.ref,
        what=entry.what,
        contract=entry.contract,
        recipe={} if entry.recipe is None else to_plain(entry.recipe),
        origin=entry.origin,
        digest=entry.digest,
        bytes=entry.bytes,
        tags=entry.tags,
        added=entry.added,
        family=None if lineage is None else lineage.tree,
        children=() if lineage is None else lineage.children,
        problem=entry.problem,
    )


def shown_bytes(size: int) -> str:
    """A size for readers, in units of 1000.

    >>> shown_bytes(980), shown_bytes(43_210), shown_bytes(97_800_000)
    ('980 B', '43.2 kB', '97.8 MB')
    """
    value, units = float(size), ["B", "kB", "MB", "GB", "TB"]
    while value >= 999.95 and len(units) > 1:
        value /= 1000
        del units[0]
    return f"{size} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def accuracy_of(measured: dict[str, float]) -> float | None:
    """The most telling accuracy: on test data, else on validation data, else any.

    >>> accuracy_of({"loss": 0.1, "validation accuracy": 0.97, "test accuracy": 0.96})
    0.96
    """
    found = {name.lower(): value for name, value in measured.items() if "accuracy" in name.lower()}
    for split in ("test", "validation", ""):
        for name, value in found.items():
            if name.startswith(split):
                return value
    return None


def _row(entry: Entry) -> ShelfRow:
    if entry.problem is not None:
        return ShelfRow(entry.ref, "damaged", problem=entry.problem)
    contract = entry.contract
    return ShelfRow(
        entry.ref,
        entry.what,
        _shapes(contract.takes),
        _shapes(contract.gives),
        _spaces(contract),
        None if contract.classes is None else len(contract.classes),
        entry.origin.task,
        accuracy_of(entry.origin.measured),
        entry.bytes,
        entry.added,
        entry.tags,
    )


def _cells(row: ShelfRow) -> tuple[str | int | float | None, ...]:
    if row.problem is not None:
        return (row.ref, row.what, *(None,) * 8)
    return (
        row.ref,
        row.what,
        f"{row.takes} → {row.gives}",
        row.space,
        row.classes,
        row.task,
        row.accuracy,
        shown_bytes(row.bytes),
        None if row.added is None else row.added[:10],
        ", ".join(row.tags) or None,
    )


def _shapes(ports: tuple[Port, ...]) -> str:
    return " and ".join(shown_shape(port.shape) for port in ports)


def _spaces(contract: Contract) -> str | None:
    """The spaces a part takes and gives, an arrow between where both are named."""
    takes, gives = (
        ", ".join(dict.fromkeys(port.space for port in ports if port.space))
        for ports in (contract.takes, contract.gives)
    )
    return f"{takes} → {gives}" if takes and gives else takes or gives or None


def _ports(contract: Contract) -> tuple[tuple[str | None, ...], ...]:
    named = [("takes", p) for p in contract.takes] + [("gives", p) for p in contract.gives]
    return tuple((n, shown_shape(p.shape), p.dtype, p.activation, p.space) for n, p in named)


def _preprocess(contract: Contract) -> str | None:
    if contract.preprocess is None:
        return None
    return ", ".join(f"{k} {v}" for k, v in to_plain(contract.preprocess).items() if v is not None)
