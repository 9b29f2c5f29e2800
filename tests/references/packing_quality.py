"""Slow and obvious: every choice of bits tried, and the error of a paired mean read aloud."""

from __future__ import annotations

import itertools
import math

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


def carried_by_loops(rows, bits):
    """Each weight of a row to the nearest centre, after adding what those before it lost."""
    low = min(min(row) for row in rows)
    high = max(max(row) for row in rows)
    step = (high - low) / 2**bits
    centres = [low + (k + 0.5) * step for k in range(2**bits)]
    out = []
    for row in rows:
        carry, chosen = 0.0, []
        for weight in row:
            value = weight + carry
            chosen.append(min(centres, key=lambda centre: abs(centre - value)))
            carry = max(-step / 2, min(step / 2, value - chosen[-1]))
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
