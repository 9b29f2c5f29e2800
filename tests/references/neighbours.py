"""Redundant examples by comparing each with each, in exact arithmetic where numbers allow it."""

from __future__ import annotations

from fractions import Fraction


def keep_by_hand(rows, labels, k):
    """An example goes if, of all others sorted by distance, every choice of k nearest is of its
    class: that is all those no farther than the k-th."""
    keep = []
    for i, row in enumerate(rows):
        others = sorted(
            (sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(row, other, strict=True)), j)
            for j, other in enumerate(rows)
            if j != i
        )
        reach = others[k - 1][0]
        keep.append(any(labels[j] != labels[i] for d, j in others if d <= reach))
    return keep
