"""A softmax over a linear model, by general-purpose optimisation over the weights themselves."""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize


def softmax(logits):
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return shifted / shifted.sum(1, keepdims=True)


class Dense:
    """``g = m + F w``, ``w ~ N(0, I)``, labels by softmax; ``F [n, c, p]`` includes the scales."""

    def __init__(self, features, mean, labels):
        self.features, self.mean, self.labels = features, mean, labels
        n, _, p = features.shape
        found = minimize(self._loss, np.zeros(p), jac=True, method="BFGS", options={"gtol": 1e-9})
        self.weights = found.x
        chances = softmax(self.logits(features, mean))
        hessian = np.eye(p)
        for i in range(n):
            w = np.diag(chances[i]) - np.outer(chances[i], chances[i])
            hessian += features[i].T @ w @ features[i]
        self.covariance_of_weights = np.linalg.inv(hessian)
        self.log_evidence = -self._loss(self.weights)[0] - 0.5 * np.linalg.slogdet(hessian)[1]

    def logits(self, features, mean):
        return mean + features @ self.weights

    def variance(self, features):
        return np.einsum("nip,pq,njq->nij", features, self.covariance_of_weights, features)

    def _loss(self, w):
        logits = self.mean + self.features @ w
        chances = softmax(logits)
        rows = np.arange(len(self.labels))
        value = -np.log(chances[rows, self.labels]).sum() + 0.5 * w @ w
        chances[rows, self.labels] -= 1
        return value, np.einsum("nc,ncp->p", chances, self.features) + w
