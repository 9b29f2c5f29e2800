"""A container decoded into a safetensors file, one tensor in memory at a time.

A safetensors file is eight bytes (the length of its header, little-endian), the header (JSON: for
each name the dtype, the shape, and where its bytes begin and end), and the bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dovetail.core.errors import FormatError
from dovetail.core.files import whole_file
from dovetail.pack.decompressing import opened, tensors
from dovetail.pack.index import Entry, Index
from dovetail.pack.tensors import dtype_name, raw_bytes

__all__ = ["write_plain"]

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "bool": "BOOL",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
}
_METADATA = "__metadata__"


def write_plain(source: Path, to: Path, *, most_bytes: int | None = None) -> None:
    """Write the tensors of the container at ``source`` to the safetensors file ``to``.

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
        found = tensors(container, most_bytes=most_bytes)
        first = next(found, None)  # what is too large is refused before a file is begun
        with whole_file(to) as file:
            file.write(len(header).to_bytes(8, "little") + header)
            while first is not None:
                name, tensor = first
                file.seek(8 + len(header) + places[name])
                file.write(raw_bytes(tensor).data)
                first = next(found, None)


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
    told = index.settings.get("metadata", {})
    if not isinstance(told, dict) or not all(isinstance(text, str) for text in told.values()):
        raise FormatError("index: metadata that is not text by name")
    return told
