r"""A uniform quantiser: a range cut into :math:`2^N` bins, and for each weight its bin's number.

With :math:`w \in [l, h]` and the bin width :math:`\Delta = (h - l) / 2^N`,

.. math::
    q(w) = \min\!\left(\left\lfloor \frac{w - l}{\Delta} \right\rfloor,\; 2^N - 1\right),
    \qquad
    \hat w(q) = l + (q + \tfrac12)\,\Delta ,

so that :math:`|w - \hat w| \le \Delta / 2` and the largest weight falls into the last bin.  Both
sides count from the smallest weight (the print of Algorithm 1 in "Efficient deep learning", chapter
3, counts from the largest and decodes from the smallest).

The arithmetic is pinned down, so that every machine decodes the same bits: one rounded operation at
a time, in float32 for float32 and the half types, in float64 for float64 and for ranges so wide, so
narrow or so far from zero that float32 cannot divide them.  A tensor may have one range, or one a
row.  A decoded weight falls into its own bin again, as long as a bin is at least two neighbouring
numbers of the tensor's dtype wide.

Rounding can also hand each weight's error on to the next one (:func:`carried`).  A row of weights
:math:`w_1, \dots, w_m` meets inputs :math:`x_1, \dots, x_m`.  Rounded to the nearest centres, the
errors are as good as independent, and what the row gives is off by
:math:`\sum_j x_j \varepsilon_j`.  Here a weight is rounded after adding what the weights before it
lost: with :math:`v_j = w_j + c_{j-1}`, its centre :math:`\hat w_j` and the carry
:math:`c_j = v_j - \hat w_j`, at most half a bin, the row is off by

.. math::
    \sum_j x_j (\hat w_j - w_j) = \sum_j x_j (c_{j-1} - c_j)
    = \sum_{j<m} c_j (x_{j+1} - x_j) - c_m x_m .

What counts is no longer the inputs but how much neighbours *differ*: little for the pixels of an
image or under a convolution's kernel, and less than the inputs where they share a mean, as after a
ReLU.  For unrelated inputs of mean zero it is :math:`\sqrt 2` times worse, so it has to be measured
which is better.  A decoder needs to know nothing of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dovetail.pack.tensors import elements_of
from dovetail.pack.threads import scratch

__all__ = ["Grid", "MOST_BITS", "carried", "carries", "divisible", "finest", "low_and_high"]


MOST_BITS = 16
"""Symbols are kept in two bytes; at 16 bits a float32 is better kept exactly."""

_WIDEST, _NARROWEST = 2.0**120, 2.0**-100
"""Within these spans float32 neither overflows nor loses digits to subnormal numbers."""

_WIDEST_DOUBLE, _NARROWEST_DOUBLE = 2.0**1000, 2.0**-960

Numbers = NDArray[Any]
"""Floating numbers of any precision."""

Symbols = NDArray[Any]
"""Numbers of bins: uint8 up to eight bits, uint16 above."""


@dataclass(frozen=True)
class Grid:
    """The bins of a tensor: ``2 ** bits`` of them between ``low [rows]`` and ``high [rows]``.

    >>> grid = Grid(2, np.float32([-1]), np.float32([1]))
    >>> symbols = grid.symbols(np.float32([[-1, -0.6, 0.0, 0.3, 1.0]])); symbols
    array([[0, 0, 2, 2, 3]], dtype=uint8)
    >>> grid.centres(symbols)
    array([[-0.75, -0.75,  0.25,  0.25,  0.75]], dtype=float32)
    """

    bits: int
    low: Numbers
    high: Numbers

    @cached_property
    def arithmetic(self) -> np.dtype[Any]:
        """The precision in which bins are found and their centres calculated."""
        if self.low.dtype == np.float64:
            return np.dtype(np.float64)
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        span, size = high - low, np.maximum(np.abs(low), np.abs(high))
        # Far from zero float32 has few numbers left: its rounding must stay far below a bin.
        fine = (span < _WIDEST) & (span > np.maximum(_NARROWEST, size * 2.0 ** (self.bits - 17)))
        return np.dtype(np.float32 if bool((fine | (span == 0)).all()) else np.float64)

    @cached_property
    def _begin(self) -> Numbers:
        return self.low.astype(self.arithmetic)[:, None]

    @cached_property
    def _span(self) -> Numbers:
        return self.high.astype(self.arithmetic)[:, None] - self._begin

    @cached_property
    def _scale(self) -> Numbers:
        bins = np.full_like(self._span, 2.0**self.bits)
        return np.divide(bins, self._span, out=np.zeros_like(bins), where=self._span > 0)

    @cached_property
    def _step(self) -> Numbers:
        step: Numbers = self._span * self.arithmetic.type(2.0**-self.bits)
        return step

    @cached_property
    def _first(self) -> Numbers:
        first: Numbers = self._begin + self._step * self.arithmetic.type(0.5)
        return first

    def symbols(
        self, weights: Numbers, rows: slice = slice(None), out: Symbols | None = None
    ) -> Symbols:
        """The bin of each weight ``[r, c]``, whose rows are these of the grid.

        ``out`` has two bytes a weight; it is not where symbols of eight bits or less end.
        """
        offset = scratch("places", weights.size, self.arithmetic).reshape(weights.shape)
        np.subtract(weights, self._begin[rows], out=offset, dtype=self.arithmetic)
        offset *= self._scale[rows]
        last = 2**self.bits - 1
        if self.bits == 16:  # one more than the last would not fit into sixteen bits
            np.minimum(offset, self.arithmetic.type(last), out=offset)
        symbols = np.empty(weights.shape, np.uint16) if out is None else out
        np.copyto(symbols, offset, casting="unsafe")
        if symbols.max(initial=0) > last:  # rarely: it takes the largest weight
            # Against one number numpy compares one at a time, against an array many at once.
            np.minimum(symbols, np.full_like(symbols, last), out=symbols)
        return symbols.astype(np.uint8) if self.bits <= 8 else symbols

    def centres(
        self, symbols: Symbols, rows: slice = slice(None), out: Numbers | None = None
    ) -> Numbers:
        """The middle of each symbol's bin ``[r, c]``, in the grid's arithmetic."""
        # Whole numbers become floating ones in the cache: numpy does that slowly on the way.
        places = scratch("places", symbols.size, self.arithmetic).reshape(symbols.shape)
        np.copyto(places, symbols)
        places *= self._step[rows]
        numbers: Numbers = np.add(places, self._first[rows], out=out)
        return numbers


def low_and_high(matrix: torch.Tensor) -> tuple[Numbers, Numbers]:
    """The smallest and largest element of each row of ``[rows, columns]``; NaN where there is one.

    >>> low_and_high(torch.tensor([[3.0, 1.0], [0.0, -2.0]]))
    (array([ 1., -2.], dtype=float32), array([3., 0.], dtype=float32))
    """
    if len(matrix) == 1:  # over everything torch uses all its threads, along a row only one
        low, high = (end[None] for end in torch.aminmax(matrix))
    else:
        low, high = torch.aminmax(matrix, dim=1)
    if low.dtype == torch.bfloat16:
        low, high = low.float(), high.float()
    # Of two zeros of unlike sign either may be found first; the bytes must not say which.
    return low.numpy() + 0.0, high.numpy() + 0.0


def divisible(low: Numbers, high: Numbers) -> bool:
    """Whether float64 can cut every range into bins; if not, a tensor is kept exactly.

    >>> divisible(np.float64([-1e308]), np.float64([1e308])), divisible(np.ones(1), np.ones(1))
    (False, True)
    """
    with np.errstate(over="ignore"):
        span = high.astype(np.float64) - low.astype(np.float64)
    return bool(((span == 0) | ((span < _WIDEST_DOUBLE) & (span > _NARROWEST_DOUBLE))).all())


def finest(dtype: torch.dtype, low: Numbers, high: Numbers) -> int:
    r"""Bits beyond which bins would be narrower than the numbers of a dtype are apart.

    Weights between 1 and :math:`1 + 2^{-20}` are at most nine different float32 numbers, and no
    quantiser needs more than four bits for them.

    >>> finest(torch.float32, np.float32([1]), np.float32([1 + 2**-20]))
    4
    >>> finest(torch.float32, np.float32([-1]), np.float32([1]))
    16
    """
    facts = torch.finfo(dtype)
    least = np.minimum(np.abs(low), np.abs(high)).astype(np.float64)
    smallest = np.where((low <= 0) & (high >= 0), facts.tiny, np.maximum(least, facts.tiny))
    apart = np.log2(facts.eps) + np.floor(np.log2(smallest))
    span = high.astype(np.float64) - low.astype(np.float64)
    # As logarithms: a span of 1 holds more numbers next to zero than a float64 can count.
    most = float((np.log2(span[span > 0]) - apart[span > 0]).max(initial=0.0))
    return MOST_BITS if most >= MOST_BITS else max(1, math.ceil(math.log2(2.0**most + 1)))


_MOST_COLUMNS = 1 << 16


def carries(tensor: Tensor) -> bool:
    """Whether a tensor has rows to carry errors along: two axes, and rows that are not too long.

    >>> carries(torch.zeros(3, 4)), carries(torch.zeros(4))
    (True, False)
    """
    return tensor.ndim >= 2 and 1 < tensor[0].numel() <= _MOST_COLUMNS


def carried(tensor: Tensor, bits: int) -> Tensor:
    """A tensor whose nearest centres are those that carrying errors along its rows chooses.

    Its smallest and largest element stay as they are, so that it has the same range, and
    ``compress({name: carried(tensor, bits)}, bits=bits)`` the bins that were chosen here.

    >>> weights = torch.tensor([[0.0, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 1.0]])
    >>> carried(weights, 1)[0].tolist()
    [0.0, 0.25, 0.25, 0.25, 0.75, 0.25, 0.25, 1.0]
    """
    matrix = tensor.detach().reshape(len(tensor), -1)
    flat = matrix.reshape(1, -1)
    low, high = low_and_high(flat)
    grid = Grid(bits, low, high)
    begin = float(low[0])
    step = (float(high[0]) - begin) / 2.0**bits
    weights = elements_of(matrix).reshape(matrix.shape).astype(np.float64)
    places = np.ascontiguousarray(
        (weights - begin).T / step - 0.5
    )  # [columns, rows]; centres whole
    carry = np.zeros(len(matrix))
    for place in places:
        place += carry
        centre = np.clip(np.rint(place), 0, 2**bits - 1)
        # Beyond the last bin nothing can be made up for, and no debt is kept.
        carry = np.clip(place - centre, -0.5, 0.5)
        place[:] = centre
    centres = grid.centres(np.ascontiguousarray(places.T).reshape(1, -1).astype(np.uint16))
    rounded = torch.from_numpy(centres).to(tensor.dtype).reshape(flat.shape)
    for end in (flat.argmin(), flat.argmax()):
        rounded[0, end] = flat[0, end]
    return rounded.reshape(tensor.shape)
