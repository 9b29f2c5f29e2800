"""Algorithms 1 and 2 of "Efficient deep learning", chapter 3, a number at a time, in float64.

With the corrections: both sides count alike, symbols begin at 0, and the bits are rounded up; and
with levels that are multiples of the step, so that zero is one of them.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter


def quantised(weights, low, high, levels):
    """The level's number of each weight, and how far (in steps) each lies from the nearest tie."""
    values = levels_of(low, high, levels)
    step = (high - low) / (levels - 1)
    symbols, margins = [], []
    for w in weights:
        distances = [abs(w - value) for value in values]
        nearest, second = sorted(distances)[:2]
        symbols.append(distances.index(nearest))
        margins.append((second - nearest) / step)
    return symbols, margins


def levels_of(low, high, levels):
    """All levels: multiples of the step around zero, or from the smallest weight up."""
    step = (high - low) / (levels - 1)
    begin = math.floor(low / step + 0.5) * step if low <= 0 <= high else low
    return [begin + q * step for q in range(levels)]


def bins(weights, low, high, bits):
    """The bin of each weight, as the histogram of the entropy rule counts them."""
    return [min(math.floor((w - low) / (high - low) * 2**bits), 2**bits - 1) for w in weights]


def entropy(symbols):
    counts = Counter(symbols)
    total = len(symbols)
    return -sum(n / total * math.log2(n / total) for n in counts.values())


def bits_by_entropy(weights, probe_bits, extra_bits):
    return math.ceil(entropy(bins(weights, min(weights), max(weights), probe_bits))) + extra_bits


def bits_by_gradient(gradients, extra_bits):
    size = math.sqrt(sum(g * g for g in gradients) / len(gradients))
    return math.ceil(math.log2(size + 1)) + extra_bits


def huffman_bits(symbols):
    """Bits of a Huffman code, by building its tree and walking it."""
    heap = [(n, i, [symbol]) for i, (symbol, n) in enumerate(Counter(symbols).items())]
    heapq.heapify(heap)
    depth = Counter()
    while len(heap) > 1:
        a, b = heapq.heappop(heap), heapq.heappop(heap)
        for symbol in a[2] + b[2]:
            depth[symbol] += 1
        heapq.heappush(heap, (a[0] + b[0], a[1], a[2] + b[2]))
    return sum(n * depth[symbol] for symbol, n in Counter(symbols).items())
