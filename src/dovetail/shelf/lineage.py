"""Who comes from whom, by the digests of weights: renaming or removing a part breaks nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from dovetail.core.records import Record
from dovetail.core.views import Text, View
from dovetail.shelf.entry import Entry

__all__ = ["Ancestor", "Lineage", "family_view", "trace"]


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

    def view(self) -> View:
        """The tree as text, then the children."""
        return family_view(self.tree, self.children)


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
    found = []
    for digest in dict.fromkeys(digests):
        holders = by_digest.get(digest, [])
        refs = tuple(holder.ref for holder in holders)
        how = holders[0].origin.how if holders else None
        grand = [parent for holder in holders for parent in holder.origin.parents]
        repeated = digest in seen
        seen.add(digest)
        parents = () if repeated else _ancestors(grand, by_digest, seen)
        found.append(Ancestor(digest, refs, how, parents, repeated and bool(grand)))
    return tuple(found)


def _branches(parents: tuple[Ancestor, ...], indent: str) -> Iterator[str]:
    for i, parent in enumerate(parents, start=1):
        last = i == len(parents)
        yield f"{indent}{'└─' if last else '├─'} {parent.label}"
        yield from _branches(parent.parents, indent + ("   " if last else "│  "))
