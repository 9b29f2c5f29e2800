r"""Symbols to bytes and back: tokens through a Huffman coder, the rest of each symbol as raw bits.

A :class:`Cut` divides the numbers from 0 up into at most 256 intervals whose lengths are powers of
two.  A number :math:`q` in interval :math:`t`, which begins at :math:`b_t` and has length
:math:`2^{w_t}`, becomes the *token* :math:`t`, one byte for the Huffman coder, and :math:`w_t` raw
bits of :math:`q - b_t`.  Where the density of the numbers hardly changes within an interval, raw
bits cost what a perfect code would.  They are written by place: the lowest bit of all numbers that
have one, eight to a byte, then the second, and so on.

Huffman codes spend at least a bit on a token, and lose much of one where a token is far commoner
than the others (pruned weights, heavy tails, few bits).  A :class:`Code` can therefore *peel* the
commonest tokens off before the coder sees the rest, in one of two ways:

together
    A number below :math:`B` says for each weight which of the :math:`B - 1` commonest tokens it has
    (or, when no others are left, which of all :math:`B`), or that it has none of them; as many such
    numbers as fit are multiplied into one byte, so that the coder sees them together.
gaps
    For a single token: how often it comes before each other one.

Only the tokens that were not peeled off follow, perhaps to be peeled again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.core.errors import FormatError
from dovetail.pack.quantise import MOST_BITS, Symbols
from dovetail.pack.streams import Reader, Run, written
from dovetail.pack.threads import LARGEST, scratch

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
            raise FormatError("a code with tokens that cannot be")
        if (count := sum(1 << w for w in self.widths)) != 1 << self.bits:
            raise FormatError(f"the tokens hold {count} numbers instead of {1 << self.bits}")

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


BLOCK = LARGEST
"""Elements are coded so many at a time: few enough for a processor's cache, and so many that its
threads seldom wait for the interpreter between two operations."""

MOST_PEELS, LARGEST_BASE = 4, 16


@dataclass(frozen=True)
class Peel:
    """Tokens that are coded before the others, together or by their gaps."""

    tokens: tuple[int, ...]
    gaps: bool = False


@dataclass(frozen=True)
class Code:
    """How a tensor's symbols of ``bits`` bits are coded.

    ``widths`` are the raw bits of each token, in the order of the symbols; ``peels`` what is
    peeled off, round by round.
    """

    bits: int
    widths: tuple[int, ...]
    peels: tuple[Peel, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MOST_BITS:
            raise FormatError(f"symbols of {self.bits} bits; there are 1 to {MOST_BITS}")
        peeled = [token for peel in self.peels for token in peel.tokens]
        known = all(0 <= token < len(self.cut.widths) for token in (0, *peeled))
        if not known or len(set(peeled)) < len(peeled) or len(self.peels) > MOST_PEELS:
            raise FormatError("a code peels tokens that it cannot")
        for peel, others in self.rounds():
            fits = not peel.gaps or (len(peel.tokens) == 1 and others)
            if not fits or not 2 <= len(peel.tokens) + others <= LARGEST_BASE:
                raise FormatError("a code peels tokens in a way that it cannot")

    @cached_property
    def cut(self) -> Cut:
        """Symbols as tokens and raw bits."""
        return Cut(self.bits, self.widths)

    @cached_property
    def gaps(self) -> Cut:
        """Gaps within a block, cut so that a geometric density hardly changes in an interval."""
        return octaves(BLOCK.bit_length() - 1, 4, 3)

    def rounds(self) -> list[tuple[Peel, bool]]:
        """Each peel, and whether tokens are left after it."""
        remaining, rounds = len(self.widths), []
        for peel in self.peels:
            remaining -= len(peel.tokens)
            rounds.append((peel, remaining > 0))
        return rounds


def encode(symbols: Symbols, code: Code) -> list[bytes]:
    """The bytes of a flat block of symbols, in pieces.

    >>> code = Code(3, (1, 1, 1, 1), (Peel((2,), gaps=True), Peel((0, 1, 3))))
    >>> data = b"".join(encode(np.array([4, 5, 0, 4], np.uint8), code))
    >>> decode(data, 4, code)
    array([4, 5, 0, 4], dtype=uint8)
    """
    return written(_runs(symbols, code.cut.tokens(symbols), code))


def decode(data: bytes | memoryview, count: int, code: Code, out: Symbols | None = None) -> Symbols:
    """The ``count`` symbols that :func:`encode` was given; FormatError for other bytes.

    Memory for them may be lent; whether it was used is seen from what comes back.
    """
    reader = Reader(data)
    tokens = _read_tokens(reader, count, code, code.rounds())
    symbols = code.cut.numbers(tokens, reader, out)
    reader.end()
    return symbols


def a_byte_holds(base: int) -> int:
    """How many numbers below ``base`` fit into one byte.

    >>> [a_byte_holds(base) for base in (2, 3, 4, 6, 16)]
    [8, 5, 4, 3, 2]
    """
    count = 1
    while base ** (count + 1) <= 256:
        count += 1
    return count


def _runs(symbols: Symbols, tokens: Bytes, code: Code) -> Iterator[Run]:
    rest, others = tokens, True
    for peel, others in code.rounds():
        if peel.gaps:
            where = np.flatnonzero(rest != peel.tokens[0])
            gaps = (np.diff(where, prepend=-1) - 1).astype(code.gaps.kind)
            yield len(where)
            gap_tokens = code.gaps.tokens(gaps)
            yield gap_tokens, True
            yield from code.gaps.raw(gaps, gap_tokens)
            rest = rest[where]
        else:
            number = np.full(MOST_TOKENS, len(peel.tokens), np.uint8)
            number[list(peel.tokens)] = np.arange(len(peel.tokens))
            numbers = number[rest]
            yield _multiplied(numbers, len(peel.tokens) + others), True
            rest = rest[numbers == len(peel.tokens)] if others else rest[:0]
    if others:
        yield rest, True
    yield from code.cut.raw(symbols, tokens)


def _read_tokens(reader: Reader, count: int, code: Code, rounds: list[tuple[Peel, bool]]) -> Bytes:
    if not rounds:
        tokens, known = reader.run(count), len(code.widths)
        if count and known < MOST_TOKENS and int(tokens.max()) >= known:
            raise FormatError("a token that its code does not have")
        return tokens
    (peel, others), *later = rounds
    if peel.gaps:
        where = _read_gaps(reader, count, code.gaps)
        tokens = np.full(count, peel.tokens[0], np.uint8)
    else:
        base = len(peel.tokens) + others
        numbers = _divided(reader.run(-(-count // a_byte_holds(base))), base, count)
        tokens = np.asarray((*peel.tokens, 0), np.uint8)[numbers]
        where = np.flatnonzero(numbers == len(peel.tokens))
    if others:
        tokens[where] = _read_tokens(reader, len(where), code, later)
    return tokens


def _read_gaps(reader: Reader, count: int, gaps: Cut) -> Symbols:
    """Where, among ``count`` tokens, those are that were not peeled off."""
    many = reader.number()
    if many > count:
        raise FormatError("more gaps than tokens")
    tokens = reader.run(many)
    if many and int(tokens.max()) >= len(gaps.widths):
        raise FormatError("a gap that cannot be")
    where = np.cumsum(gaps.numbers(tokens, reader).astype(np.int64) + 1) - 1
    if many and int(where[-1]) >= count:
        raise FormatError("gaps that reach beyond the end")
    return where


def _multiplied(numbers: Bytes, base: int) -> Bytes:
    """Numbers below ``base``, as many to a byte as it holds; the last byte is filled with zeros."""
    per_byte = a_byte_holds(base)
    count = -(-len(numbers) // per_byte)
    columns = np.zeros((count, per_byte), np.uint8)
    columns.reshape(-1)[: len(numbers)] = numbers
    out = columns[:, per_byte - 1].copy()
    for place in reversed(range(per_byte - 1)):
        out *= np.uint8(base)
        out += columns[:, place]
    return out


def _divided(data: Bytes, base: int, count: int) -> Bytes:
    """The numbers that :func:`_multiplied` was given."""
    per_byte = a_byte_holds(base)
    if len(data) and int(data.max()) >= base**per_byte:
        raise FormatError("a byte holds numbers that are too large")
    table = (np.arange(256)[:, None] // base ** np.arange(per_byte) % base).astype(np.uint8)
    numbers = table[data].reshape(-1)
    if numbers[count:].any():
        raise FormatError("the last byte is not filled with zeros")
    return numbers[:count]
