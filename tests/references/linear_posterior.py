"""Bayesian linear regression as a textbook writes it: dense matrices, float64, plain inverses."""

from __future__ import annotations

import numpy as np
from references.gram import jacobian


class Dense:
    """Everything about ``y = J w + e`` with ``w ~ N(0, diag(s))`` and ``e ~ N(0, diag(noise))``."""

    def __init__(self, model, x, residual, noise, scales, names=None):
        self.model, self.names = model, names
        every = [(n, p) for n, p in model.named_parameters() if names is None or n in names]
        self.prior = np.concatenate([np.full(p.numel(), scales.get(n, 1.0)) for n, p in every])
        j = self.rows(x)
        precision = np.diag(1 / self.prior) + j.T @ np.diag(1 / flat(noise)) @ j
        self.covariance_of_weights = np.linalg.inv(precision)
        self.weights = self.covariance_of_weights @ j.T @ (flat(residual) / flat(noise))
        marginal = j @ np.diag(self.prior) @ j.T + np.diag(flat(noise))
        sign, volume = np.linalg.slogdet(2 * np.pi * marginal)
        assert sign > 0
        fit = flat(residual) @ np.linalg.solve(marginal, flat(residual))
        self.log_evidence = -0.5 * (volume + fit)

    def rows(self, x):
        """The Jacobian, one row for each output of each input."""
        j = jacobian(self.model, x, self.names).double().numpy()
        return j.reshape(-1, j.shape[-1])

    def covariance(self, x):
        """``[m, o, m, o]``, without noise."""
        j = self.rows(x)
        m, o = len(x), len(j) // len(x)
        return (j @ self.covariance_of_weights @ j.T).reshape(m, o, m, o)

    def variance(self, x):
        """``[m, o, o]``, without noise."""
        joint = self.covariance(x)
        return np.stack([joint[i, :, i, :] for i in range(len(x))])


def flat(values):
    return np.asarray(values, dtype=np.float64).reshape(-1)
