"""Write packed weights as plain tensors again."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.errors import SettingsError
from dovetail.core.views import Text
from dovetail.flows.locate import find_part, name_of
from dovetail.flows.outcome import Outcome
from dovetail.flows.pack_places import beside, free, size_of
from dovetail.flows.plain_file import write_plain
from dovetail.parts.disk import is_part_folder
from dovetail.parts.packing import without_packed
from dovetail.shelf.listing import shown_bytes
from dovetail.shelf.names import check_name
from dovetail.shelf.store import Shelf

__all__ = ["unpack"]


def unpack(
    ref: str,
    *,
    to: Path | None = None,
    name: str | None = None,
    replace: bool = False,
    most_gigabytes: float | None = None,
    shelf: str | Path = "shelf",
) -> Outcome:
    """Unpack a part of a folder or the shelf to a plain one, or a container to safetensors."""
    source = Path(ref)
    if source.is_file() or source.suffix == ".dovepack":
        if name is not None:
            raise SettingsError("a file of tensors is no part, and a shelf holds parts; use --to")
        return _file(source, to or source.with_suffix(".safetensors"), replace, most_gigabytes)
    if most_gigabytes is not None:
        raise SettingsError("--most-gigabytes is for files; a part's recipe says how much it needs")
    from_folder = is_part_folder(source)
    if to is None and name is None and from_folder:
        to = beside(source, "-unpacked")
    if to is not None:
        free(to, replace, source)
    elif not from_folder and name == name_of(ref):
        raise SettingsError(f"{name!r} holds the packed part, of the same weights; choose a name")
    else:
        name = check_name(name or f"{name_of(ref)}-unpacked")
    part = without_packed(find_part(ref, shelf))
    if to is not None:
        part.save_pretrained(to, overwrite=replace)
        where, size = str(to), size_of(to)
    else:
        entry = Shelf(shelf).add(part, str(name))
        where, size = entry.ref, entry.bytes
    said = Text(f"{where} holds the same weights as plain tensors, {shown_bytes(size)}.")
    return Outcome((said,), {"to": where, "bytes": size, "digest": part.digest})


def _file(source: Path, to: Path, replace: bool, most_gigabytes: float | None) -> Outcome:
    free(to, replace, source)
    if most_gigabytes is not None and not 0 < most_gigabytes < 1e9:
        raise SettingsError(f"--most-gigabytes is a positive number, got {most_gigabytes:g}")
    most = None if most_gigabytes is None else int(most_gigabytes * 1e9)
    write_plain(source, to, most_bytes=most)
    size = to.stat().st_size
    return Outcome((Text(f"{to}: {shown_bytes(size)}."),), {"to": str(to), "bytes": size})
