"""What the shelf shows: the list of its parts, the card of one, and who comes from whom."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any

from dovetail.core.declared import Column, table, text, when
from dovetail.core.plain import dumps, to_plain
from dovetail.core.records import Record
from dovetail.core.views import Table, Text, View
from dovetail.parts.contract import Contract, Port, shown_shape
from dovetail.parts.facts import Origin
from dovetail.shelf.entry import Entry
from dovetail.shelf.glance import emptiness


@dataclass(frozen=True)
class Ancestor:
    """A part in a family tree: its digest, its references where it is on the shelf, its parents.

    ``repeated`` marks one whose own parents are shown elsewhere in the tree.

    >>> Ancestor("1f" * 32).label, Ancestor("1f" * 32, ("lenet@1",), how="train").label
    ('1f1f1f1f1f1f (not on this shelf)', 'lenet@1 (train)')
    """

    digest: str
    refs: tuple[str, ...] = ()
    how: str | None = None
    parents: tuple[Ancestor, ...] = ()
    repeated: bool = False

    @property
    def label(self) -> str:
        """The references, or the digest's beginning for a part that is not on the shelf."""
        if not self.refs:
            return f"{self.digest[:12]} (not on this shelf)"
        known = [word for word in (self.how, "see above" if self.repeated else None) if word]
        return " = ".join(self.refs) + (f" ({', '.join(known)})" if known else "")

    def walk(self) -> Iterator[Ancestor]:
        """This part and all it comes from."""
        yield self
        for parent in self.parents:
            yield from parent.walk()

    def drawn(self) -> str:
        """The tree in lines of text, each part above its parents."""
        return "\n".join([self.label, *_branches(self.parents, "")])


@dataclass(frozen=True, kw_only=True)
class Lineage(Record, kind="lineage"):
    """Where a part comes from, and what on the shelf comes from it.

    >>> parent = Ancestor("1f" * 32, ("lenet@1",), how="train")
    >>> tree = Ancestor("9c" * 32, ("front@1",), "cut", (parent,))
    >>> print(Lineage(ref="front@1", tree=tree, children=()).tree.drawn())
    front@1 (cut)
    └─ lenet@1 (train)
    """

    ref: str
    tree: Ancestor
    children: tuple[str, ...]

    shows = (lambda lineage: family_view(lineage.tree, lineage.children),)


def family_view(tree: Ancestor | None, children: tuple[str, ...]) -> View:
    """A tree and the children as blocks.

    >>> family_view(Ancestor("1f" * 32, ("lenet@1",)), ("front@1", "head@1"))[1].text
    'What comes from it: front@1, head@1.'
    """
    named = ", ".join(children) or "nothing on this shelf"
    drawn = () if tree is None else (Text(tree.drawn(), "code"),)
    return (*drawn, Text(f"What comes from it: {named}."))


def trace(entry: Entry, entries: Iterable[Entry]) -> Lineage:
    """The family of one entry among all entries of a shelf.

    Each digest's parents are followed once, so that a tree that is wide, shared or (in a folder
    that lies) circular stays as small as the shelf.
    """
    by_digest: dict[str, list[Entry]] = {}
    children = []
    for other in entries:
        if other.problem is None:
            by_digest.setdefault(other.digest, []).append(other)
            if entry.digest in other.origin.parents and other.digest != entry.digest:
                children.append(other.ref)
    seen = {entry.digest}
    parents = _ancestors(entry.origin.parents, by_digest, seen)
    tree = Ancestor(entry.digest, (entry.ref,), entry.origin.how, parents)
    return Lineage(ref=entry.ref, tree=tree, children=tuple(children))


def _ancestors(
    digests: Iterable[str], by_digest: dict[str, list[Entry]], seen: set[str]
) -> tuple[Ancestor, ...]:
    ancestors = []
    for digest in dict.fromkeys(digests):
        holders = by_digest.get(digest, [])
        refs = tuple(holder.ref for holder in holders)
        how = holders[0].origin.how if holders else None
        grand = [parent for holder in holders for parent in holder.origin.parents]
        repeated = digest in seen
        seen.add(digest)
        parents = () if repeated else _ancestors(grand, by_digest, seen)
        ancestors.append(Ancestor(digest, refs, how, parents, repeated and bool(grand)))
    return tuple(ancestors)


def _branches(parents: tuple[Ancestor, ...], indent: str) -> Iterator[str]:
    for i, parent in enumerate(parents, start=1):
        last = i == len(parents)
        yield f"{indent}{'└─' if last else '├─'} {parent.label}"
        yield from _branches(parent.parents, indent + ("   " if last else "│  "))


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
        columns = {title: tuple(map(cell, self.rows)) for title, (_, cell) in _COLUMNS.items()}
        filled = [title for title, cells in columns.items() if {*cells} - {None, ""}]
        table = Table(
            tuple(filled),
            tuple(zip(*(columns[title] for title in filled), strict=True)),
            tuple(_COLUMNS[title][0] for title in filled),
        )
        damaged = [f"{row.ref}: {row.problem}" for row in self.rows if row.problem is not None]
        return (table, *(Text(f"Damaged: {line}.", "warning") for line in damaged))


@dataclass(frozen=True, kw_only=True)
class PartCard(Record, kind="part-card", title="{ref}"):
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

    def _facts(self) -> Table:
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
        return Table(("", self.ref), tuple((name, value) for name, value in facts.items() if value))

    def _ports(self) -> Table:
        contract = self.contract
        ports = [("takes", p) for p in contract.takes] + [("gives", p) for p in contract.gives]
        return Table(
            ("port", "shape", "dtype", "activation", "space"),
            tuple((way, shown_shape(p.shape), p.dtype, p.activation, p.space) for way, p in ports),
        )

    shows = (
        when(
            lambda card: card.problem is not None, text("{ref} is damaged: {problem}.", "warning")
        ),
        when(
            lambda card: card.problem is None,
            _facts,
            _ports,
            table(
                "origin.measured",
                Column("measured", itemgetter(0)),
                Column("value", itemgetter(1), ".4g"),
            ),
            text("Lineage", "heading"),
            lambda card: family_view(card.family, card.children),
            text("Recipe", "heading"),
            lambda card: Text(dumps(card.recipe).rstrip(), "code"),
        ),
    )


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
    accuracies = {
        name.lower(): value for name, value in measured.items() if "accuracy" in name.lower()
    }
    for split in ("test", "validation", ""):
        for name, value in accuracies.items():
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


_COLUMNS: dict[str, tuple[str, Callable[[ShelfRow], str | int | float | None]]] = {
    "part": ("", lambda row: row.ref),
    "what": ("", lambda row: row.what),
    "takes → gives": ("", lambda row: None if row.problem else f"{row.takes} → {row.gives}"),
    "space": ("", lambda row: row.space),
    "classes": ("d", lambda row: row.classes),
    "task": ("", lambda row: row.task),
    "accuracy": (".1%", lambda row: row.accuracy),
    "size": ("", lambda row: None if row.problem else shown_bytes(row.bytes)),
    "added": ("", lambda row: row.added and row.added[:10]),
    "tags": ("", lambda row: ", ".join(row.tags) or None),
    "joined": (".1%", lambda row: row.joined),
}
"""The columns of a list: how each is written, and what it says of a row."""


def _shapes(ports: tuple[Port, ...]) -> str:
    return " and ".join(shown_shape(port.shape) for port in ports)


def _spaces(contract: Contract) -> str | None:
    """The spaces a part takes and gives, an arrow between where both are named."""
    takes, gives = (
        ", ".join(dict.fromkeys(port.space for port in ports if port.space))
        for ports in (contract.takes, contract.gives)
    )
    return f"{takes} → {gives}" if takes and gives else takes or gives or None


def _preprocess(contract: Contract) -> str | None:
    if contract.preprocess is None:
        return None
    return ", ".join(f"{k} {v}" for k, v in to_plain(contract.preprocess).items() if v is not None)
