"""From numbers to positions: round ticks, linear and logarithmic axes.

Ticks are computed with exact fractions, so that the third tick of 0.1 is 0.3 and not
0.30000000000000004, and so that no finite input, however large or small, overflows on the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property


def span_of(values: Iterable[float]) -> tuple[float, float]:
    """The least and greatest finite value, made apart when there is only one.

    >>> span_of([3.0, float("nan"), 5.0])
    (3.0, 5.0)
    >>> span_of([]), span_of([0.0]), span_of([10.0])
    ((0.0, 1.0), (-1.0, 1.0), (9.0, 11.0))
    """
    finite = [float(value) for value in values if math.isfinite(value)]
    if not finite:
        return 0.0, 1.0
    low, high = min(finite), max(finite)
    if low < high:
        return low, high
    away = abs(low) / 10 or 1.0
    below, above = low - away, high + away
    return (below if math.isfinite(below) else low), (above if math.isfinite(above) else high)


def nice_ticks(low: float, high: float, *, most: int = 7, whole: bool = False) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, that enclose ``low`` and ``high``.

    ``whole`` keeps them integers, for axes that count.  There are at most ``most`` of them, unless
    the ends of a coarser grid would lie beyond the floating-point range.

    >>> nice_ticks(0.07, 0.93)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> nice_ticks(1, 3, whole=True)
    [1.0, 2.0, 3.0]
    """
    low, high = (low, high) if low < high else span_of([low])
    lower, upper = Fraction(low), Fraction(high)
    least = (upper - lower) / max(most - 1, 1)
    index = 3 * _decade(least)
    while _step(index) < least or (whole and index < 0):
        index += 1
    while True:
        step = _step(index)
        first, last = math.floor(lower / step), math.ceil(upper / step)
        if last - first + 1 <= max(most, 2) or step > abs(upper) + abs(lower):
            break
        index += 1
    ticks = [_float(step * k) for k in range(first, last + 1)]
    return sorted({tick for tick in ticks if math.isfinite(tick)})


def log_ticks(low: float, high: float, *, most: int = 7) -> list[float]:
    """Round positive numbers for a logarithmic axis that enclose ``low`` and ``high``.

    Powers of ten when there are enough of them; with 2 and 5, or only 3, between when few.

    >>> log_ticks(0.003, 20)
    [0.001, 0.01, 0.1, 1.0, 10.0, 100.0]
    >>> log_ticks(2, 30)
    [2.0, 5.0, 10.0, 20.0, 50.0]
    """
    first, last = _decade(Fraction(low)), _decade(Fraction(high))
    for digits in ((1, 2, 5), (1, 3), (1,)):
        grid = [_power(k) * d for k in range(first, last + 2) for d in digits]
        ticks = _enclosing(grid, Fraction(low), Fraction(high))
        if len(ticks) <= most:
            return ticks
    stride = math.ceil((last + 1 - first) / (most - 1))
    grid = [_power(first + stride * k) for k in range(most)]
    return _enclosing(grid, Fraction(low), Fraction(high))


@dataclass(frozen=True)
class Scale:
    """Maps ``low`` … ``high`` onto pixels ``start`` … ``end``, linearly or by logarithm.

    >>> Scale(0.0, 10.0, 100.0, 200.0)(2.5)
    125.0
    >>> Scale(1.0, 100.0, 0.0, 50.0, log=True)(10.0)
    25.0
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The position of a value; it must be finite, and positive on a logarithmic axis."""
        return self.start + (self.end - self.start) * self._share(value)

    def shows(self, value: float | None) -> bool:
        """Whether a value has a position at all.

        >>> Scale(1.0, 10.0, 0.0, 1.0, log=True).shows(0.0)
        False
        """
        return value is not None and math.isfinite(value) and (value > 0 or not self.log)

    def _share(self, value: float) -> float:
        power, low, high = self._ends
        at = math.log10(value) if self.log else math.ldexp(value, power)
        return (at - low) / (high - low) if high > low else 0.5

    @cached_property
    def _ends(self) -> tuple[int, float, float]:
        if self.log:
            return 0, math.log10(self.low), math.log10(self.high)
        # Scaled by a power of two: the difference of two huge or two tiny numbers stays finite.
        power = -math.frexp(max(abs(self.low), abs(self.high)))[1]
        return power, math.ldexp(self.low, power), math.ldexp(self.high, power)


def _step(index: int) -> Fraction:
    """The round steps in their order, …, 0.5, 1, 2, 5, 10, …: the one at 0 is 1."""
    return _power(index // 3) * (1, 2, 5)[index % 3]


def _decade(value: Fraction) -> int:
    """The power of ten at or below a positive number, exactly."""
    guess = len(str(value.numerator)) - len(str(value.denominator))
    return guess if _power(guess) <= value else guess - 1


def _power(exponent: int) -> Fraction:
    return Fraction(10) ** exponent


def _enclosing(grid: Sequence[Fraction], low: Fraction, high: Fraction) -> list[float]:
    """The least part of an ascending grid that holds low and high."""
    first = max((i for i, v in enumerate(grid) if v <= low), default=0)
    last = min((i for i, v in enumerate(grid) if v >= high), default=len(grid) - 1)
    ticks = (_float(value) for value in grid[first : max(last, first + 1) + 1])
    return sorted({tick for tick in ticks if 0 < tick < math.inf})


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
