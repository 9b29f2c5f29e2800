r"""A uniform quantiser: levels a step apart, zero among them, and each weight's nearest of them.

With :math:`w \in [l, h]`, :math:`K` levels and the step :math:`\Delta = (h - l) / (K - 1)`,

.. math::
    q(w) = \left\lfloor \frac{w}{\Delta} + \tfrac12 \right\rfloor - k, \qquad
    \hat w(q) = (k + q)\,\Delta, \qquad
    k = \left\lfloor \frac{l}{\Delta} + \tfrac12 \right\rfloor ,

so that :math:`|w - \hat w| \le \Delta / 2`, and :math:`q` is 0 for the smallest weight and
:math:`K - 1` for the largest.  Levels are whole multiples of the step: a weight of zero stays zero
(:math:`+0.0`, also where it was :math:`-0.0`), and a pruned network stays pruned.  Where zero is
not within the range, levels count from the smallest weight instead, :math:`\hat w(q) = l +
q\,\Delta`.  Weights that are levels already stay what they are, up to the last digit: to pack
again what was packed in :math:`K` levels changes nothing.

(Algorithm 1 of "Efficient deep learning", chapter 3, decodes to the middles of :math:`2^N` bins
that begin at the smallest weight, :math:`\hat w = l + (q + \tfrac12)(h - l) / 2^N`, which turns
all zeros into something else.  Containers of format 2 have it so, and are read so.)

The arithmetic is pinned down, so that every machine decodes the same bits: one rounded operation at
a time, in float32 for float32 and the half types, in float64 for float64 and for ranges so wide, so
narrow or so far from zero that float32 cannot divide them.  Zero is exact in any of them:
:math:`q\,\Delta` and :math:`k\,\Delta` are each rounded once, and for :math:`q = -k` alike.  A
tensor may have one range, or one a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dovetail.pack.threads import scratch

MOST_BITS = 16
MOST_LEVELS = 1 << MOST_BITS
"""Symbols are kept in two bytes; with more levels a float32 is better kept exactly."""

_WIDEST, _NARROWEST = 2.0**120, 2.0**-100
"""Within these spans float32 neither overflows nor loses digits to subnormal numbers."""

_WIDEST_DOUBLE, _NARROWEST_DOUBLE = 2.0**1000, 2.0**-960

Numbers = NDArray[Any]
"""Floating numbers of any precision."""

Symbols = NDArray[Any]
"""Numbers of levels: uint8 up to eight bits, uint16 above."""


@dataclass(frozen=True)
class Grid:
    """The levels of a tensor whose rows lie between ``low [rows]`` and ``high [rows]``.

    With ``middles`` they are those of format 2.

    >>> grid = Grid(5, np.float32([-1]), np.float32([1]))
    >>> symbols = grid.symbols(np.float32([[-1, -0.6, 0.0, 0.3, 1.0]])); symbols
    array([[0, 1, 2, 3, 4]], dtype=uint8)
    >>> grid.values(symbols)
    array([[-1. , -0.5,  0. ,  0.5,  1. ]], dtype=float32)
    """

    levels: int
    low: Numbers
    high: Numbers
    middles: bool = False

    @property
    def bits(self) -> int:
        """Of a level's number."""
        return bits_of(self.levels)

    @cached_property
    def arithmetic(self) -> np.dtype[Any]:
        """The precision in which levels are found and calculated."""
        if self.low.dtype == np.float64:
            return np.dtype(np.float64)
        low, high = self.low.astype(np.float64), self.high.astype(np.float64)
        span, size = high - low, np.maximum(np.abs(low), np.abs(high))
        # Far from zero float32 has few numbers left: its rounding must stay far below a step.
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
        steps = np.full_like(self._span, self.levels - 1)
        return np.divide(steps, self._span, out=np.zeros_like(steps), where=self._span > 0)

    @cached_property
    def step(self) -> Numbers:
        """From one level to the next ``[rows, 1]``; zero where all of a row is equal."""
        step: Numbers = self._span / self.arithmetic.type(self.levels - 1 + self.middles)
        return step

    @cached_property
    def first(self) -> Numbers:
        """The lowest level ``[rows, 1]``."""
        if self.middles:
            middle: Numbers = self._begin + self.step * self.arithmetic.type(0.5)
            return middle
        low, step = self._begin.astype(np.float64), self.step.astype(np.float64)
        places = np.divide(low, step, out=np.zeros_like(low), where=step > 0)
        lowest = np.floor(places + 0.5).clip(1 - self.levels, 0).astype(self.arithmetic)
        around_zero = ((self.low <= 0) & (self.high >= 0))[:, None]
        return np.where(around_zero & (step > 0), lowest * self.step, self._begin)

    def overshoots(self, dtype: torch.dtype) -> bool:
        """Whether the outermost levels are beyond the numbers of a dtype."""
        first = self.first.astype(np.float64)
        last = first + self.step.astype(np.float64) * (self.levels - 1)
        return bool(np.maximum(np.abs(first), np.abs(last)).max() > torch.finfo(dtype).max)

    def symbols(
        self, weights: Numbers, rows: slice = slice(None), out: Symbols | None = None
    ) -> Symbols:
        """The level of each weight ``[r, c]``, whose rows are these of the grid.

        ``out`` has two bytes a weight; it is not where symbols of eight bits or less end.
        """
        offset = scratch("places", weights.size, self.arithmetic).reshape(weights.shape)
        edge = self.first[rows] - self.step[rows] * self.arithmetic.type(0.5)
        np.subtract(weights, edge, out=offset, dtype=self.arithmetic)
        offset *= self._scale[rows]
        last = self.levels - 1
        if self.bits == 16:  # one more than the last might not fit into sixteen bits
            np.minimum(offset, self.arithmetic.type(last), out=offset)
        symbols = np.empty(weights.shape, np.uint16) if out is None else out
        np.copyto(symbols, offset, casting="unsafe")
        if symbols.max(initial=0) > last:  # rarely: it takes the largest weight
            # Against one number numpy compares one at a time, against an array many at once.
            np.minimum(symbols, np.full_like(symbols, last), out=symbols)
        return symbols.astype(np.uint8) if self.bits <= 8 else symbols

    def values(
        self, symbols: Symbols, rows: slice = slice(None), out: Numbers | None = None
    ) -> Numbers:
        """Each symbol's level ``[r, c]``, in the grid's arithmetic."""
        # Whole numbers become floating ones in the cache: numpy does that slowly on the way.
        places = scratch("places", symbols.size, self.arithmetic).reshape(symbols.shape)
        np.copyto(places, symbols)
        places *= self.step[rows]
        numbers: Numbers = np.add(places, self.first[rows], out=out)
        return numbers


def bits_of(levels: int) -> int:
    """Bits of the number of one of so many levels.

    >>> [bits_of(levels) for levels in (2, 3, 4, 5, 1 << 16)]
    [1, 2, 2, 3, 16]
    """
    return (levels - 1).bit_length()


FEWEST_COLUMNS = 16
"""Rows shorter than this share one range: two numbers for so few would outweigh what they save."""


def ranged(tensor: torch.Tensor, channels: bool) -> torch.Tensor:
    """A tensor as the matrix ``[ranges, elements that share one]``.

    >>> [ranged(torch.zeros(3, 4, 5), channels).shape[0] for channels in (False, True)]
    [1, 3]
    """
    by_row = channels and tensor.ndim >= 2 and tensor[0].numel() >= FEWEST_COLUMNS
    return tensor.reshape(len(tensor) if by_row else 1, -1)


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
    r"""Levels beyond which steps would be shorter than the numbers of a dtype are apart.

    Weights between 1 and :math:`1 + 2^{-20}` are at most nine different float32 numbers, and no
    quantiser needs more levels for them.

    >>> finest(torch.float32, np.float32([1]), np.float32([1 + 2**-20]))
    9
    >>> finest(torch.float32, np.float32([-1]), np.float32([1])) == MOST_LEVELS
    True
    """
    facts = torch.finfo(dtype)
    least = np.minimum(np.abs(low), np.abs(high)).astype(np.float64)
    smallest = np.where((low <= 0) & (high >= 0), facts.tiny, np.maximum(least, facts.tiny))
    apart = np.log2(facts.eps) + np.floor(np.log2(smallest))
    span = high.astype(np.float64) - low.astype(np.float64)
    # As logarithms: a span of 1 holds more numbers next to zero than a float64 can count.
    most = float((np.log2(span[span > 0]) - apart[span > 0]).max(initial=0.0))
    return MOST_LEVELS if most >= MOST_BITS else min(MOST_LEVELS, max(2, round(2.0**most) + 1))
