"""Folders with a manifest, and files of tensors: written whole, and read without trusting them.

A folder is written with a manifest that has a format number and the sha256 and size of every file,
and appears whole or not at all.  Whoever reads it takes these steps, each before the next::

    read_manifest   its JSON within a size limit, its format number, its fields by their types
    check_sizes     every file is listed, plain and as long as the manifest says
    read_listed     the bytes of a file, hashed as they are read; or check_hash, of a long one
    open_tensors    a safetensors file whose header is no longer than its names need

Links, pipes and devices are never opened; files that the manifest does not list are never looked
at.  Every refusal is a :class:`FormatError` that names the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dovetail.core.errors import FormatError, first_line, shown
from dovetail.core.files import (
    open_plain,
    read_plain,
    refuse_beyond_memory,
    sha256_of,
    whole_folder,
)
from dovetail.core.plain import dumps, from_plain, parse_json, read_json

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class File:
    """What a manifest says of a file."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """A folder's format number and files; a kind of folder may add fields of its own."""

    format: int
    files: dict[str, File]


M = TypeVar("M", bound=Manifest)


def write_folder(
    folder: Path,
    manifest: str,
    format: int,
    files: Mapping[str, bytes],
    *,
    replace: bool = False,
    fill: Callable[[Path], object] | None = None,
    **facts: Any,
) -> None:
    """Write files and the manifest that lists them; the folder appears whole or not at all.

    Args:
        folder: Its place; if it is there, that is a ``FileExistsError`` unless ``replace``.
        manifest: The manifest's file name.
        format: Its format number.
        files: The bytes of each file.
        replace: Whether an older folder is exchanged.
        fill: Puts what has a manifest of its own into the folder.
        facts: Further fields of the manifest.

    >>> import tempfile; folder = Path(tempfile.mkdtemp()) / "new"
    >>> write_folder(folder, "list.json", 1, {"a.txt": b"whole"})
    >>> found = read_manifest(Manifest, folder, "list.json", 1, "note")
    >>> read_listed(folder / "a.txt", found.files["a.txt"], most_bytes=100)
    b'whole'
    """
    with whole_folder(folder, replace=replace) as hidden:
        for name, data in files.items():
            (hidden / name).write_bytes(data)
        listed = {name: File(sha256_of(hidden / name), len(data)) for name, data in files.items()}
        (hidden / manifest).write_text(dumps({"format": format, "files": listed, **facts}))
        if fill is not None:
            fill(hidden)


def read_manifest(kind: type[M], folder: Path, manifest: str, format: int, what: str) -> M:
    """A folder's manifest, of the one format that is read."""
    raw = read_json(folder / manifest, links=False)
    number = raw.get("format") if isinstance(raw, dict) else None
    if number != format:
        raise FormatError(
            f"{folder}: {what} format {shown(number)}, this dovetail reads {format}; "
            "update dovetail"
        )
    return from_plain(kind, raw, manifest)


def check_sizes(folder: Path, files: Mapping[str, File], most: Mapping[str, int]) -> None:
    """Refuse a listed file that is no plain file, or not as long as the manifest says.

    ``most`` are the bytes that files of a name may have at all.
    """
    for name, expected in files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise FormatError(f"{path}: missing, or not a plain file")
        if (size := path.stat().st_size) != expected.size:
            raise FormatError(f"{path}: {size} bytes, the manifest says {expected.size}")
        if size > most.get(name, size):
            raise FormatError(f"{path}: {size} bytes is more than a file of ours ever has")


def check_hash(path: Path, expected: File, data: bytes | None = None) -> None:
    """Refuse a file (or the bytes that were read of it) that is not the one that was written."""
    if data is None:
        refuse_beyond_memory(expected.size, path)  # to hash a file of holes would take hours
    digest = sha256_of(path) if data is None else hashlib.sha256(data).hexdigest()
    if digest != expected.sha256:
        raise FormatError(f"{path}: sha256 differs from the manifest")


def read_listed(path: Path, expected: File, *, most_bytes: int, check_hashes: bool = True) -> bytes:
    """The bytes of a listed file: the very ones whose hash was checked."""
    data = read_plain(path, most_bytes=most_bytes, links=False)
    if check_hashes:
        check_hash(path, expected, data)
    return data


def longest_header(names: Collection[str]) -> int:
    """Bytes that a safetensors header of these names never exceeds.

    >>> longest_header(["weight", "bias"])
    66620
    """
    # A name can grow sixfold where JSON escapes it; the rest of an entry is short.
    return 65536 + sum(6 * len(name.encode()) + 512 for name in names)


@contextmanager
def open_tensors(path: Path, most_header: int, *, links: bool = False) -> Iterator[Any]:
    """An open safetensors file whose header is JSON of at most so many bytes.

    The library alone would read a hundred megabytes of it, and take a name that is there twice.
    Its tensors are read within the block from this one handle, so that a file which is exchanged
    meanwhile is not seen.
    """
    from safetensors import SafetensorError, safe_open  # here: lists of parts need no tensors

    where = f"{path}: not a safetensors file"
    with open_plain(path, links=links) as file:
        refuse_beyond_memory(os.fstat(file.fileno()).st_size, path)
        length = int.from_bytes(file.read(8), "little")
        if length > most_header:
            raise FormatError(f"{where} (a header of {length} bytes, at most {most_header})")
        parse_json(file.read(length), where)
    try:
        with safe_open(path, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{where} ({first_line(error)})") from None


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """A safetensors file of these tensors; those that are tied are written once a name."""
    from safetensors.torch import save

    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    return save(plain, metadata=None if metadata is None else dict(metadata))
