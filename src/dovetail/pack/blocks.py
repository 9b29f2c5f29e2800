"""A tensor's blocks as bytes, and back: exact ones, ranges, and quantised ones.

Exact elements are taken apart into planes (all first bytes, all second bytes, ...), because the
exponents of floats, the high bytes of integers and zeros shrink, and the rest does not.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.core.errors import FormatError
from dovetail.pack.coding import Plan, decode, encode
from dovetail.pack.quantise import Grid, Numbers, divisible
from dovetail.pack.scratch import scratch
from dovetail.pack.streams import Reader, written

__all__ = [
    "exact_block",
    "fill_exact",
    "fill_quantised",
    "quantised_block",
    "ranges",
    "read_ranges",
]

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
    ends = np.empty((rows, 2), _ends_type(dtype))
    fill_exact(block, ends.reshape(-1, 1).view(np.uint8))
    low, high = ends[:, 0].copy(), ends[:, 1].copy()
    if not (np.isfinite(ends).all() and (low <= high).all() and divisible(low, high)):
        raise FormatError("a range that is none")
    return low, high


def quantised_block(weights: Numbers, grid: Grid, rows: slice, plan: Plan) -> list[bytes]:
    """The bytes of weights ``[r, c]`` in these rows of the grid, in pieces."""
    out = scratch("symbols", weights.size, np.uint16).reshape(weights.shape)
    return encode(grid.symbols(weights, rows, out).reshape(-1), plan)


def fill_quantised(
    block: bytes | memoryview, grid: Grid, rows: slice, plan: Plan, into: Tensor
) -> None:
    """Fill ``into [r, c]`` with the centres of a block's bins."""
    lent = scratch("symbols", into.numel(), plan.cut.kind)
    symbols = decode(block, into.numel(), plan, lent).reshape(into.shape)
    if into.dtype == torch.bfloat16:  # which numpy does not know
        into.copy_(torch.from_numpy(grid.centres(symbols, rows)))
        return
    numbers = into.numpy()
    if numbers.dtype == grid.arithmetic:
        grid.centres(symbols, rows, out=numbers)
    else:
        numbers[...] = grid.centres(symbols, rows)


def _ends_type(dtype: torch.dtype) -> type[np.floating]:
    if dtype == torch.float64:
        return np.float64
    return np.float16 if dtype == torch.float16 else np.float32
