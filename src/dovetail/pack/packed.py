"""What is in a container: bits, entropy, size and error of every tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from dovetail.core.records import Record
from dovetail.core.views import Table, Text, View
from dovetail.pack.coding import decode
from dovetail.pack.container import read_ranges
from dovetail.pack.decompressing import Source, opened, tensors
from dovetail.pack.index import Entry
from dovetail.pack.rules import LONGEST_VECTOR, entropy
from dovetail.pack.tensors import dtype_name

CROWDED = 0.1
"""Bits a weight below which nearly all of a tensor's weights are of one level."""

_MOST_NAMES, _MOST_ROWS = 5, 6
_SMALL = 256
_FRAME_BYTES = 32
"""What a block of next to nothing takes."""


Row = tuple[str, str | None, str | None, str | None, float | None, float | None, int, float | None]
"""Of a table: name, shape, dtype, levels, entropy, bits a weight, bytes, error."""

_BYTES: Literal[6] = 6


@dataclass(frozen=True)
class PackedTensor:
    """One tensor in a container.

    ``bits`` is the number of bits of a level's number (0: all elements of a row are equal; None:
    kept exactly), ``coded`` the bits a weight that its bytes come to, ``entropy`` that of its
    levels, and ``error`` the root mean square of what quantising changed, relative to the
    tensor's own.  ``crowded`` says that nearly all weights went to one level: they are one value
    now, whether they were so before or an outlier stretched the range.  ``levels`` is how many
    there are, where there are any.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bits: int | None
    coded: float
    entropy: float | None = None
    error: float | None = None
    crowded: bool = False
    levels: int | None = None

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """What it takes in the container, its ranges included."""
        return round(self.coded * max(1, self.elements) / 8)

    @property
    def small(self) -> bool:
        """Whether it is a tensor as biases and statistics of norms are, that is kept exactly."""
        few = self.elements < _SMALL or (len(self.shape) <= 1 and self.elements < LONGEST_VECTOR)
        return few and self.bits is None


@dataclass(frozen=True, kw_only=True)
class Packed(Record, kind="packed", title="Packed weights"):
    """A container's sizes, in bytes, and its tensors.

    ``side`` is what is neither coded symbols nor exact elements: the index, the ranges, the ends.
    """

    tensors: tuple[PackedTensor, ...]
    size: int
    side: int
    full: int

    @property
    def ratio(self) -> float:
        """How many times smaller the container is than its tensors in memory."""
        return self.full / self.size

    @property
    def coded(self) -> float:
        """Bits a weight, everything included."""
        return 8 * self.size / max(1, sum(tensor.elements for tensor in self.tensors))

    @property
    def crowded(self) -> tuple[str, ...]:
        """The tensors whose weights nearly all went to one level."""
        return tuple(tensor.name for tensor in self.tensors if tensor.crowded)

    @property
    def warning(self) -> str:
        """What the crowded tensors may have lost, and what to do; empty when there are none."""
        if not self.crowded:
            return ""
        names = ", ".join(map(repr, self.crowded[:_MOST_NAMES]))
        more = len(self.crowded) - _MOST_NAMES
        channels = "" if self.settings.get("channels") else "--channels (channels=True), "
        return (
            f"Nearly all weights of {names}{f' and {more} more' if more > 0 else ''} went to one "
            "level, and are one value now. That is right where they were equal before; where a few "
            f"far larger ones stretch the range, all others are lost: pack with {channels}more "
            "bits, or --lossless NAME (lossless=), which keeps a tensor exactly."
        )

    def view(self) -> View:
        """Totals, a row a tensor (the small ones, kept exactly, in one), and what may be lost."""
        return self._view(list(self._rows()))

    def brief(self) -> View:
        """The same with the largest few tensors, and the others in one row."""
        rows = sorted(self._rows(), key=lambda row: -row[_BYTES])
        if len(rows) > _MOST_ROWS + 1:
            others, rows = rows[_MOST_ROWS:], rows[:_MOST_ROWS]
            size = sum(row[_BYTES] for row in others)
            remark = f"{len(others)} more rows, in --json and the record"
            rows.append((remark, None, None, None, None, None, size, None))
        return self._view(rows)

    def _view(self, rows: list[Row]) -> View:
        share = self.side / max(1, self.size)
        return (
            Text(
                f"{self.full:,} bytes in memory, {self.size:,} packed: {self.ratio:.2f} times "
                f"smaller, {self.coded:.2f} bits a weight; {share:.2%} is side information."
            ),
            Table(
                (
                    "tensor",
                    "shape",
                    "dtype",
                    "levels",
                    "entropy",
                    "bits a weight",
                    "bytes",
                    "error",
                ),
                tuple(rows),
                ("", "", "", "", ".3f", ".3f", ",", ".2e"),
            ),
            *((Text(self.warning, style="warning"),) if self.crowded else ()),
        )

    def _rows(self) -> Iterator[Row]:
        small = [tensor for tensor in self.tensors if tensor.small]
        together = len(small) > 1
        for tensor in self.tensors:
            if together and tensor.small:
                continue
            exact = tensor.bits is None
            yield (
                tensor.name,
                "×".join(map(str, tensor.shape)) or "1",
                tensor.dtype,
                "exact" if exact else f"{tensor.levels or 1:,}",
                tensor.entropy,
                None if exact else tensor.coded,
                tensor.bytes,
                tensor.error,
            )
        if together:
            elements = sum(tensor.elements for tensor in small)
            size = sum(tensor.bytes for tensor in small)
            title = f"{len(small)} small tensors, kept exactly"
            yield title, f"{elements:,} elements", None, "exact", None, None, size, None


def described(
    entries: Iterable[Entry],
    size: int,
    settings: dict[str, Any],
    measured: Mapping[str, tuple[float | None, float | None]] | None = None,
) -> Packed:
    """The record of entries that make ``size`` bytes, with what was measured of each."""
    entries = list(entries)
    rows = []
    for entry in entries:
        known, error = (measured or {}).get(entry.name, (None, None))
        rows.append(
            PackedTensor(
                entry.name,
                dtype_name(entry.dtype),
                entry.shape,
                None if not entry.rows else entry.code.bits if entry.code else 0,
                8 * sum(entry.lengths) / max(1, entry.elements),
                known,
                error,
                _is_crowded(entry, known),
                (entry.levels or 1 << entry.code.bits) if entry.code else None,
            )
        )
    coded = sum(sum(entry.lengths[1:] if entry.rows else entry.lengths) for entry in entries)
    return Packed(
        tensors=tuple(rows),
        size=size,
        side=size - coded,
        full=sum(entry.size for entry in entries),
        settings=settings,
    )


def describe(
    data: bytes | str | Path,
    original: Mapping[str, Tensor] | None = None,
    *,
    most_bytes: int | None = None,
) -> Packed:
    r"""Look into a container, in memory or in a file, and measure its tensors.

    The error is measured against the ``original`` tensors where they are given; without them it is
    what a uniform quantiser is expected to cost, :math:`\Delta / \sqrt{12}`.

    >>> import torch
    >>> from dovetail.pack.compressing import compress
    >>> packed = describe(compress({"w": torch.linspace(0, 1, 4096).reshape(64, 64)}, bits=8))
    >>> [(t.name, t.levels, round(t.entropy, 2), round(t.error, 5)) for t in packed.tensors]
    [('w', 256, 8.0, 0.00196)]
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return _measured(Source.of(data, most_bytes), original or {}, most_bytes)
    with opened(data, most_bytes) as source:
        return _measured(source, original or {}, most_bytes)


def _measured(source: Source, original: Mapping[str, Tensor], most_bytes: int | None) -> Packed:
    index = source.index
    measured: dict[str, tuple[float | None, float | None]] = {}
    blocks = source.blocks()
    decoded = tensors(source, most_bytes=most_bytes)
    for entry, (name, tensor) in zip(index.entries, decoded, strict=True):
        low = high = np.zeros(0)
        if entry.rows:
            low, high = read_ranges(next(blocks), entry.rows, entry.dtype)
        if entry.code is None:
            for _ in range(entry.block_count):
                next(blocks)
            measured[name] = (0.0, 0.0) if entry.rows else (None, None)
            continue
        counts = np.zeros(1 << entry.code.bits, np.int64)
        for rows, columns in entry.blocks():
            count = (rows.stop - rows.start) * (columns.stop - columns.start)
            counts += np.bincount(decode(next(blocks), count, entry.code), minlength=len(counts))
        size = float(tensor.double().square().mean().sqrt())
        if name in original:
            error = float((tensor.double() - original[name].double()).square().mean().sqrt())
        else:
            steps = entry.grid(low, high).step.astype(np.float64)
            error = math.sqrt(float(np.square(steps).mean()) / 12)
        measured[name] = (entropy(counts), error / size if size else None)
    return described(index.entries, source.size, dict(index.settings), measured)


def _is_crowded(entry: Entry, known_entropy: float | None) -> bool:
    """Whether nearly all weights are of one level: by the entropy, or else by what they take."""
    if entry.code is None:
        return False  # exact, or equal in every row
    if known_entropy is not None:
        return known_entropy < CROWDED
    size = sum(entry.lengths[1:]) - _FRAME_BYTES * entry.block_count
    # Without a common token that is taken out, a few bytes are all of a small tensor.
    return bool(entry.code.peels) and 8 * size < CROWDED * entry.elements
