"""What is in a container: bits, entropy, size and error of every tensor."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dovetail.core.records import Record
from dovetail.core.views import Table, Text, View
from dovetail.pack.blocks import read_ranges
from dovetail.pack.coding import decode
from dovetail.pack.decompressing import Source, opened, tensors
from dovetail.pack.dtypes import name_of
from dovetail.pack.entries import Entry
from dovetail.pack.rules import entropy

__all__ = ["Packed", "PackedTensor", "describe", "described"]


@dataclass(frozen=True)
class PackedTensor:
    """One tensor in a container.

    ``bits`` is the number of bits of a bin's number (0: all elements of a row are equal; None: kept
    exactly), ``coded`` the bits a weight that its bytes come to, ``entropy`` that of its bins'
    numbers, and ``error`` the root mean square of what quantising changed, relative to the
    tensor's own.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bits: int | None
    coded: float
    entropy: float | None = None
    error: float | None = None

    @property
    def elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class Packed(Record, kind="packed"):
    """A container's sizes, in bytes, and its tensors.

    ``side`` is what is neither coded symbols nor exact elements: the index, the ranges, the ends.
    """

    tensors: tuple[PackedTensor, ...]
    size: int
    side: int
    full: int

    @property
    def title(self) -> str:
        """A heading for reports."""
        return "Packed weights"

    @property
    def ratio(self) -> float:
        """How many times smaller the container is than its tensors in memory."""
        return self.full / self.size

    @property
    def coded(self) -> float:
        """Bits a weight, everything included."""
        return 8 * self.size / max(1, sum(tensor.elements for tensor in self.tensors))

    def view(self) -> View:
        """Totals, and a row a tensor."""
        rows = tuple(
            (
                tensor.name,
                "×".join(map(str, tensor.shape)) or "1",
                tensor.dtype,
                "exact" if tensor.bits is None else str(tensor.bits),
                tensor.entropy,
                tensor.coded,
                tensor.error,
            )
            for tensor in self.tensors
        )
        share = self.side / max(1, self.size)
        return (
            Text(
                f"{self.full:,} bytes in memory, {self.size:,} packed: {self.ratio:.2f} times "
                f"smaller, {self.coded:.2f} bits a weight; {share:.2%} is side information."
            ),
            Table(
                ("tensor", "shape", "dtype", "bits", "entropy", "bits a weight", "error"),
                rows,
                ("", "", "", "", ".3f", ".3f", ".2e"),
            ),
        )


def described(
    entries: Iterable[Entry],
    size: int,
    settings: dict[str, Any],
    measured: Mapping[str, tuple[float | None, float | None]] | None = None,
) -> Packed:
    """The record of entries that make ``size`` bytes, with what was measured of each."""
    entries = list(entries)
    found = [
        PackedTensor(
            entry.name,
            name_of(entry.dtype),
            entry.shape,
            _bits(entry),
            8 * sum(entry.lengths) / max(1, entry.elements),
            *(measured or {}).get(entry.name, (None, None)),
        )
        for entry in entries
    ]
    coded = sum(sum(entry.lengths[1:] if entry.rows else entry.lengths) for entry in entries)
    return Packed(
        tensors=tuple(found),
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
    what uniform bins are expected to cost, :math:`\Delta / \sqrt{12}`.

    >>> import torch
    >>> from dovetail.pack.compressing import compress
    >>> packed = describe(compress({"w": torch.linspace(0, 1, 4096).reshape(64, 64)}, bits=8))
    >>> [(t.name, t.bits, t.entropy, round(t.error, 5)) for t in packed.tensors]
    [('w', 8, 8.0, 0.00195)]
    """
    if isinstance(data, bytes | bytearray | memoryview):
        return _describe(Source.of(data, most_bytes), original, most_bytes)
    with opened(data, most_bytes) as source:
        return _describe(source, original, most_bytes)


def _describe(
    source: Source, original: Mapping[str, Tensor] | None, most_bytes: int | None
) -> Packed:
    index = source.index
    measured: dict[str, tuple[float | None, float | None]] = {}
    blocks = source.blocks()
    found = tensors(source, most_bytes=most_bytes)
    for entry, (name, tensor) in zip(index.entries, found, strict=True):
        low = high = np.zeros(0)
        if entry.rows:
            low, high = read_ranges(next(blocks), entry.rows, entry.dtype)
        if entry.plan is None:
            for _ in range(entry.block_count):
                next(blocks)
            measured[name] = (0.0, 0.0) if entry.rows else (None, None)
            continue
        counts = np.zeros(1 << entry.plan.bits, np.int64)
        for rows, columns in entry.blocks():
            count = (rows.stop - rows.start) * (columns.stop - columns.start)
            counts += np.bincount(decode(next(blocks), count, entry.plan), minlength=len(counts))
        size = float(tensor.double().square().mean().sqrt())
        if original is not None and name in original:
            error = float((tensor.double() - original[name].double()).square().mean().sqrt())
        else:
            steps = (high.astype(np.float64) - low) / 2.0**entry.plan.bits
            error = math.sqrt(float(np.square(steps).mean()) / 12)
        measured[name] = (entropy(counts), error / size if size else None)
    return described(index.entries, source.size, dict(index.settings), measured)


def _bits(entry: Entry) -> int | None:
    if not entry.rows:
        return None
    return entry.plan.bits if entry.plan else 0
