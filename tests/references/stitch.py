"""Rows for a stitch, and the stitch itself, position by position."""

from __future__ import annotations

import numpy as np


def rows_of(features):
    """``[n, c]`` as they are; ``[n, c, h, w]`` one row for each position of each image."""
    if features.ndim == 2:
        return features
    n, _, h, w = features.shape
    return np.array([features[i, :, a, b] for i in range(n) for a in range(h) for b in range(w)])


def applied(features, weight, bias):
    """The affine map ``weight [k, c]``, ``bias [k]`` at every position."""
    if features.ndim == 2:
        return np.array([weight @ row + bias for row in features])
    n, _, h, w = features.shape
    made = np.zeros((n, len(bias), h, w))
    for i in range(n):
        for a in range(h):
            for b in range(w):
                made[i, :, a, b] = weight @ features[i, :, a, b] + bias
    return made
