"""Ridge regression by refitting, as a textbook says it: one problem for each row left out."""

from __future__ import annotations

import numpy as np


def head(x, y, penalty, weights=None):
    """Weights ``[d, k]`` and intercept ``[k]``: least squares with ``d`` rows that pull to zero.

    The column of ones has no such row, so the intercept is free.
    """
    root = np.ones(len(x)) if weights is None else np.sqrt(weights)
    d = x.shape[1]
    rows = np.c_[x, np.ones(len(x))] * root[:, None]
    pulling = np.c_[np.sqrt(penalty) * np.eye(d), np.zeros(d)]
    targets = np.r_[y * root[:, None], np.zeros((d, y.shape[1]))]
    solution = np.linalg.lstsq(np.r_[rows, pulling], targets, rcond=None)[0]
    return solution[:-1], solution[-1]


def left_out(x, y, penalty, weights=None):
    """Predictions ``[n, k]``, each by a head that was fitted without the row."""
    predictions = []
    for row in range(len(x)):
        others = np.arange(len(x)) != row
        mine = None if weights is None else weights[others]
        a, b = head(x[others], y[others], penalty, mine)
        predictions.append(x[row] @ a + b)
    return np.array(predictions)
