r"""Symbols to bytes and back: tokens through a Huffman coder, the rest of each symbol as raw bits.

Huffman codes spend at least a bit on a token, and lose much of one where a token is far commoner
than the others (pruned weights, heavy tails, few bits).  A :class:`Plan` can therefore *peel* the
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

import numpy as np

from dovetail.core.errors import FormatError
from dovetail.pack.cuts import MOST_TOKENS, Bytes, Cut, octaves
from dovetail.pack.quantise import MOST_BITS, Symbols
from dovetail.pack.scratch import LARGEST
from dovetail.pack.streams import Reader, Run, written

__all__ = ["BLOCK", "MOST_PEELS", "Peel", "Plan", "a_byte_holds", "decode", "encode"]

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
class Plan:
    """How a tensor's symbols of ``bits`` bits are coded.

    ``widths`` are the raw bits of each token, in the order of the symbols; ``peels`` what is
    peeled off, round by round; ``block`` the most symbols coded together.
    """

    bits: int
    widths: tuple[int, ...]
    peels: tuple[Peel, ...] = ()
    block: int = BLOCK

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= MOST_BITS:
            raise FormatError(f"symbols of {self.bits} bits; there are 1 to {MOST_BITS}")
        peeled = [token for peel in self.peels for token in peel.tokens]
        known = all(0 <= token < len(self.cut.widths) for token in (0, *peeled))
        if not known or len(set(peeled)) < len(peeled) or len(self.peels) > MOST_PEELS:
            raise FormatError("a plan peels tokens that it cannot")
        for peel, others in self.rounds():
            fits = len(peel.tokens) == 1 and others if peel.gaps else True
            if not fits or not 2 <= len(peel.tokens) + others <= LARGEST_BASE:
                raise FormatError("a plan peels tokens in a way that it cannot")

    @cached_property
    def cut(self) -> Cut:
        """Symbols as tokens and raw bits."""
        return Cut(self.bits, self.widths)

    @cached_property
    def gaps(self) -> Cut:
        """Gaps within a block, cut so that a geometric density hardly changes in an interval."""
        return octaves(self.block.bit_length() - 1, 4, 3)

    def rounds(self) -> list[tuple[Peel, bool]]:
        """Each peel, and whether tokens are left after it."""
        left, rounds = len(self.widths), []
        for peel in self.peels:
            left -= len(peel.tokens)
            rounds.append((peel, left > 0))
        return rounds


def encode(symbols: Symbols, plan: Plan) -> list[bytes]:
    """The bytes of a flat block of symbols, in pieces.

    >>> plan = Plan(3, (1, 1, 1, 1), (Peel((2,), gaps=True), Peel((0, 1, 3))))
    >>> data = b"".join(encode(np.array([4, 5, 0, 4], np.uint8), plan))
    >>> decode(data, 4, plan)
    array([4, 5, 0, 4], dtype=uint8)
    """
    tokens = plan.cut.tokens(symbols)
    return written(_runs(symbols, tokens, plan))


def decode(data: bytes | memoryview, count: int, plan: Plan, out: Symbols | None = None) -> Symbols:
    """The ``count`` symbols that :func:`encode` was given; FormatError for other bytes.

    Memory for them may be lent; whether it was used is seen from what comes back.
    """
    reader = Reader(data)
    tokens = _read_tokens(reader, count, plan, plan.rounds())
    symbols = plan.cut.numbers(tokens, reader, out)
    reader.end()
    return symbols


def a_byte_holds(base: int) -> int:
    """How many numbers below ``base`` fit into one byte.

    >>> [a_byte_holds(base) for base in (2, 3, 4, 6, 16)]
    [8, 5, 4, 3, 2]
    """
    held = 1
    while base ** (held + 1) <= 256:
        held += 1
    return held


def _runs(symbols: Symbols, tokens: Bytes, plan: Plan) -> Iterator[Run]:
    rest, others = tokens, True
    for peel, others in plan.rounds():
        if peel.gaps:
            where = np.flatnonzero(rest != peel.tokens[0])
            gaps = (np.diff(where, prepend=-1) - 1).astype(plan.gaps.kind)
            yield len(where)
            gap_tokens = plan.gaps.tokens(gaps)
            yield gap_tokens, True
            yield from plan.gaps.raw(gaps, gap_tokens)
            rest = rest[where]
        else:
            number = np.full(MOST_TOKENS, len(peel.tokens), np.uint8)
            number[list(peel.tokens)] = np.arange(len(peel.tokens))
            numbers = number[rest]
            yield _multiplied(numbers, len(peel.tokens) + others), True
            rest = rest[numbers == len(peel.tokens)] if others else rest[:0]
    if others:
        yield rest, True
    yield from plan.cut.raw(symbols, tokens)


def _read_tokens(reader: Reader, count: int, plan: Plan, rounds: list[tuple[Peel, bool]]) -> Bytes:
    if not rounds:
        tokens, known = reader.run(count), len(plan.widths)
        if count and known < MOST_TOKENS and int(tokens.max()) >= known:
            raise FormatError("a token that the plan does not have")
        return tokens
    (peel, others), *later = rounds
    if peel.gaps:
        where = _read_gaps(reader, count, plan.gaps)
        tokens = np.full(count, peel.tokens[0], np.uint8)
    else:
        base = len(peel.tokens) + others
        numbers = _divided(reader.run(-(-count // a_byte_holds(base))), base, count)
        tokens = np.asarray((*peel.tokens, 0), np.uint8)[numbers]
        where = np.flatnonzero(numbers == len(peel.tokens))
    if others:
        tokens[where] = _read_tokens(reader, len(where), plan, later)
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
    held = a_byte_holds(base)
    count = -(-len(numbers) // held)
    columns = np.zeros((count, held), np.uint8)
    columns.reshape(-1)[: len(numbers)] = numbers
    out = columns[:, held - 1].copy()
    for place in reversed(range(held - 1)):
        out *= np.uint8(base)
        out += columns[:, place]
    return out


def _divided(data: Bytes, base: int, count: int) -> Bytes:
    """The numbers that :func:`_multiplied` was given."""
    held = a_byte_holds(base)
    if len(data) and int(data.max()) >= base**held:
        raise FormatError("a byte holds numbers that are too large")
    table = (np.arange(256)[:, None] // base ** np.arange(held) % base).astype(np.uint8)
    numbers = table[data].reshape(-1)
    if numbers[count:].any():
        raise FormatError("the last byte is not filled with zeros")
    return numbers[:count]
