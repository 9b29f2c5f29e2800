"""Slow and obvious: every choice of bits tried, and the error of a paired mean read aloud."""

from __future__ import annotations

import itertools
import math

from references.packing import levels_of, quantised

from dovetail.pack.compressing import compress
from dovetail.pack.decompressing import decompress


def paired_rise(before, after):
    """Mean and standard error of the differences, example by example."""
    rises = [b - a for a, b in zip(before, after, strict=True)]
    mean = sum(rises) / len(rises)
    squares = sum((rise - mean) ** 2 for rise in rises)
    return mean, math.sqrt(squares / (len(rises) - 1) / len(rises))


def paired_rise_of_mistakes(before, after):
    """The four cells of a table of pairs, half an example added to each; from its covariance."""
    pairs = list(zip(before, after, strict=True))
    cells = dict.fromkeys(itertools.product((0, 1), repeat=2), 0.5)
    for pair in pairs:
        cells[pair] += 1
    n = sum(cells.values())
    mean = sum((b - a) * count / n for (a, b), count in cells.items())
    square = sum((b - a) ** 2 * count / n for (a, b), count in cells.items())
    return math.sqrt((square - mean**2) / n)


def rounded_by_loops(rows, levels, *, carry, price):
    """Each weight of a row to the level that is nearest and cheapest, perhaps after a carry.

    A level costs ``price`` squared steps for each bit, by its share of the nearest levels (with
    half a weight more for each level).
    """
    low = min(min(row) for row in rows)
    high = max(max(row) for row in rows)
    values = levels_of(low, high, levels)
    step = (high - low) / (levels - 1)
    symbols, _ = quantised([w for row in rows for w in row], low, high, levels)
    shares = [(symbols.count(q) + 0.5) / (len(symbols) + levels / 2) for q in range(levels)]

    def cost(value, q):
        return ((value - values[q]) / step) ** 2 - price * math.log2(shares[q])

    out = []
    for row in rows:
        debt, chosen = 0.0, []
        for weight in row:
            value = weight if weight == 0 else weight + debt * carry
            # Of the two levels around the value; beyond the ends there is one.
            near = sorted(range(levels), key=lambda q: abs(values[q] - value))[:2]
            outside = not values[0] <= value <= values[-1]
            best = near[0] if outside else min(near, key=lambda q: cost(value, q))
            chosen.append(0.0 if weight == 0 else values[best])
            if weight != 0:
                debt = max(-step, min(step, value - values[best]))
        out.append(chosen)
    return out


def smallest_of_all(state, loss, budgets, most_bits):
    """The bytes of the smallest container within each budget, over all bits of all tensors."""
    exact = len(compress(state, lossless=("*",)))
    smallest = dict.fromkeys(budgets, exact)
    for chosen in itertools.product(range(1, most_bits + 1), repeat=len(state)):
        data = compress(state, bits=dict(zip(state, chosen, strict=True)))
        rise = loss(decompress(data)) - loss(state)
        for budget in budgets:
            if rise <= budget:
                smallest[budget] = min(smallest[budget], len(data))
    return smallest
