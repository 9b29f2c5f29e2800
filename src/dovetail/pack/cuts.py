r"""Whole numbers as a token and raw bits.

A :class:`Cut` divides the numbers from 0 up into at most 256 intervals whose lengths are powers of
two.  A number :math:`q` in interval :math:`t`, which begins at :math:`b_t` and has length
:math:`2^{w_t}`, becomes the *token* :math:`t`, one byte for the Huffman coder, and :math:`w_t` raw
bits of :math:`q - b_t`.  Where the density of the numbers hardly changes within an interval, raw
bits cost what a perfect code would.

Raw bits are written by place: the lowest bit of all numbers that have one, eight to a byte, then
the second, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core.errors import FormatError
from dovetail.pack.scratch import scratch
from dovetail.pack.streams import Reader, Run

__all__ = ["MOST_TOKENS", "Bytes", "Cut", "octaves"]

MOST_TOKENS = 256

Bytes = NDArray[np.uint8]
Numbers = NDArray[Any]


@dataclass(frozen=True)
class Cut:
    """``2 ** bits`` numbers in intervals of ``2 ** width``, one after another.

    >>> Cut(3, (2, 1, 1)).begins.tolist()
    [0, 4, 6]
    >>> Cut(3, (2, 1))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.FormatError: the tokens hold 6 numbers instead of 8
    """

    bits: int
    widths: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.widths) > MOST_TOKENS or not all(0 <= w <= self.bits for w in self.widths):
            raise FormatError("a plan with tokens that cannot be")
        if (held := sum(1 << w for w in self.widths)) != 1 << self.bits:
            raise FormatError(f"the tokens hold {held} numbers instead of {1 << self.bits}")

    @cached_property
    def kind(self) -> np.dtype[Any]:
        """The smallest integers that hold a number."""
        return np.dtype(np.uint8 if self.bits <= 8 else np.uint16 if self.bits <= 16 else np.uint32)

    @cached_property
    def lengths(self) -> Numbers:
        """How many numbers each token stands for."""
        return np.left_shift(1, np.asarray(self.widths, np.int64))

    @cached_property
    def begins(self) -> Numbers:
        """The first number of each token."""
        return (np.cumsum(self.lengths) - self.lengths).astype(self.kind)

    @cached_property
    def even(self) -> int | None:
        """The width, if all tokens have the same."""
        return self.widths[0] if len(set(self.widths)) == 1 else None

    @cached_property
    def width_of(self) -> Bytes:
        """The raw bits of each token."""
        return np.asarray(self.widths, np.uint8)

    @cached_property
    def _token_of(self) -> Bytes:
        return np.repeat(np.arange(len(self.widths)), self.lengths).astype(np.uint8)

    def tokens(self, numbers: Numbers) -> Bytes:
        """The token of each number.

        >>> Cut(3, (2, 1, 1)).tokens(np.array([0, 3, 4, 7], np.uint8))
        array([0, 0, 1, 2], dtype=uint8)
        """
        if self.even is None:
            return self._token_of[numbers]
        if numbers.dtype == np.uint8 and not self.even:
            return numbers
        tokens = np.empty(len(numbers), np.uint8)
        return np.right_shift(numbers, self.even, out=tokens, casting="unsafe")

    def raw(self, numbers: Numbers, tokens: Bytes) -> Iterator[Run]:
        """The raw bits of numbers with these tokens."""
        if self.even is not None:
            widths, offsets = None, numbers
        else:
            widths, offsets = self.width_of[tokens], numbers - self.begins[tokens]
        for place in range(max(self.widths)):
            some = offsets if widths is None else offsets[widths > place]
            bit = scratch("bits", len(some), np.uint8 if place < 8 else some.dtype)
            np.bitwise_and(some, 1 << place, out=bit, casting="unsafe")
            yield np.packbits(bit.astype(bool) if place > 7 else bit), False

    def numbers(self, tokens: Bytes, reader: Reader, out: Numbers | None = None) -> Numbers:
        """The numbers of tokens, whose raw bits come next; in ``out`` where that is faster."""
        if self.even is None:
            numbers, widths = self.begins[tokens], self.width_of[tokens]
            for place in range(max(self.widths)):
                wide = np.flatnonzero(widths > place)
                numbers[wide] += _bits(reader, len(wide)).astype(self.kind) << place
            return numbers
        if not self.even:
            return tokens.astype(self.kind, copy=False)
        numbers = np.empty(len(tokens), self.kind) if out is None else out
        np.copyto(numbers, tokens)
        numbers <<= self.kind.type(self.even)
        for place in range(self.even):
            bits = scratch("bits", len(tokens), self.kind)
            np.copyto(bits, _bits(reader, len(tokens)))  # numpy is slow where kinds differ
            if place:
                bits <<= self.kind.type(place)
            numbers |= bits
        return numbers


def octaves(bits: int, direct: int, parts: int) -> Cut:
    """Numbers below ``2 ** direct`` as they are, and ``2 ** parts`` tokens an octave above.

    >>> octaves(4, 2, 1).widths
    (0, 0, 0, 0, 1, 1, 2, 2)
    """
    above = [octave - parts for octave in range(direct, bits) for _ in range(1 << parts)]
    return Cut(bits, (0,) * (1 << direct) + tuple(above))


def _bits(reader: Reader, count: int) -> Bytes:
    bits = np.unpackbits(reader.run(-(-count // 8)))
    if bits[count:].any():
        raise FormatError("the last byte is not filled with zeros")
    return bits[:count]
