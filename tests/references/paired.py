"""A paired difference of accuracies, read aloud: try every difference and every rate of losses."""

from __future__ import annotations

import numpy as np


def best_loss_rate(gained, lost, n, difference, tries=3001):
    """The most likely probability of a loss when gains are that much more probable."""
    q = np.linspace(max(0.0, -difference), (1 - difference) / 2, tries)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = [
            (gained, q + difference),
            (lost, q),
            (n - gained - lost, 1 - 2 * q - difference),
        ]
        likelihood = sum(
            np.where(count == 0, 0.0, count * np.log(np.clip(p, 0, 1))) for count, p in terms
        )
    return q[np.nanargmax(likelihood)]


def not_rejected(gained, lost, n, z=1.959964, steps=1001):
    """All differences on a grid that the score test lets stand: their ends."""
    kept = []
    for difference in np.linspace(-1, 1, steps)[1:-1]:
        q = best_loss_rate(gained, lost, n, difference)
        # one example counts +1 with probability q + difference, -1 with q, and 0 otherwise
        variance = (q + difference) + q - difference**2
        distance = (gained - lost) / n - difference
        if distance**2 <= z**2 * variance / n:
            kept.append(difference)
    return min(kept), max(kept)


def coverage(interval, n, gain, loss):
    """How often an interval holds the true difference: the sum over all outcomes there are."""
    total = 0.0
    factorial = np.cumprod([1.0, *range(1, n + 1)])
    for gained in range(n + 1):
        for lost in range(n + 1 - gained):
            rest = n - gained - lost
            ways = factorial[n] / (factorial[gained] * factorial[lost] * factorial[rest])
            low, high = interval(gained, lost, n)
            if low <= gain - loss <= high:
                total += ways * gain**gained * loss**lost * (1 - gain - loss) ** rest
    return total
