r"""The way from a front to a head over the parts of a shelf.

Spaces are places and parts that take one and give another are the roads between them: stitches,
mostly.  A part of quality :math:`q` (its measured accuracy, else the share of variance that the
stitch explains, else :math:`\tfrac12`; never below :math:`0.01`) costs :math:`-\log q`, so that the
cheapest chain has the greatest product of qualities.  Of equals the shorter one is taken.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dovetail.core.declared import Column, of_each, table, text
from dovetail.core.errors import ShelfError
from dovetail.core.records import Record
from dovetail.core.views import Text
from dovetail.parts.contract import Contract, Port
from dovetail.shelf.entry import Entry
from dovetail.shelf.fits import MeasuredFit, best
from dovetail.shelf.listing import accuracy_of

UNMEASURED = 0.5
"""What a part counts as long as nobody has measured it."""

LEAST = 0.01
"""No part counts for less: a logarithm needs something."""

_DIGITS = 9
"""Costs that differ less than this many decimals are equal: the same product in another order."""


@dataclass(frozen=True)
class End:
    """One end of a route: a part on the shelf, or one that is not."""

    ref: str
    contract: Contract
    digest: str


@dataclass(frozen=True)
class Quality:
    """How good a part is between two spaces, and how that is known.

    >>> Quality(0.93, "held-out r2").cost < Quality(0.5, None).cost
    True
    """

    value: float
    by: str | None

    @property
    def cost(self) -> float:
        """The negative logarithm."""
        return -math.log(self.value)


@dataclass(frozen=True)
class Link:
    """A part on the way: where it leads, its quality, and by what that is known (if at all)."""

    ref: str
    digest: str
    takes: str
    gives: str
    quality: float
    by: str | None = None


@dataclass(frozen=True, kw_only=True)
class Route(Record, kind="route"):
    """The best chain from a front to a head.

    ``refs`` names all parts in order; ``between`` those to put between the two, none where they fit
    as they are.  ``measured`` is the accuracy of this very chain where somebody has measured it;
    ``expected`` that, else the product of the qualities that are known, and nothing where none is.

    >>> Route(refs=("front@1", "head@1"), links=(), cost=0.0).between
    ()
    """

    refs: tuple[str, ...]
    links: tuple[Link, ...]
    cost: float
    measured: float | None = None
    expected: float | None = None
    reasons: tuple[str, ...] = ()

    @property
    def between(self) -> tuple[str, ...]:
        """References of the parts to put between front and head."""
        return tuple(link.ref for link in self.links)

    @property
    def title(self) -> str:
        """From where to where."""
        return f"From {self.refs[0]} to {self.refs[-1]}"

    shows = (
        lambda route: Text(" → ".join(route.refs)),
        table(
            "links",
            Column("part", "ref"),
            Column("from", "takes"),
            Column("to", "gives"),
            Column("quality", "quality", ".3f"),
            Column("known by", "by"),
        ),
        of_each("reasons", text("{}", "note")),
    )

    def __repr__(self) -> str:
        said = "unmeasured" if self.expected is None else f"expected {self.expected:.3g}"
        said = said if self.measured is None else f"measured {self.measured:.3g}"
        return f"Route({' -> '.join(self.refs)}, {said})"


def find_route(
    front: End, head: End, entries: Sequence[Entry], fits: Sequence[MeasuredFit]
) -> Route:
    """The cheapest chain of ``entries`` from what ``front`` gives to what ``head`` takes.

    Raises:
        ShelfError: there is none.
    """
    if not front.contract.mismatches(head.contract):
        return _route(front, (), head, fits)
    roads = {
        entry.ref: (entry, quality_of(entry, fits, front.digest, head.digest))
        for entry in entries
        if _leads_elsewhere(entry)
    }
    chain = _cheapest(front.contract, head.contract, roads)
    if chain is None:
        raise ShelfError(_no_way(front, head))
    return _route(front, chain, head, fits)


def quality_of(
    entry: Entry, fits: Iterable[MeasuredFit], front: str = "", head: str = ""
) -> Quality:
    """What is known of a part that lies between.

    In this order: an accuracy measured with this part alone between this front and this head;
    between any two; the accuracy it was trained to; the variance that it explains on images it was
    not fitted to, or on those it was.

    >>> from pathlib import Path
    >>> from dovetail.parts.facts import Origin
    >>> seam = Entry("s", 1, Path("s/1"), origin=Origin("stitch", measured={"held-out r2": 0.93}))
    >>> quality_of(seam, [])
    Quality(value=0.93, by='held-out r2')
    """
    through = [fit for fit in fits if fit.through == (entry.digest,)]
    exact = best(fit for fit in through if (fit.front, fit.head) == (front, head))
    if (known := exact or best(through)) is not None:
        where = "between these two" if exact is not None else "between others"
        return Quality(_clipped(known.accuracy), f"accuracy on {known.task} {where}")
    measured = entry.origin.measured
    if (accuracy := accuracy_of(measured)) is not None and math.isfinite(accuracy):
        return Quality(_clipped(accuracy), "accuracy in training")
    for name in ("held-out r2", "r2"):
        if name in measured and math.isfinite(measured[name]):
            return Quality(_clipped(measured[name]), name)
    return Quality(UNMEASURED, None)


def _clipped(value: float) -> float:
    return min(1.0, max(LEAST, value))


def _leads_elsewhere(entry: Entry) -> bool:
    """Whether a part takes one named space and gives another."""
    takes, gives = entry.contract.takes, entry.contract.gives
    if entry.problem is not None or len(takes) != 1 or len(gives) != 1:
        return False
    spaces = takes[0].space, gives[0].space
    return None not in spaces and spaces[0] != spaces[1]


Road = tuple[Entry, Quality]


def _cheapest(start: Contract, end: Contract, roads: dict[str, Road]) -> tuple[Road, ...] | None:
    """Dijkstra's search from part to part, of which ``roads`` are those between, by reference.

    Between spaces alone would be shorter, but what one part gives must also enter the next in
    shape, dtype and activation, which a space with open axes does not decide.
    """
    behind: dict[str | None, list[Entry]] = {}
    for entry, _ in roads.values():
        behind.setdefault(entry.contract.takes[0].space, []).append(entry)
    # Rounded cost, length and names in order decide; the cost itself is summed unrounded.
    waiting: list[tuple[float, int, tuple[str, ...], float]] = [(0.0, 0, (), 0.0)]
    settled: set[str] = set()
    while waiting:
        _, length, refs, cost = heapq.heappop(waiting)
        last = roads[refs[-1]][0].contract if refs else start
        if refs:
            if refs[-1] in settled:
                continue
            settled.add(refs[-1])
            if not last.mismatches(end):
                return tuple(roads[ref] for ref in refs)
        for entry in behind.get(last.gives[0].space, []) if len(last.gives) == 1 else []:
            if entry.ref not in settled and not last.mismatches(entry.contract):
                total = cost + roads[entry.ref][1].cost
                step = (round(total, _DIGITS), length + 1, (*refs, entry.ref), total)
                heapq.heappush(waiting, step)
    return None


def _route(front: End, roads: tuple[Road, ...], head: End, fits: Sequence[MeasuredFit]) -> Route:
    links = tuple(
        Link(
            entry.ref,
            entry.digest,
            _named(entry.contract.takes),
            _named(entry.contract.gives),
            quality.value,
            quality.by,
        )
        for entry, quality in roads
    )
    chain = (front.digest, *(link.digest for link in links), head.digest)
    exact = best(fit for fit in fits if fit.chain == chain)
    sure = [link.quality for link in links if link.by is not None]
    expected = math.prod(sure) if sure else None
    return Route(
        refs=(front.ref, *(link.ref for link in links), head.ref),
        links=links,
        cost=sum(quality.cost for _, quality in roads),
        measured=None if exact is None else exact.accuracy,
        expected=expected if exact is None else exact.accuracy,
        reasons=_reasons(links, exact),
    )


def _reasons(links: tuple[Link, ...], exact: MeasuredFit | None) -> tuple[str, ...]:
    said = []
    if not links:
        said.append("The front gives what the head takes: nothing is needed between them.")
    if exact is not None:
        said.append(
            f"This very chain reached {exact.accuracy:.1%} on {exact.task} ({exact.split}, norms "
            f"{exact.norms}, chance {exact.chance:.1%}, {exact.n} examples)."
        )
    else:
        said.append("This very chain has not been measured.")
    said += [f"{x.ref}: {x.by} {x.quality:.3f}." for x in links if x.by is not None]
    said += [
        f"{x.ref}: not measured, taken for {UNMEASURED} in the choice." for x in links if not x.by
    ]
    return tuple(said)


def _named(ports: tuple[Port, ...]) -> str:
    return ", ".join(port.space or "unknown" for port in ports)


def _no_way(front: End, head: End) -> str:
    return (
        f"no chain of parts on this shelf leads from the space {_named(front.contract.gives)!r} of "
        f"{front.ref!r} to the space {_named(head.contract.takes)!r} of {head.ref!r}. Make a "
        "stitch: dt.closed_form.stitch(front, onto, inputs), where onto is a front of the head's "
        "space, or dt.train.stitch(front, head, task); then put it on the shelf."
    )
