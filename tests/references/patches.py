"""Patches, filters and pooling by loops over places."""

from __future__ import annotations

import numpy as np


def patches(image, size):
    """Each patch of ``[c, h, w]``, less its mean, as a row."""
    _, height, width = image.shape
    for top in range(height - size + 1):
        for left in range(width - size + 1):
            patch = image[:, top : top + size, left : left + size].astype(float).ravel()
            yield patch - patch.mean()


def answered(image, weights, bias, pool):
    """What filters ``[f, c, s, s]`` answer, cut at zero and averaged over squares."""
    count, _, size, _ = weights.shape
    _, height, width = image.shape
    rows, columns = ((side - size + 1) // pool for side in (height, width))
    found = np.zeros((count, rows, columns))
    for f in range(count):
        for i in range(rows * pool):
            for j in range(columns * pool):
                patch = image[:, i : i + size, j : j + size]
                value = max(0.0, (patch * weights[f]).sum() + bias[f])
                found[f, i // pool, j // pool] += value / pool**2
    return found
