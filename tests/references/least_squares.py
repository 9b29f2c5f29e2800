"""Least squares with an intercept, all rows at once: centre, call numpy, put the means back."""

from __future__ import annotations

import numpy as np


def best_map(x, y, ridge=0.0):
    """Weights ``[d, k]`` of least norm and intercept ``[k]``; a penalty is rows that pull to zero.

    The intercept has no such row: it follows from the means.
    """
    means = x.mean(0), y.mean(0)
    rows, targets = x - means[0], y - means[1]
    rows[:, np.ptp(x, axis=0) == 0] = 0.0  # the mean of equal numbers is rounded, too
    if ridge:
        rows = np.r_[rows, np.sqrt(ridge) * np.eye(x.shape[1])]
        targets = np.r_[targets, np.zeros((x.shape[1], y.shape[1]))]
    weights = np.linalg.lstsq(rows, targets, rcond=None)[0]
    return weights, means[1] - means[0] @ weights


def explained(x, y, weights, intercept):
    """One minus squared residuals over squared deviations, one number at a time."""
    left = varied = 0.0
    mean = y.mean(0)
    for row, target in zip(x, y, strict=True):
        for column in range(y.shape[1]):
            guess = sum(row[i] * weights[i, column] for i in range(len(row))) + intercept[column]
            left += (target[column] - guess) ** 2
            varied += (target[column] - mean[column]) ** 2
    return 1 - left / varied
