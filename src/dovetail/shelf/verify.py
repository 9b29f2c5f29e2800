"""Reading everything again: is each part still what it was when it was added?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dovetail.core.declared import Column, table, text, when
from dovetail.core.errors import DovetailError, FormatError
from dovetail.core.files import HIDDEN
from dovetail.core.plain import dumps, read_json
from dovetail.core.records import Record
from dovetail.core.views import Text
from dovetail.core.words import counted
from dovetail.parts import disk
from dovetail.parts.facts import read_facts
from dovetail.shelf import glance
from dovetail.shelf.entry import SUFFIX, Entry, damage, read_note
from dovetail.shelf.fits import FOLDER, fit_files, read_fit
from dovetail.shelf.index import FILE, Slot, is_gone, slots
from dovetail.shelf.names import is_name, version_of
from dovetail.shelf.writing import WORK

TRIES = 5
"""How often a part may be exchanged while it is read before what was seen last is believed."""


@dataclass(frozen=True)
class Problem:
    """What is wrong with one part.

    >>> str(Problem("lenet@2", "model.safetensors: sha256 differs from the manifest"))
    'lenet@2: model.safetensors: sha256 differs from the manifest'
    """

    ref: str
    what: str

    def __str__(self) -> str:
        return f"{self.ref}: {self.what}"


@dataclass(frozen=True, kw_only=True)
class ShelfCheck(Record, kind="shelf-check"):
    """What re-reading a shelf found.

    ``leftovers`` are unfinished work of writers that died (swept away when old), ``foreign`` what
    the shelf did not put there; neither keeps the shelf from being ``ok``.

    >>> ShelfCheck(checked=3).ok
    True
    """

    checked: int
    problems: tuple[Problem, ...] = ()
    leftovers: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every part is whole."""
        return not self.problems

    def _verdict(self) -> Text:
        broken = len({problem.ref for problem in self.problems})
        parts = counted(self.checked, "part")
        if self.ok:
            return Text(f"{parts} read again, all whole.")
        return Text(f"{parts} read again, {broken} damaged.", "warning")

    shows = (
        _verdict,
        table("problems", Column("part", "ref"), Column("problem", "what")),
        when("leftovers", text("Unfinished work: {leftovers!l}.", "note")),
        when("foreign", text("Not of this shelf: {foreign!l}.", "note")),
    )


def check_shelf(folder: Path, only: Entry | None = None) -> ShelfCheck:
    """Check every part of a shelf, or one; of a whole shelf, also what else lies on it."""
    name = None if only is None else only.name
    chosen = [s for s in slots(folder, name) if only is None or s.version == only.version]
    leftovers, foreign = strangers(folder) if only is None else ([], [])
    measured = check_fits(folder) if only is None else []
    checked = [problems for slot in chosen if (problems := check_part(slot)) is not None]
    return ShelfCheck(
        settings={"shelf": str(folder), "ref": None if only is None else only.ref},
        checked=len(checked),
        problems=(*(problem for problems in checked for problem in problems), *measured),
        leftovers=tuple(leftovers),
        foreign=tuple(foreign),
    )


def check_part(slot: Slot) -> list[Problem] | None:
    """Everything wrong with one part: hashes, recipe, strict load, probe; then its note.

    Nothing at all when it was taken away meanwhile; what was exchanged meanwhile is read again.
    """
    problems: list[Problem] = []
    for _ in range(TRIES):
        if (seen := _identity(slot.folder)) is None:
            return None
        checks = (_reload, read_note) if slot.version else (_look_into,)
        failures = (_failure(check, slot.folder) for check in checks)
        problems = [Problem(slot.ref, damage(e, slot.folder)) for e in failures if e is not None]
        if not problems or _identity(slot.folder) == seen:
            return problems
    return problems


def check_fits(folder: Path) -> list[Problem]:
    """Every measurement on the shelf that cannot be read; the parts may be whole."""
    home = folder / FOLDER
    if (closed := _failure(_look_into, home)) is not None:
        return [] if is_gone(home) else [Problem(FOLDER, damage(closed, home))]
    return [
        Problem(f"{FOLDER}/{path.name}", damage(error, path.parent))
        for path in fit_files(folder)
        if (error := _failure(read_fit, path)) is not None and not is_gone(path)
    ]


def strangers(folder: Path) -> tuple[list[str], list[str]]:
    """Unfinished work and foreign files on a shelf, as paths within it."""
    leftovers: list[str] = []
    foreign: list[str] = []
    for path, ours in _walk(folder):
        if path.name.startswith(HIDDEN):
            leftovers.append(path.relative_to(folder).as_posix())
        elif not ours and not is_gone(path):
            foreign.append(path.relative_to(folder).as_posix())
    return leftovers, foreign


def _look_into(folder: Path) -> None:
    os.scandir(folder).close()


def _identity(folder: Path) -> tuple[int, int] | None:
    """What tells a folder from another in its place; nothing when there is none."""
    if is_gone(folder):
        return None
    with suppress(OSError):
        facts = os.lstat(folder)
        return facts.st_ino, facts.st_ctime_ns
    return 0, 0  # it cannot be looked at


def _reload(folder: Path) -> None:
    facts = read_facts(folder)
    manifest = folder / "manifest.json"
    if manifest.read_bytes() != dumps(read_json(manifest)).encode():
        raise FormatError(f"{manifest}: was changed after it was written")
    module, _ = disk.read_module(folder, facts)
    disk.read_known(folder, facts, module)
    disk.replay(folder, module)


def _failure(check: Callable[[Path], object], folder: Path) -> Exception | None:
    try:
        check(folder)
    except Exception as error:  # whatever a damaged file or a foreign builder may cause
        return error
    return None


def _walk(folder: Path) -> Iterator[tuple[Path, bool]]:
    """What lies on the shelf down to the parts' own files, and whether the shelf put it there."""
    for top in _items(folder):
        is_folder = top.is_dir() and not top.is_symlink()
        if is_folder and top.name in (WORK, FOLDER):
            ours = set(fit_files(folder)) if top.name == FOLDER else ()
            yield from ((path, path in ours) for path in _items(top))
            continue
        if not is_folder or not is_name(top.name):
            yield top, top.name in (FILE, glance.FILE)
            continue
        for item in _items(top):
            if item.is_symlink() or version_of(item.name.removesuffix(SUFFIX)) is None:
                yield item, False
            elif item.is_dir() and version_of(item.name) is not None:
                listed = _files_of(item)
                yield from ((path, path.name in listed) for path in _items(item))
            else:
                yield item, item.is_file() and item.name.endswith(SUFFIX)


def _items(folder: Path) -> list[Path]:
    """What lies in a folder; nothing where it is closed or gone, which is told elsewhere."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _files_of(folder: Path) -> set[str]:
    """The files a part's folder should hold; all it holds when its manifest cannot say."""
    try:
        files = read_json(folder / "manifest.json")["files"]
        return {"manifest.json", *files}
    except (DovetailError, OSError, KeyError, TypeError):
        return {path.name for path in _items(folder)}
