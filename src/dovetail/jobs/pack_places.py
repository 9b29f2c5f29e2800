"""Where packed and unpacked things come from and go to, and whether there is room."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from dovetail.core.errors import FormatError, SettingsError, ShelfError
from dovetail.core.files import open_plain
from dovetail.jobs.frame import Frame
from dovetail.pack.container import HEAD
from dovetail.parts.facts import FILES, is_part_folder, read_facts
from dovetail.parts.part import Part
from dovetail.shelf.entry import Entry
from dovetail.shelf.names import name_of
from dovetail.shelf.store import Shelf


class Destination(NamedTuple):
    """Where a part goes: to a folder, or by a name to a shelf."""

    to: Path | None
    name: str
    shelf: Path


def source_and_place(
    frame: Frame, ref: str, kind: str, ending: str, to: str | Path | None, replace: bool
) -> Destination:
    """Where the part that is meant goes, if it is there and there is room; found before any work.

    Unless said, a folder's part goes to the folder beside it and a shelf's part to the same shelf,
    each under its name with the ``ending``.  Files of ``kind`` are an offer when it is no part.
    """
    source = _folder_of(frame, ref, kind)
    from_folder = is_part_folder(Path(ref))
    if to is None and frame.name is None and from_folder:
        to = _beside(Path(ref), ending)
    if to is not None:
        if from_folder and frame.shelf is not None:
            raise SettingsError(
                f"{ref} is a folder and goes to a folder, so --shelf says nothing; to put it on "
                "the shelf, say --name"
            )
        free(Path(to), replace, source)
        return Destination(Path(to), name_of(ref), frame.folder)
    if replace:
        raise SettingsError("--replace is for --to; a shelf keeps every version")
    name = frame.named(f"{name_of(ref)}{ending}")
    if frame.folder.exists():
        frame.store.check_writable()
    else:
        _writable(frame.folder)
    return Destination(None, name, frame.folder)


def _folder_of(frame: Frame, ref: str, kind: str) -> Path:
    """The folder of the part that is meant, unread.

    >>> _folder_of(Frame(), "no/such/part", ".safetensors")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: no/such/part: no such file or folder
    """
    path = Path(ref)
    if not ref.strip():
        raise SettingsError("an empty name; name a part, a folder or a file")
    if is_part_folder(path):
        return path
    try:
        return Shelf(frame.folder, create=False).entry(ref).folder
    except ShelfError:
        if path.is_dir():
            raise FormatError(
                f"{ref} is a folder, but not a part's (it has no manifest.json), and no part of "
                f"the shelf {frame.folder}{_offer(path, kind)}"
            ) from None
        if "/" not in ref and os.sep not in ref:
            raise
        why = "neither a part's folder nor a file" if path.exists() else "no such file or folder"
        raise FormatError(f"{ref}: {why}") from None


def _offer(folder: Path, kind: str) -> str:
    """What the user may have meant by a folder that is no part."""
    if len(Shelf(folder, create=False)):
        return f"; it is a shelf itself: say --all --shelf {folder}"
    files = sorted(file for file in folder.iterdir() if file.suffix == kind)
    return f"; a file in it is named in full, as in {files[0]}" if files else ""


def put(part: Part, place: Destination, replace: bool) -> tuple[str, int]:
    """Write a part to its place: what to call it from now on, and the bytes of its files."""
    if place.to is None:
        entry = shelve(Shelf(place.shelf), part, place.name)
        return entry.ref, entry.bytes
    part.save_pretrained(place.to, overwrite=replace)
    return str(place.to), sum(f.stat().st_size for f in place.to.iterdir() if f.is_file())


def shelve(shelf: Shelf, part: Part, name: str) -> Entry:
    """Put a part on a shelf, which must then hold it packed, or plain, as it is.

    A shelf keeps a part once, and by its weights a packed part and the unpacked one are the same.
    """
    entry = shelf.add(part, name)
    if is_packed(entry) == (part.packed is not None):
        return entry
    how = "as plain tensors" if part.packed is not None else "packed"
    raise ShelfError(f"{entry.ref} holds the same part {how}, and keeps it; choose another name")


def is_packed(entry: Entry) -> bool:
    """Whether a part on a shelf lies there packed."""
    return read_facts(entry.folder, check_hashes=False, check_builders=False).is_packed


def is_container(file: Path) -> bool:
    """Whether a file is packed, or called so; refused when it cannot be read.

    >>> import tempfile; file = Path(tempfile.mkdtemp()) / "w"
    >>> _ = file.write_bytes(b"DOVEPACK..."); is_container(file)
    True
    """
    with open_plain(file) as opened:
        return opened.read(len(HEAD)) == HEAD or file.suffix == ".dovepack"


def _beside(folder: Path, ending: str) -> Path:
    """The folder beside another, with a longer name.

    >>> print(_beside(Path("parts/lenet"), "-packed"))
    parts/lenet-packed
    """
    named = folder.resolve() if folder.name in ("", "..") else folder
    return named.with_name(f"{named.name}{ending}")


def free(path: Path, replace: bool, source: Path) -> None:
    """Refuse, before any work, a place that is taken or closed, unless it is to be replaced.

    A folder takes the place of a folder, a file that of a file.  The source itself is never
    replaced: what it holds would be gone.
    """
    if not path.exists():
        _writable(path)
        return
    if source.exists() and path.samefile(source):
        raise FormatError(f"{path} is what is read; choose another place with --to")
    if path.is_dir() != source.is_dir():
        kind, wanted = ("folder", "file") if path.is_dir() else ("file", "folder")
        raise FormatError(f"{path} is a {kind}; name a {wanted} with --to")
    if not replace:
        raise FormatError(f"{path} is there already; say --replace, or another place with --to")
    others = sorted({each.name for each in path.iterdir()} - {*FILES}) if path.is_dir() else []
    if others:  # a part's folder is exchanged as a whole, and they would be gone
        raise FormatError(f"{path} holds other files ({others[0]}); choose a new folder with --to")
    _writable(path)


def _writable(path: Path) -> None:
    """Refuse a place whose folder cannot be written to, or could not be made."""
    there = next(place for place in path.absolute().parents if place.exists())
    if not there.is_dir():
        raise FormatError(f"cannot write {path}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FormatError(f"cannot write {path}: the folder {there} is closed to you")
