"""Write packed weights as plain tensors again: a part, a file, or every part on a shelf."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dovetail.core.errors import FormatError, SettingsError
from dovetail.core.files import whole_file
from dovetail.core.views import Text
from dovetail.jobs import Outcome
from dovetail.jobs.frame import Frame, job
from dovetail.jobs.pack import every_part
from dovetail.jobs.pack_places import free, is_container, is_packed, put, source_and_place
from dovetail.pack.decompressing import opened, tensors
from dovetail.pack.index import Entry, Index
from dovetail.pack.tensors import dtype_name, raw_bytes
from dovetail.parts.modules import SAFETENSORS_DTYPES
from dovetail.parts.packed import without_packed
from dovetail.settings.pack import Unpack
from dovetail.shelf.listing import shown_bytes

__all__ = ["unpack", "unpack_all", "write_plain"]

UNPACKED = "-unpacked"
"""What an unpacked part's name ends with, unless another is said."""

_DTYPES = {torch_name: name for name, torch_name in SAFETENSORS_DTYPES.items()}
_METADATA = "__metadata__"


@job
def unpack(
    frame: Frame,
    /,
    ref: str,
    *,
    to: str | Path | None = Unpack.to,
    replace: bool = Unpack.replace,
    most_gigabytes: float | None = Unpack.most_gigabytes,
) -> Outcome:
    """Unpack a part of a folder or the shelf to a plain one, or a container to safetensors."""
    Unpack.check({"most_gigabytes": most_gigabytes})
    source = Path(ref)
    if source.is_file() or source.suffix == ".dovepack":
        if frame.name is not None or frame.shelf is not None:
            raise SettingsError("a file of tensors is no part, and a shelf holds parts; use --to")
        if not is_container(source):
            raise FormatError(f"{source} is not packed; there is nothing to unpack")
        file = Path(to or source.with_suffix(".safetensors"))
        free(file, replace, source)
        most_bytes = None if most_gigabytes is None else int(most_gigabytes * 1e9)
        write_plain(source, file, most_bytes=most_bytes)
        size = file.stat().st_size
        return Outcome((Text(f"{file}: {shown_bytes(size)}."),), {"to": str(file), "bytes": size})
    if most_gigabytes is not None:
        raise SettingsError("--most-gigabytes is for files; a part's recipe says how much it needs")
    place = source_and_place(frame, ref, ".dovepack", UNPACKED, to, replace)
    part = frame.part(ref)
    if part.packed is None:
        raise SettingsError(f"{ref!r} is not packed; there is nothing to unpack")
    part = without_packed(part)
    where, size = put(part, place, replace)
    verdict = Text(f"{where} holds the same weights as plain tensors, {shown_bytes(size)}.")
    return Outcome((verdict,), {"to": where, "bytes": size, "digest": part.digest})


@job
def unpack_all(frame: Frame, /, *, to: str | Path | None = Unpack.to) -> Outcome:
    """Unpack the latest version of every part that is packed.

    They go to the same shelf under names that end with ``-unpacked``, or to the shelf ``to`` under
    their own.  What is damaged is told and left out.
    """
    return every_part(
        frame,
        lambda entry: without_packed(entry.load()) if is_packed(entry) else "not packed",
        "unpacked",
        UNPACKED,
        to,
    )


def write_plain(source: Path, to: Path, *, most_bytes: int | None = None) -> None:
    """Decode the container at ``source`` into a safetensors file, one tensor in memory at a time.

    Such a file is eight bytes (the length of its header, little-endian), the header (JSON: for each
    name the dtype, the shape, and where its bytes begin and end), and the bytes.

    >>> import tempfile, torch
    >>> from safetensors.torch import load_file
    >>> from dovetail.pack.compressing import write
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = write(folder / "a.dovepack", {"a": torch.tensor([True]), "b": torch.arange(2.0)})
    >>> write_plain(folder / "a.dovepack", folder / "a.safetensors")
    >>> load_file(folder / "a.safetensors")["b"]
    tensor([0., 1.])
    """
    with opened(source, most_bytes) as container:
        header, places = _header(container.index)
        decoded = tensors(container, most_bytes=most_bytes)
        first = next(decoded, None)  # what is too large is refused before a file is begun
        with whole_file(to) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            while first is not None:
                name, tensor = first
                file.seek(8 + len(header) + places[name])
                file.write(raw_bytes(tensor).data)
                first = next(decoded, None)


def _header(index: Index) -> tuple[bytes, dict[str, int]]:
    """The header, padded to eight bytes, and the place of each tensor after it."""
    value: dict[str, Any] = {_METADATA: {"format": "pt", **_metadata(index)}}
    places, at = {}, 0
    # The widest elements first: all begin at multiples of their size, as readers want it.
    for entry in sorted(index.entries, key=lambda entry: -entry.dtype.itemsize):
        value[entry.name] = {
            "dtype": _dtype(entry),
            "shape": list(entry.shape),
            "data_offsets": [at, at + entry.size],
        }
        places[entry.name], at = at, at + entry.size
    header = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    return header + b" " * (-len(header) % 8), places


def _dtype(entry: Entry) -> str:
    name = dtype_name(entry.dtype)
    if name not in _DTYPES or entry.name == _METADATA:
        what = "this name" if name in _DTYPES else name
        raise FormatError(
            f"tensor {entry.name!r}: a safetensors file cannot hold {what}; read the container "
            "with dovetail.pack.read"
        )
    return _DTYPES[name]


def _metadata(index: Index) -> dict[str, str]:
    metadata = index.settings.get("metadata", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(text, str) for text in metadata.values()
    ):
        raise FormatError("index: metadata that is not text by name")
    return metadata
