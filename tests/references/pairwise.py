"""The eight pairwise objectives read aloud: visit every pair, in plain floats.

Nothing here is vectorised, and nothing is shared with the code under test.
"""

from __future__ import annotations

import math

ALIKE, DIFFERENT = "alike", "different"


def unit(row):
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row] if length > 0 else [0.0 for _ in row]


def kernel_by_pairs(features):
    rows = [unit(row) for row in features]
    return [[sum(a * b for a, b in zip(u, v, strict=True)) for v in rows] for u in rows]


def relation_of_labels(labels):
    return lambda i, j: ALIKE if labels[i] == labels[j] else DIFFERENT


def relation_of_masks(same, different):
    """What either triangle says holds both ways; None is unknown."""

    def relation(i, j):
        if i == j or same[i][j] or same[j][i]:
            return ALIKE
        return DIFFERENT if different[i][j] or different[j][i] else None

    return relation


def pairwise_by_pairs(kind, features, relation, beta, alpha=1.0):
    """One objective over lists of floats; ``relation(i, j)`` is alike, different or None."""
    k = kernel_by_pairs(features)
    n = len(k)
    everything = [(i, j) for i in range(n) for j in range(n) if relation(i, j) is not None]
    off_diagonal = [(i, j) for i, j in everything if i != j]
    upper = [(i, j) for i, j in everything if i < j]
    negative = [(i, j) for i, j in everything if relation(i, j) == DIFFERENT]

    def ideal(i, j):
        return alpha if relation(i, j) == ALIKE else beta

    def alignment(pairs):
        top = sum(k[i][j] * ideal(i, j) for i, j in pairs)
        ours = sum(k[i][j] ** 2 for i, j in pairs)
        theirs = sum(ideal(i, j) ** 2 for i, j in pairs)
        return top / math.sqrt(ours * theirs) if ours > 0 else 0.0

    def squares(pairs):
        return -sum((k[i][j] - ideal(i, j)) ** 2 for i, j in pairs) / len(pairs)

    if kind == "al":
        return alignment(everything)
    if kind == "utal":
        return alignment(upper)
    if kind == "nmse":
        return squares(everything)
    if kind == "cts":
        alike = sum(math.exp(k[i][j]) for i, j in off_diagonal if relation(i, j) == ALIKE)
        return alike / sum(math.exp(k[i][j]) for i, j in off_diagonal)
    if kind == "al-neo":
        top = beta * sum(k[i][j] for i, j in negative)
        sizes = math.sqrt(len(negative)) * math.sqrt(sum(k[i][j] ** 2 for i, j in negative))
        return top / (abs(beta) * sizes)
    if kind == "utal-neo":
        return alignment([(i, j) for i, j in upper if relation(i, j) == DIFFERENT])
    if kind == "cts-neo":
        return -sum(math.exp(k[i][j]) for i, j in negative) / len(negative)
    if kind == "nmse-neo":
        return squares(negative)
    raise ValueError(kind)
