"""Platonic projections as the thesis prints them: dense, in numpy, one pseudoinverse a layer."""

from __future__ import annotations

import numpy as np

ACTIVATIONS = {
    "tanh": np.tanh,
    "relu": lambda a: np.maximum(a, 0),
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "celu": lambda a: np.where(a > 0, a, np.expm1(np.minimum(a, 0))),
    "identity": lambda a: a,
}


def with_ones(z):
    return np.hstack([np.ones((len(z), 1)), z])


def layer_for(z, y, projection, alpha=1.0, beta=1.0):
    """Figure 7.3, one layer: ``projection [1 + d + k, w]`` to ``[1 + d, w]``, biases first."""
    target = alpha * np.hstack([with_ones(z), beta * y]) @ projection
    return np.linalg.pinv(with_ones(z)) @ target


def network(x, y, projections, activation, alpha=1.0, beta=1.0):
    """Figure 7.3 for any depth, and what comes out: ``(weights of all layers, outputs)``."""
    z, weights = x, []
    for projection in projections:
        weights.append(layer_for(z, y, projection, alpha, beta))
        z = ACTIVATIONS[activation](with_ones(z) @ weights[-1])
    weights.append(np.linalg.pinv(with_ones(z)) @ y)
    return weights, with_ones(z) @ weights[-1]


def ridge(z, target, penalty):
    """Least squares with a penalty on all weights but the biases: ``[1 + d, c]``."""
    wide = with_ones(z)
    punished = penalty * np.eye(wide.shape[1])
    punished[0, 0] = 0
    return np.linalg.solve(wide.T @ wide + punished, wide.T @ target)


def distance(z, y):
    """LSD, ones among the columns."""
    wide = with_ones(z)
    return np.sum((y - wide @ np.linalg.pinv(wide) @ y) ** 2) / len(y)


def platonic_components(z, y, beta, width):
    """The first right singular vectors of the centred augmented matrix ``[d + k, width]``."""
    a = np.hstack([z, beta * y])
    return np.linalg.svd(a - a.mean(0), full_matrices=False)[2][:width].T


def first_component(z):
    return np.linalg.svd(z - z.mean(0), full_matrices=False)[2][0]


def evenly_spaced(places, count):
    """Figure 7.14 from its sorting on (one too few of them where ``count`` is all rows)."""
    order = np.argsort(places, kind="stable")
    n = len(order)
    return order[np.round(np.arange(0, n - 1, n / count)).astype(int)]


def importance(y, predictions, decay):
    """The moving average of each row's squared errors over several predictions."""
    found = np.ones(len(y))
    for predicted in predictions:
        for j in range(len(y)):
            error = sum((y[j, c] - predicted[j, c]) ** 2 for c in range(y.shape[1]))
            found[j] = decay * found[j] + (1 - decay) * error
    return found


def hat(z, penalty):
    """The matrix that turns targets into fitted values."""
    return with_ones(z) @ ridge(z, np.eye(len(z)), penalty)


def cross_validated(z, y, penalty):
    """Generalised cross-validation by the hat matrix itself, up to a factor of ``n``."""
    matrix = hat(z, penalty)
    return np.sum((y - matrix @ y) ** 2) / (1 - np.trace(matrix) / len(z)) ** 2


def left_out(z, y, penalty):
    """The summed squared error of each row under the fit to all others."""
    total = 0.0
    for j in range(len(z)):
        others = np.arange(len(z)) != j
        weights = ridge(z[others], y[others], penalty)
        total += np.sum((y[j] - with_ones(z[j : j + 1]) @ weights) ** 2)
    return total


def scatter(a, weights):
    """Weighted mean, and the weighted scatter about it, one row at a time."""
    mean = sum(w * row for w, row in zip(weights, a, strict=True)) / sum(weights)
    products = (w * np.outer(row - mean, row - mean) for w, row in zip(weights, a, strict=True))
    return mean, sum(products)
