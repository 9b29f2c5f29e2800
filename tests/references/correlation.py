"""Correlation of channels, read aloud: numpy for one pair, every permutation tried."""

from __future__ import annotations

from itertools import permutations

import numpy as np


def values_of(features, channel):
    """All values of one channel, image by image and position by position."""
    return np.array([float(v) for image in features for v in image[channel].reshape(-1)])


def one_by_one(a, b):
    """r[i][j] of every two channels; a constant one correlates with nothing."""
    table = np.zeros((a.shape[1], b.shape[1]))
    for i in range(a.shape[1]):
        for j in range(b.shape[1]):
            x, y = values_of(a, i), values_of(b, j)
            if len(set(x)) > 1 and len(set(y)) > 1:
                table[i, j] = np.corrcoef(x, y)[0, 1]
    return table


def best_by_trying_all(table):
    """The largest sum over all permutations."""
    d = len(table)
    return max(sum(table[i, p[i]] for i in range(d)) for p in permutations(range(d)))
