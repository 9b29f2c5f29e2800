"""Algorithms 1 and 2 of "Efficient deep learning", chapter 3, a number at a time, in float64.

With the corrections: both sides count from the smallest weight, the largest falls into the last
bin, symbols begin at 0, and the bits are rounded up.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter


def quantised(weights, low, high, bits):
    """The bin of each weight, and how far (in bins) each lies from the nearest edge of a bin."""
    symbols, margins = [], []
    for w in weights:
        place = (w - low) / (high - low) * 2**bits if high > low else 0.0
        symbols.append(min(math.floor(place), 2**bits - 1))
        margins.append(abs(place - round(place)))
    return symbols, margins


def centres(symbols, low, high, bits):
    return [low + (high - low) * (q + 0.5) / 2**bits for q in symbols]


def entropy(symbols):
    counts = Counter(symbols)
    total = len(symbols)
    return -sum(n / total * math.log2(n / total) for n in counts.values())


def bits_by_entropy(weights, probe_bits, extra_bits):
    symbols, _ = quantised(weights, min(weights), max(weights), probe_bits)
    return math.ceil(entropy(symbols)) + extra_bits


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
