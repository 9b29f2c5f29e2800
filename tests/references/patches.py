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


def answered(image, weights, bias, pool, contrast):
    """What filters ``[f, c, s, s]`` answer to patches of like light and contrast, ``[2 f, ., .]``.

    Positive answers, then negative ones, averaged over squares.
    """
    count, _, size, _ = weights.shape
    _, height, width = image.shape
    rows, columns = ((side - size + 1) // pool for side in (height, width))
    found = np.zeros((2 * count, rows, columns))
    for f in range(count):
        for i in range(rows * pool):
            for j in range(columns * pool):
                patch = image[:, i : i + size, j : j + size].astype(float)
                alike = (patch - patch.mean()) / np.sqrt(patch.var() + contrast)
                value = (alike * weights[f]).sum() + bias[f]
                place = f if value > 0 else count + f
                found[place, i // pool, j // pool] += abs(value) / pool**2
    return found


def whitening(rows, share):
    """The symmetric matrix that makes rows ``[m, d]`` of mean zero nearly white."""
    covariance = rows.T @ rows / len(rows)
    values, vectors = np.linalg.eigh(
        covariance + share * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    )
    return vectors @ np.diag(values**-0.5) @ vectors.T
