"""The shelf: a folder of parts.

``<shelf>/<name>/<version>/`` is a part's folder as :meth:`Part.save_pretrained` writes it, and
``<shelf>/<name>/<version>.json`` the shelf's note on it; ``<shelf>/_fits/`` holds what was measured
of parts that were joined.  Everything appears whole or not at all: a
part is written to a hidden folder within the shelf and renamed; removing one renames it first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from dovetail.core.errors import ShelfError, argument
from dovetail.core.files import HIDDEN
from dovetail.core.plain import to_plain
from dovetail.core.words import counted
from dovetail.parts.contract import Contract
from dovetail.parts.facts import FAMILIAR, read_facts
from dovetail.shelf.entry import Entry, Note, now
from dovetail.shelf.fits import MeasuredFit, neighbours, read_fits, write_fit
from dovetail.shelf.index import Index, Query, Sizes, ranked, slots
from dovetail.shelf.listing import Lineage, PartCard, ShelfList, card_of, list_of, trace
from dovetail.shelf.names import check_tags, choose, need_folder, read_reference, refused
from dovetail.shelf.routes import End, Route, find_route
from dovetail.shelf.writing import (
    DAY,
    Homes,
    add_tags,
    put,
    sweep,
    sweep_near,
    take_back,
    take_name,
    take_version,
    writing_to,
)

if TYPE_CHECKING:  # a shelf is listed without torch
    from torch import nn

    from dovetail.parts.part import Part
    from dovetail.shelf.verify import ShelfCheck


class Shelf:
    """A folder of parts, each ``name@version``; the folder is the truth.

    Args:
        folder: Where the parts are.
        create: Make the folder when it is missing; otherwise that is an error.

    >>> import tempfile
    >>> from dovetail.parts.part import build
    >>> shelf = Shelf(Path(tempfile.mkdtemp()) / "shelf")
    >>> shelf.add(build("mlp", shape=(4,), hidden=(8,), classes=3), name="small")
    Entry(small@1, mlp: 4 -> 3)
    >>> shelf.get("small")
    Part(mlp: 4 -> 3, 67 weights)
    >>> "small@1" in shelf, "small@2" in shelf, len(shelf)
    (True, False, 1)
    """

    def __init__(self, folder: str | Path, *, create: bool = True) -> None:
        self.folder = Path(folder)
        if create:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                raise ShelfError(f"{self.folder} is not a folder; a shelf is") from None
            except OSError as error:
                raise refused("make", self.folder, error) from None
        need_folder(self.folder)
        self._index, self._homes = Index(self.folder), Homes(self.folder)

    def add(self, part: Part | nn.Module, name: str, *, tags: Iterable[str] = ()) -> Entry:
        """Put a part on the shelf as the next version of ``name``.

        A part that is there under this name with the same weights, contract, recipe and origin is
        not added again, unless it knows other features than before: its version is returned, with
        ``tags`` added to its own.  A number is never
        used twice, not even after :meth:`rm` of that version.

        Raises:
            ShelfError: the name is not allowed, or the shelf cannot be written to.
            FormatError: the part has no recipe, so nothing could rebuild it.
        """
        part, tags = _as_part(part), check_tags(tags)
        same = _same_as(part)
        with writing_to(self.folder):
            home = self._homes.open(name)
        known = self._index.entries(name)
        twin = next(filter(same, reversed(known)), None)
        if twin is not None:
            return add_tags(twin, tags)
        last = max((entry.version for entry in known), default=0)

        def newer() -> Entry | None:
            """What another process has added since we looked."""
            return next(filter(same, self._index.entries(name, after=last)), None)

        sweep_near(home)
        return add_tags(put(part, home, Note(now(), tags), newer), tags)

    def add_all(self, parts: Mapping[str, Part]) -> list[Entry]:
        """Put each part on the shelf under its name, all of them or, when one is refused, none."""
        known = {entry.ref for entry in self.entries()}
        added: list[Entry] = []
        try:
            for name, part in parts.items():
                added.append(self.add(part, name))
        except BaseException:  # an interrupt, too
            for entry in added:
                if entry.ref not in known:
                    take_back(entry)
            raise
        return added

    def get(self, ref: str | Entry, *, verify: bool = False) -> Part:
        """Load ``name@version``, or the latest version of ``name``; strictly, see :meth:`verify`.

        Raises:
            ShelfError: no such name or version.
            FormatError: the part is damaged; the message names its folder.
        """
        return self.entry(ref).load(verify=verify)

    def entry(self, ref: str | Entry) -> Entry:
        """What the shelf says of a part, without loading it."""
        wanted = read_reference(ref.ref if isinstance(ref, Entry) else ref)
        versions = {entry.version: entry for entry in self._index.entries(wanted.name)}
        return versions[choose(wanted, versions, self.folder)]

    def entries(self) -> list[Entry]:
        """All versions of all parts, by name and version, damaged ones included."""
        return self._index.entries()

    def find(
        self,
        pattern: str | None = None,
        *,
        fits: Part | nn.Module | Contract | Entry | str | None = None,
        space: str | None = None,
        classes: Iterable[str] | str | None = None,
        task: str | None = None,
        gives: Sizes | None = None,
        takes: Sizes | None = None,
        tag: str | None = None,
    ) -> list[Entry]:
        """The parts that are everything asked for; damaged ones are never found.

        Args:
            pattern: Of the name, as in ``"lenet-*"``.
            fits: What can follow this part (or the part of this reference) or precede it, without
                force: first those that were measured together with it, the most accurate first,
                then the others by name.
            space: A space it takes or gives.
            classes: Names that are all among its classes.
            task: The task it was made on.
            gives: A shape it gives, ``None`` for an axis of any length, as in ``(16, None, None)``.
            takes: A shape it takes.
            tag: A tag it bears.

        >>> import tempfile
        >>> from dovetail.parts.cutting import cut
        >>> from dovetail.parts.part import build
        >>> shelf = Shelf(tempfile.mkdtemp())
        >>> front, head = cut(build("mlp", shape=(4,), hidden=(8,), classes=3), at="hidden1")
        >>> _ = shelf.add(front, "front"), shelf.add(head, "head")
        >>> [entry.ref for entry in shelf.find(fits=front)]
        ['head@1']
        >>> [entry.ref for entry in shelf.find(takes=(8,))]
        ['head@1']
        """
        if not (classes is None or isinstance(classes, str)):
            classes = tuple(classes)  # asked of every entry, though an iterator ends
        contract = (
            fits if fits is None or isinstance(fits, Contract) else self._known(fits).contract
        )
        query = Query(pattern, contract, space, classes, task, gives, takes, tag)
        entries = [entry for entry in self.entries() if query.wants(entry)]
        return entries if fits is None else ranked(entries, self._measured_with(fits))

    def keep_fit(self, fit: MeasuredFit) -> Path:
        """Keep what was measured of parts that were joined; measured again, it is replaced.

        The parts are named by their digests and need not be on this shelf.
        """
        with writing_to(self.folder):
            return write_fit(self.folder, fit)

    def fits(self) -> list[MeasuredFit]:
        """Every measurement on this shelf, best first; :meth:`verify` tells of damaged ones."""
        return read_fits(self.folder)

    def path(self, front: Part | Entry | str, head: Part | Entry | str) -> Route:
        """The best chain of parts on this shelf from what ``front`` gives to what ``head`` takes.

        Both may be references, entries, or parts that are not on the shelf.  Join what it finds:
        ``dt.join(front, *map(shelf.get, route.between), head)``.

        Raises:
            ShelfError: there is no such chain; the message says how to make a stitch.

        >>> import tempfile
        >>> from dovetail.parts.cutting import cut
        >>> from dovetail.parts.part import build
        >>> front, head = cut(build("mlp", shape=(4,), hidden=(8,), classes=3), at="hidden1")
        >>> Shelf(tempfile.mkdtemp()).path(front, head).between
        ()
        """
        return find_route(self._end(front), self._end(head), self.entries(), self.fits())

    def rm(self, ref: str | Entry, *, all_versions: bool = False) -> tuple[str, ...]:
        """Remove one version, or with ``all_versions`` a whole name; returns what was removed.

        Lineage is by digest, so the parts made of it keep their history.
        """
        wanted = read_reference(ref.ref if isinstance(ref, Entry) else ref)
        if wanted.version is None and not all_versions:
            latest = self.entry(wanted.name).ref
            raise ShelfError(
                f"{wanted.name!r} names every version; remove one (as in {latest}), or all of them "
                f"with {argument('all_versions', True)}"
            )
        if wanted.version is not None and all_versions:
            raise ShelfError(
                f"{argument('all_versions', True)} removes a whole name; write {wanted.name!r}"
            )
        entry = self.entry(str(wanted))
        if wanted.version is not None:
            take_version(entry)
            return (entry.ref,)
        refs = tuple(each.ref for each in self._index.entries(wanted.name))
        take_name(self.folder / wanted.name)
        return refs

    def ls(self, pattern: str | None = None, **wanted: Any) -> ShelfList:
        """The list of the shelf, or of what :meth:`find` finds.

        Damaged parts are listed too, unless more than a name is asked for, which none can answer.
        """
        conditions = {name: value for name, value in wanted.items() if value is not None}
        entries = (
            self.find(pattern, **conditions) if conditions else filter(Query(pattern).names, self)
        )
        joined = self._measured_with(conditions["fits"]) if "fits" in conditions else {}
        complete = pattern is None and not conditions
        return list_of(str(self.folder), entries, complete=complete, joined=joined)

    def show(self, ref: str | Entry) -> PartCard:
        """All the shelf knows of one part: contract, recipe, origin, lineage."""
        entry = self.entry(ref)
        return card_of(entry, None if entry.problem else self.lineage(entry))

    def lineage(self, ref: str | Entry) -> Lineage:
        """The tree of what a part was made of, and what on this shelf was made of it."""
        return trace(self.entry(ref), self.entries())

    def verify(self, ref: str | Entry | None = None) -> ShelfCheck:
        """Read every part (or one) again: hashes, recipe, strict load, probe; tell what is wrong.

        >>> import tempfile
        >>> Shelf(tempfile.mkdtemp()).verify().ok
        True
        """
        from dovetail.shelf.verify import check_shelf

        return check_shelf(self.folder, None if ref is None else self.entry(ref))

    def check_writable(self) -> None:
        """Find out before long work whether its result could be put here.

        >>> import tempfile
        >>> Shelf(tempfile.mkdtemp()).check_writable()
        """
        probe = self.folder / f"{HIDDEN}{uuid4().hex}"
        with writing_to(self.folder):
            try:
                probe.write_bytes(b"?")
            finally:
                probe.unlink(missing_ok=True)

    def sweep(self, *, older_than: float = DAY) -> int:
        """Delete unfinished work of writers that died more than ``older_than`` seconds ago."""
        return sweep(self.folder, older_than=older_than)

    def __len__(self) -> int:
        return len(slots(self.folder))

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries())

    def __contains__(self, ref: object) -> bool:
        if not isinstance(ref, str | Entry):
            return False
        try:
            self.entry(ref)
        except ShelfError:
            return False
        return True

    def __repr__(self) -> str:
        return f"Shelf({str(self.folder)!r}, {counted(len(self), 'part')})"

    def _known(self, thing: Part | nn.Module | Entry | str) -> Part | Entry:
        """What a reference stands for, or a part, either of which has a contract and a digest."""
        if isinstance(thing, str):
            return self.entry(thing)
        return thing if isinstance(thing, Entry) else _as_part(thing)

    def _measured_with(self, thing: Part | nn.Module | Contract | Entry | str) -> dict[str, float]:
        """By digest, the best accuracy that was measured of other parts right beside this one."""
        if isinstance(thing, Contract):
            return {}
        beside = neighbours(self.fits(), self._known(thing).digest)
        return {other: fit.accuracy for other, fit in beside.items()}

    def _end(self, thing: Part | Entry | str) -> End:
        known = self._known(thing.ref if isinstance(thing, Entry) else thing)
        if not isinstance(known, Entry):
            return End(known.described, known.contract, known.digest)
        if known.problem is not None:
            raise ShelfError(f"{known.ref!r} is damaged: {known.problem}")
        return End(known.ref, known.contract, known.digest)


def _same_as(part: Part) -> Callable[[Entry], bool]:
    """Whether an entry is this very part: in weights, contract, recipe, origin, known features."""
    from dovetail.parts.modules import digest_of

    digest = digest_of(part.module)
    known = None if part.familiar is None else hashlib.sha256(part.familiar.to_bytes()).hexdigest()
    # As they are on disk, where a tuple and a list are one.
    recipe, origin = to_plain(part.recipe), to_plain(part.origin)
    return lambda entry: (
        (entry.digest, entry.contract) == (digest, part.contract)
        and (to_plain(entry.recipe), to_plain(entry.origin)) == (recipe, origin)
        and (known is None or known == _known_features(entry))
    )


def _known_features(entry: Entry) -> str | None:
    """The sha256 of the file that says which features a part knows; nothing without one."""
    files = read_facts(entry.folder, check_hashes=False, check_builders=False).files
    return files[FAMILIAR].sha256 if FAMILIAR in files else None


def _as_part(thing: Part | nn.Module) -> Part:
    from dovetail.parts.part import as_part  # torch loads here

    return as_part(thing)
