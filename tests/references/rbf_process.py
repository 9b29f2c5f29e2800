"""A Gaussian process by the joint covariance of old and new targets, pair by pair."""

from __future__ import annotations

import numpy as np
from scipy.stats import multivariate_normal


def kernel(a, b, lengths, scale):
    return np.array([[scale * np.exp(-0.5 * sum(((u - v) / lengths) ** 2)) for v in b] for u in a])


def log_evidence(x, y, lengths, scale, noise, mean):
    covariance = kernel(x, x, lengths, scale) + noise * np.eye(len(x))
    return multivariate_normal.logpdf(y, np.full(len(y), mean), covariance)


def predict(x, y, lengths, scale, noise, new, constant=0.0):
    """Mean and covariance of new targets; ``constant`` is the prior variance of the mean."""
    both = np.r_[x, new]
    joint = kernel(both, both, lengths, scale) + noise * np.eye(len(both)) + constant
    n = len(x)
    gain = joint[n:, :n] @ np.linalg.inv(joint[:n, :n])
    return gain @ y, joint[n:, n:] - gain @ joint[:n, n:]
