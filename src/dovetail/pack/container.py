r"""The container: what comes where, and what is checked before anything is believed.

::

    8 bytes     b"DOVEPACK"
    groups      blocks of coded elements, back to back
    index       JSON, shrunk: names, dtypes, shapes, codes, lengths of blocks, checksums of groups
    28 bytes    crc32 of the index, its shrunk and its full size, the format number (four bytes
                each), the size of the container (eight bytes), b"DOVE"

All numbers are little-endian.  The index comes last, so that tensors can be written as they arrive.
A reader takes the tail, then the index, checks every size in it against the others and against what
it may allocate, and only then looks at a block.  A group (about a megabyte of blocks) is read whole
and checked by its crc32 before any of it is decoded.

A block is exact elements, the ranges of all rows, or quantised elements.  Exact elements are taken
apart into planes (all first bytes, all second bytes, ...), because the exponents of floats, the
high bytes of integers and zeros shrink, and the rest does not.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np
import torch
import zstandard
from numpy.typing import NDArray
from torch import Tensor

from dovetail.core.errors import FormatError, SettingsError, argument, shown
from dovetail.pack.coding import Code, decode, encode
from dovetail.pack.index import FORMAT, MIDDLES, Entry, Group, Index, from_json, to_json
from dovetail.pack.quantise import Grid, Numbers, divisible
from dovetail.pack.streams import Reader, unshrink, written
from dovetail.pack.threads import scratch

HEAD = b"DOVEPACK"
_TAIL = struct.Struct("<IIIIQ4s")
TAIL = _TAIL.size
_END = b"DOVE"

MOST_INDEX = 64 << 20

_ALWAYS_READ, _TIMES_READ = 4 << 20, 128
"""Bytes that an index may take in memory: so many, and so many for each byte of its container.

Names, shapes and lengths of a thousand numbers that are tensors of their own take some forty."""

_LETTER, _COSTS = 4, {b"[": 120, b"{": 400, b",": 40, b'"': 25}
"""Bytes that Python takes for each letter, list, dict, number and half of a text in JSON, roughly.
"""

_LONGER, _MORE = 2, 1024
"""So many times its elements, and so many bytes more for each block, a packed tensor never takes:
what does not shrink is kept, and the ends of a range are two numbers for at least sixteen."""


def write_index(
    entries: list[Entry], groups: list[Group], at: int, settings: dict[str, Any]
) -> bytes:
    """The index and the tail of a container whose groups end at byte ``at``."""
    full = to_json(entries, groups, settings)
    params = zstandard.ZstdCompressionParameters.from_level(
        19, window_log=20, write_content_size=False, format=zstandard.FORMAT_ZSTD1_MAGICLESS
    )
    data = zstandard.ZstdCompressor(compression_params=params).compress(full)
    size = at + len(data) + TAIL
    if len(full) > _most_index(size) or _memory(full) > _most_memory(size):
        # Nobody could read it again.
        raise SettingsError(f"an index of {len(full)} bytes is too large; pack fewer tensors")
    return data + _TAIL.pack(zlib.crc32(data), len(data), len(full), FORMAT, size, _END)


def _most_index(size: int) -> int:
    """An index shrinks, but not a thousandfold: one that claims so is made to fill memory."""
    return min(MOST_INDEX, (1 << 20) + 16 * size)


def _most_memory(size: int) -> int:
    return _ALWAYS_READ + _TIMES_READ * size


def _memory(full: bytes) -> int:
    """The bytes that an index takes once it is parsed, from what can be counted before.

    >>> _memory(b"[" * 1000)
    124000
    """
    return _LETTER * len(full) + sum(cost * full.count(mark) for mark, cost in _COSTS.items())


def _refuse_beyond(most_bytes: int | None, needed: int) -> None:
    """Refuse an index that takes more than the caller allows; what any file has is always read.

    >>> _refuse_beyond(None, 1 << 30), _refuse_beyond(1000, _ALWAYS_READ)
    (None, None)
    """
    if most_bytes is not None and needed > max(_ALWAYS_READ, most_bytes):
        raise FormatError(
            f"the index alone takes {needed} bytes or more, {most_bytes} are allowed: if you trust "
            f"where it comes from, pass {argument('most_bytes', needed)}"
        )


def tail_sizes(tail: bytes, size: int, most_bytes: int | None = None) -> tuple[int, int, int]:
    """The checksum, the shrunk and the full size of the index, from a container's last bytes."""
    if len(tail) != TAIL or size < len(HEAD) + TAIL:
        raise FormatError("not a packed container: it is too short")
    crc, shrunk, full, number, said, end = _TAIL.unpack(tail)
    if end != _END:
        raise FormatError("not a packed container, or one that was cut off")
    if number not in (MIDDLES, FORMAT):
        raise FormatError(
            f"packed format {number}, this dovetail reads {MIDDLES} and {FORMAT}; update dovetail"
        )
    if said != size:
        raise FormatError(f"a packed container of {said} bytes has {size}: cut off, or added to")
    if shrunk > size - len(HEAD) - TAIL or full > _most_index(size):
        raise FormatError("the index of a packed container cannot be that large")
    if shrunk > full + full // 128 + 1024:  # zstd never makes more of it
        raise FormatError("the index of a packed container is longer shrunk than in full")
    _refuse_beyond(most_bytes, _LETTER * full)
    return crc, shrunk, full


def read_index(
    head: bytes, data: bytes, tail: bytes, size: int, most_bytes: int | None = None
) -> Index:
    """Check the first bytes, the index and the tail of a container of ``size`` bytes.

    An index that takes more than ``most_bytes`` (and more than a few megabytes) is refused before
    it is parsed.
    """
    crc, _, full = tail_sizes(tail, size, most_bytes)
    if head != HEAD:
        raise FormatError("not a packed container")
    if zlib.crc32(data) != crc:
        raise FormatError("the index of a packed container is damaged")
    plain = unshrink(data, full)
    if (needed := _memory(plain)) > _most_memory(size):
        raise FormatError("the index of a packed container would fill memory")
    _refuse_beyond(most_bytes, needed)
    entries, groups, settings = from_json(plain, number=_TAIL.unpack(tail)[3])
    coded = sum(group.size for group in groups)
    if coded != size - len(HEAD) - len(data) - TAIL:
        raise FormatError("index: the groups do not fill the container")
    if coded != sum(sum(entry.lengths) for entry in entries):
        raise FormatError("index: the blocks do not fill the groups")
    for entry in entries:  # a group is read whole: a hole in a file would fill memory
        if sum(entry.lengths) > _LONGER * entry.size + _MORE * len(entry.lengths):
            raise FormatError(f"index: tensor {shown(entry.name)}: blocks longer than it could be")
    return Index(entries, groups, size, settings)


_ENDS: dict[torch.dtype, type[np.floating]] = {
    torch.float64: np.float64,
    torch.float16: np.float16,
}
"""The precision of ranges, where it is not float32."""

FEWEST_FOR_PLANES = 64
"""Fewer elements than this are one run of bytes: a run a plane would cost more than it saves."""

Bytes = NDArray[np.uint8]


def exact_block(data: Bytes) -> list[bytes]:
    """The bytes ``[elements, bytes each]`` of exact elements, in pieces.

    >>> sum(map(len, exact_block(np.zeros((1000, 4), np.uint8)))) < 100
    True
    """
    if len(data) < FEWEST_FOR_PLANES:
        return written([(data, True)])
    return written((np.ascontiguousarray(plane), True) for plane in data.T)


def fill_exact(block: bytes | memoryview, into: Bytes) -> None:
    """Fill ``[elements, bytes each]`` with what :func:`exact_block` was given."""
    reader = Reader(block)
    if len(into) < FEWEST_FOR_PLANES:
        into[...] = reader.run(into.size).reshape(into.shape)
    else:
        for place in range(into.shape[1]):
            into[:, place] = reader.run(len(into))
    reader.end()


def ranges(low: Numbers, high: Numbers) -> list[bytes]:
    """The ends of the ranges of all rows, in the tensor's own precision."""
    ends = np.ascontiguousarray(np.stack([low, high], 1)).reshape(-1, 1)
    return exact_block(ends.view(np.uint8))


def read_ranges(
    block: bytes | memoryview, rows: int, dtype: torch.dtype
) -> tuple[Numbers, Numbers]:
    """What :func:`ranges` was given, if these can be ranges at all."""
    ends = np.empty((rows, 2), _ENDS.get(dtype, np.float32))
    fill_exact(block, ends.reshape(-1, 1).view(np.uint8))
    low, high = ends[:, 0].copy(), ends[:, 1].copy()
    if not (np.isfinite(ends).all() and (low <= high).all() and divisible(low, high)):
        raise FormatError("a range that is none")
    return low, high


def quantised_block(weights: Numbers, grid: Grid, rows: slice, code: Code) -> list[bytes]:
    """The bytes of weights ``[r, c]`` in these rows of the grid, in pieces."""
    out = scratch("symbols", weights.size, np.uint16).reshape(weights.shape)
    return encode(grid.symbols(weights, rows, out).reshape(-1), code)


def fill_quantised(
    block: bytes | memoryview, grid: Grid, rows: slice, code: Code, into: Tensor
) -> None:
    """Fill ``into [r, c]`` with the levels of a block."""
    lent = scratch("symbols", into.numel(), code.cut.kind)
    symbols = decode(block, into.numel(), code, lent).reshape(into.shape)
    if into.dtype == torch.bfloat16:  # which numpy does not know
        into.copy_(torch.from_numpy(grid.values(symbols, rows)))
        return
    numbers = into.numpy()
    if numbers.dtype == grid.arithmetic:
        grid.values(symbols, rows, out=numbers)
    else:
        numbers[...] = grid.values(symbols, rows)
