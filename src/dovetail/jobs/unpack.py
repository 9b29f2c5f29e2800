"""Write packed weights as plain tensors again."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.errors import FormatError, SettingsError
from dovetail.core.views import Text
from dovetail.jobs.locate import find_part
from dovetail.jobs.outcome import Outcome
from dovetail.jobs.pack_places import (
    DEFAULT_SHELF,
    free,
    is_container,
    is_packed,
    located,
    place_for,
    put,
)
from dovetail.jobs.pack_shelf import every_part
from dovetail.jobs.plain_file import write_plain
from dovetail.parts.packed import without_packed
from dovetail.parts.part import Part
from dovetail.shelf.entry import Entry
from dovetail.shelf.listing import shown_bytes

__all__ = ["unpack", "unpack_all"]

UNPACKED = "-unpacked"
"""What an unpacked part's name ends with, unless another is said."""


def unpack(
    ref: str,
    *,
    to: Path | None = None,
    name: str | None = None,
    replace: bool = False,
    most_gigabytes: float | None = None,
    shelf: str | Path | None = None,
) -> Outcome:
    """Unpack a part of a folder or the shelf to a plain one, or a container to safetensors."""
    source = Path(ref)
    if source.is_file() or source.suffix == ".dovepack":
        if name is not None or shelf is not None:
            raise SettingsError("a file of tensors is no part, and a shelf holds parts; use --to")
        return _file(source, to or source.with_suffix(".safetensors"), replace, most_gigabytes)
    if most_gigabytes is not None:
        raise SettingsError("--most-gigabytes is for files; a part's recipe says how much it needs")
    source = located(ref, shelf, ".dovepack")
    place = place_for(ref, source, UNPACKED, to=to, name=name, replace=replace, shelf=shelf)
    part = find_part(ref, place.shelf)
    if part.packed is None:
        raise SettingsError(f"{ref!r} is not packed; there is nothing to unpack")
    part = without_packed(part)
    where, size = put(part, place, replace)
    said = Text(f"{where} holds the same weights as plain tensors, {shown_bytes(size)}.")
    return Outcome((said,), {"to": where, "bytes": size, "digest": part.digest})


def unpack_all(*, to: Path | None = None, shelf: str | Path | None = None) -> Outcome:
    """Unpack the latest version of every part that is packed.

    They go to the same shelf under names that end with ``-unpacked``, or to the shelf ``to`` under
    their own.  What is damaged is told and left out.
    """
    return every_part(_plain, "unpacked", UNPACKED, shelf=shelf or DEFAULT_SHELF, to=to)


def _plain(entry: Entry) -> Part | str:
    return without_packed(entry.load()) if is_packed(entry) else "not packed"


def _file(source: Path, to: Path, replace: bool, most_gigabytes: float | None) -> Outcome:
    if not is_container(source):
        raise FormatError(f"{source} is not packed; there is nothing to unpack")
    free(to, replace, source)
    if most_gigabytes is not None and not 0 < most_gigabytes < 1e9:
        raise SettingsError(f"--most-gigabytes is a positive number, got {most_gigabytes:g}")
    most = None if most_gigabytes is None else int(most_gigabytes * 1e9)
    write_plain(source, to, most_bytes=most)
    size = to.stat().st_size
    return Outcome((Text(f"{to}: {shown_bytes(size)}."),), {"to": str(to), "bytes": size})
