"""Filters over entries: what fits, what speaks of a space, what knows these classes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from dovetail.parts.contract import Contract, Port
from dovetail.shelf.entry import Entry

__all__ = ["Query", "has_shape", "ranked"]

Sizes = int | Sequence[int | None]


@dataclass(frozen=True)
class Query:
    """What an entry must be; a field that is ``None`` asks nothing.

    >>> from pathlib import Path
    >>> head = Entry("head", 1, Path("head/1"), Contract(classes=("cat", "dog", "owl")))
    >>> Query(classes=("owl", "cat")).wants(head), Query(classes=("fox",)).wants(head)
    (True, False)
    """

    pattern: str | None = None
    fits: Contract | None = None
    space: str | None = None
    classes: Iterable[str] | str | None = None
    task: str | None = None
    gives: Sizes | None = None
    takes: Sizes | None = None
    tag: str | None = None

    def names(self, entry: Entry) -> bool:
        """Whether the entry's name is one the pattern asks for."""
        return self.pattern is None or fnmatchcase(entry.name, self.pattern)

    def wants(self, entry: Entry) -> bool:
        """Whether the entry is whole and everything that is asked."""
        contract = entry.contract
        return (
            entry.problem is None
            and self.names(entry)
            and (self.tag is None or self.tag in entry.tags)
            and (self.task is None or self.task == entry.origin.task)
            and (self.space is None or self.space in _spaces(contract))
            and (self.classes is None or _names(self.classes) <= set(contract.classes or ()))
            and (self.gives is None or any(has_shape(p, self.gives) for p in contract.gives))
            and (self.takes is None or any(has_shape(p, self.takes) for p in contract.takes))
            and (self.fits is None or _fit(self.fits, contract))
        )


def has_shape(port: Port, sizes: Sizes) -> bool:
    """Whether a port is known to have these axes; ``None`` on either side is any length.

    >>> has_shape(Port((16, 4, 4)), (16, None, None)), has_shape(Port((64,)), 64)
    (True, True)
    >>> has_shape(Port(), (64,))  # nobody has said
    False
    """
    wanted = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return (
        port.shape is not None
        and len(port.shape) == len(wanted)
        and all(a is None or b is None or a == b for a, b in zip(port.shape, wanted, strict=True))
    )


def ranked(entries: Iterable[Entry], accuracies: Mapping[str, float]) -> list[Entry]:
    """Entries with the greatest accuracy first; those whose digest has none last, as they were.

    >>> from pathlib import Path
    >>> three = [Entry(d, 1, Path(d), digest=d) for d in ("a", "b", "c")]
    >>> [entry.name for entry in ranked(three, {"c": 0.9, "b": 0.8})]
    ['c', 'b', 'a']
    """
    return sorted(entries, key=lambda entry: -accuracies.get(entry.digest, -1.0))


def _fit(one: Contract, other: Contract) -> bool:
    return not one.mismatches(other) or not other.mismatches(one)


def _spaces(contract: Contract) -> set[str | None]:
    return {port.space for port in (*contract.takes, *contract.gives)}


def _names(classes: Iterable[str] | str) -> set[str]:
    return {classes} if isinstance(classes, str) else set(classes)
