r"""Which code suits a tensor's symbols, judged from a histogram of them.

First the tokens.  Those of equal width (the top bits of a symbol) are coded several times faster
than others; where they would waste more than a little, tokens are fitted to the histogram: at first
there is one interval, and the one in which uniform raw bits waste most is halved, up to 256.
Then, as long as a Huffman coder would waste more than a little on the tokens, the commonest are
peeled off in the cheapest way.
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.pack.coding import LARGEST_BASE, MOST_PEELS, MOST_TOKENS, Code, Peel, a_byte_holds
from dovetail.pack.rules import entropy

_WORTH = 0.004
"""What is slower must save this share of the bits."""

_A_CODE = 1 << 17
"""zstd sends a new code after so many bytes, ..."""

_CODE_BITS, _FRAME_BITS = 3.0, 200.0
"""... which costs about so many bits for each token in it, and so many for whatever there is."""

_RAREST = 2.0**-11
"""Its codes have at most eleven bits."""

_PLENTY = 2.4
"""Below so many bits of collision entropy, seven bytes that come again are common, and mislead
zstd, which takes them for repeats."""

_ROUNDED = 1e-9
"""By more than this share sums in float64 are not off."""

_GOOD = 0.01
"""What a good code costs beyond the entropy."""

_GAPS = Code(1, (0, 0)).gaps
_BASES = (2, 3, 4, 6, LARGEST_BASE)

Counts = NDArray[Any]


def best_code(counts: Counts, bits: int, total: int) -> Code:
    """The code for ``total`` symbols of ``bits`` bits that are distributed like ``counts``.

    >>> best_code(np.ones(1 << 9), 9, 1000).widths == (9,)  # nothing to gain by any code
    True
    """
    counts = np.asarray(counts, np.float64) * (total / max(1.0, float(counts.sum())))
    floor = entropy(counts) * total
    best = min(
        ((width,) * (1 << bits - width) for width in range(max(0, bits - 8), bits + 1)),
        key=lambda widths: _least(counts, widths),
    )
    if _least(counts, best) > floor * (1 + 2 * _WORTH):
        fitted = _fitted(counts, bits)
        if _least(counts, fitted) < _least(counts, best) * (1 - _WORTH):
            best = fitted
    return Code(bits, best, _peels(_tokens(counts, best)))


def coded_bits(counts: Counts) -> float:
    """What bytes with these counts cost: coded, code included, or as they are if that is less.

    >>> coded_bits(np.full(256, 10.0)) == 8 * 2560
    True
    """
    there = np.asarray(counts, np.float64)
    there = there[there > 0]
    total = float(there.sum())
    if total == 0:
        return 0.0
    shares = there / total
    floored = np.maximum(shares, _RAREST)
    limited = total * float((shares * np.log2(shares / floored)).sum() + np.log2(floored.sum()))
    misled = 1 + max(0.0, _PLENTY + float(np.log2(np.square(shares).sum()))) / 10
    return min((_huffman(there) + limited) * misled + _code(total, len(there)), 8 * total)


def _peels(tokens: Counts) -> tuple[Peel, ...]:
    """What to peel off, round by round, as long as it pays."""
    peels: list[Peel] = []
    tokens = tokens.copy()  # minus one: peeled off
    while len(peels) < MOST_PEELS:
        there = tokens[tokens >= 0]
        direct = coded_bits(there)
        floor = entropy(there) * float(there.sum())
        if direct <= floor * (1 + 2 * _WORTH) + 200:
            break
        enough = direct * (1 - _WORTH)
        offers = _offers(tokens, enough)
        price, peel = min(offers, key=lambda offer: offer[0], default=(direct, Peel(())))
        if price >= enough:
            break
        peels.append(peel)
        tokens[list(peel.tokens)] = -1
        if not (tokens >= 0).any():
            break
    return tuple(peels)


def _offers(tokens: Counts, enough: float) -> list[tuple[float, Peel]]:
    """Ways to peel, each with its price if a good code is found for the rest.

    Those that cannot cost less than ``enough`` are left out: to price a code takes most of the time
    of packing small tensors, and by its entropy it is known that few are worth it.
    """
    there = int((tokens >= 0).sum())
    total = float(tokens[tokens >= 0].sum())
    order = np.argsort(-tokens, kind="stable")[:there]
    offers = []
    for base in _BASES:
        others = there > base
        peeled = order[: base - 1] if others else order
        if len(peeled) + others < 2:
            break
        rest = np.delete(tokens[order], range(len(peeled)))
        shares = np.append(tokens[peeled], [rest.sum()] * others) / total
        numbers, good = a_byte_holds(len(shares)), _good(rest)
        codes = _code(total / numbers, int((shares > 0).sum()) ** numbers)
        least = min(entropy(shares) * total + codes, 8 * total / numbers) + good
        if least * (1 - _ROUNDED) < enough:
            together = np.ones(1)
            for _ in range(numbers):
                together = np.multiply.outer(together, shares).reshape(-1)
            price = coded_bits(together * (total / numbers)) + good
            offers.append((price, Peel(tuple(peeled.tolist()))))
        if not others:
            break
    if there > 1:
        rest = tokens[order[1:]]
        offers.append(
            (_gap_bits(total, float(rest.sum())) + _good(rest), Peel((int(order[0]),), True))
        )
    return offers


def _gap_bits(total: float, others: float) -> float:
    """What the gaps between ``others`` among ``total`` tokens cost, if they fall at random."""
    if others < 1:
        return 8.0
    miss = 1 - others / total
    begins = _GAPS.begins.astype(np.float64)
    share = miss**begins - miss ** (begins + _GAPS.lengths).clip(max=max(1.0, total))
    counts = others * share
    return coded_bits(counts[counts > 0.01]) + float((counts * _GAPS.width_of).sum())


def _good(counts: Counts) -> float:
    """What counts cost under a good code."""
    total = float(counts.sum())
    return entropy(counts) * total * (1 + _GOOD) + _code(total, int((counts > 0).sum()))


def _least(counts: Counts, widths: tuple[int, ...]) -> float:
    tokens = _tokens(counts, widths)
    raw = float((tokens * np.asarray(widths)).sum())
    return raw + (entropy(tokens) * float(tokens.sum()) + _code(float(tokens.sum()), len(tokens)))


def _code(total: float, tokens: int) -> float:
    return max(1.0, total / _A_CODE) * (_FRAME_BITS + _CODE_BITS * tokens) if tokens > 1 else 0.0


def _tokens(counts: Counts, widths: tuple[int, ...]) -> Counts:
    lengths = np.left_shift(1, np.asarray(widths, np.int64))
    return np.add.reduceat(counts, np.cumsum(lengths) - lengths)


def _huffman(counts: Counts) -> float:
    """What a Huffman code spends: the sum of all merged pairs of the rarest."""
    heap = counts.tolist()
    heapq.heapify(heap)
    spent = 0.0
    while len(heap) > 1:
        rarest = heapq.heappop(heap)
        both = rarest + heap[0]
        spent += both
        heapq.heapreplace(heap, both)
    return spent


def _fitted(counts: Counts, bits: int) -> tuple[int, ...]:
    """At most 256 widths, halving again and again where raw bits waste most."""
    here, ideal = counts, _plogp(counts)  # bits, were every symbol coded by its own share
    wastes = []  # wastes[w][i]: of raw bits in the i-th interval of length 2**w
    for width in range(bits + 1):
        wastes.append(here * width - (ideal - _plogp(here)))
        if width < bits:
            here, ideal = here.reshape(-1, 2).sum(1), ideal.reshape(-1, 2).sum(1)
    heap = [(-float(wastes[bits][0]), bits, 0)]
    done: list[tuple[int, int]] = []
    while heap and len(heap) + len(done) < MOST_TOKENS:
        waste, width, place = heapq.heappop(heap)
        if width == 0 or waste > -2 * _CODE_BITS:
            done.append((place << width, width))
            continue
        for half in (2 * place, 2 * place + 1):
            heapq.heappush(heap, (-float(wastes[width - 1][half]), width - 1, half))
    done += [(place << width, width) for _, width, place in heap]
    return tuple(width for _, width in sorted(done))


def _plogp(counts: Counts) -> Counts:
    """``-n log2 n``, zero for nothing."""
    return -counts * np.log2(np.where(counts > 0, counts, 1.0))
