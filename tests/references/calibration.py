"""Calibration read aloud: visit every example, one bin at a time; no tensor, no closed form."""

from __future__ import annotations

import math

import numpy as np


def answers(probs, labels):
    """How sure each answer is, and whether it is right."""
    found = []
    for row, label in zip(probs, labels, strict=True):
        best = max(range(len(row)), key=lambda j: row[j])
        found.append((row[best], best == label))
    return found


def nll(probs, labels):
    return sum(-math.log(row[y]) for row, y in zip(probs, labels, strict=True)) / len(probs)


def brier(probs, labels):
    total = 0.0
    for row, y in zip(probs, labels, strict=True):
        for j, p in enumerate(row):
            total += (p - (1.0 if j == y else 0.0)) ** 2
    return total / len(probs)


def equal_width(probs, labels, bins):
    """For each bin its ends and its members."""
    found = []
    for b in range(bins):
        low, high = b / bins, (b + 1) / bins
        members = [one for one in answers(probs, labels) if low < one[0] <= high]
        found.append((low, high, members))
    return found


def equal_mass(probs, labels, bins):
    """Sort, cut into groups, and let a group take in whatever equals its largest member."""
    members = sorted(answers(probs, labels))
    n, groups, start = len(members), [], 0
    for b in range(1, bins + 1):
        stop = max(b * n // bins, start)
        while start < stop < n and members[stop][0] == members[stop - 1][0]:
            stop += 1
        if stop > start:
            groups.append(members[start:stop])
        start = stop
    return groups


def error(groups):
    """The calibration error of groups of answers."""
    n = sum(len(group) for group in groups)
    total = 0.0
    for group in groups:
        if group:
            sure = sum(q for q, _ in group) / len(group)
            right = sum(r for _, r in group) / len(group)
            total += len(group) / n * abs(sure - right)
    return total


def likelihood_at(logits, labels, temperature):
    """The negative log-likelihood of softmax(logits / temperature)."""
    total = 0.0
    for row, y in zip(logits, labels, strict=True):
        scaled = [z / temperature for z in row]
        top = max(scaled)
        total += top + math.log(sum(math.exp(z - top) for z in scaled)) - scaled[y]
    return total / len(logits)


def best_temperature(logits, labels, low=0.05, high=20.0, steps=400):
    """The best of a grid, then the best of a finer one around it."""
    for _ in range(4):
        grid = np.geomspace(low, high, steps)
        best = int(np.argmin([likelihood_at(logits, labels, t) for t in grid]))
        low, high = grid[max(best - 1, 0)], grid[min(best + 1, steps - 1)]
        steps = 20
    return float(grid[best])


def crps(mean, std, y, steps=40_001, reach=12.0):
    """The squared distance of two distribution functions, summed along a fine line."""
    total = 0.0
    for m, s, observed in zip(mean, std, y, strict=True):
        low, high = min(m - reach * s, observed) - s, max(m + reach * s, observed) + s
        t = np.linspace(low, high, steps)
        below = np.array([0.5 * (1 + math.erf((x - m) / (s * math.sqrt(2)))) for x in t])
        gaps = (below - (t >= observed)) ** 2
        total += float(((gaps[1:] + gaps[:-1]) / 2 * np.diff(t)).sum())
    return total / len(mean)
