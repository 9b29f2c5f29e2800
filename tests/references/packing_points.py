"""The points of accuracy that are expected to be lost, one example and one change at a time."""

from __future__ import annotations

import math


def expected_points(given, changed, temperature):
    """Rows of outputs before and after: how many points each example is expected to lose."""
    firsts, seconds, leads, changes = [], [], [], []
    for before, after in zip(given, changed, strict=True):
        first, second = sorted(range(len(before)), key=lambda c: -before[c])[:2]
        firsts.append(first)
        seconds.append(second)
        leads.append(before[first] - before[second])
        changes.append(after[first] - after[second] - leads[-1])
    nearest = min(range(len(given)), key=lambda i: leads[i])
    lost = []
    for i, (before, after) in enumerate(zip(given, changed, strict=True)):
        total = sum(math.exp(z / temperature) for z in before)
        chances = [math.exp(z / temperature) / total for z in before]
        answer = max(range(len(after)), key=lambda c: after[c])
        at_stake = chances[firsts[i]] - chances[seconds[i]]
        if answer not in (firsts[i], seconds[i]):
            lost.append(100 * (chances[firsts[i]] - chances[answer]))
            continue
        overtaken = sum(1 for change in changes if leads[i] + change < 0) / len(changes)
        if i == nearest:  # a lead u between 0 and the least, losing in proportion to u
            for change in changes:
                reach = min(1.0, max(0.0, -change) / leads[i])
                overtaken += reach**2 / 2 / len(changes)
        lost.append(100 * at_stake * overtaken)
    return lost
