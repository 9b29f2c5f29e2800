"""Linear models with a dense Jacobian, in float64: the answers that minibatches should approach."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize
from torch.nn.functional import cross_entropy, logsigmoid


def ridge(jacobian, residual, scale, noise):
    """The exact posterior mean for Gaussian noise; ``jacobian [n, o, p]``, ``residual [n, o]``."""
    rows, target = jacobian.flatten(0, 1), residual.flatten()
    precision = torch.eye(rows.shape[1]).double() / scale + rows.T @ rows / noise
    return torch.linalg.solve(precision, rows.T @ target / noise)


def most_probable(jacobian, labels, mean, scale, steps=30):
    """The maximum of likelihood times prior for classes, by Newton with the full Hessian."""
    n, o, p = jacobian.shape
    w = torch.zeros(p).double()
    for _ in range(steps):
        probabilities = (mean + jacobian @ w).softmax(1)
        gradient, hessian = -w / scale, -torch.eye(p).double() / scale
        for i in range(n):
            wanted = torch.zeros(o).double()
            wanted[labels[i]] = 1.0
            gradient = gradient + jacobian[i].T @ (wanted - probabilities[i])
            inner = probabilities[i].diag() - torch.outer(probabilities[i], probabilities[i])
            hessian = hessian - jacobian[i].T @ inner @ jacobian[i]
        w = w - torch.linalg.solve(hessian, gradient)
    return w


def log_joint(jacobian, labels, mean, scale, w):
    """The log of likelihood times prior for classes, without the prior's constant."""
    fit = -cross_entropy(mean + jacobian @ w, labels, reduction="sum")
    return float(fit - w.square().sum() / (2 * scale))


def elbo_of_two(jacobian, labels, mean, scale, middle, deviations):
    """The bound for two classes: only the difference of the outputs counts, a Gaussian number."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    nodes, weights = torch.from_numpy(nodes), torch.from_numpy(weights) / math.sqrt(2 * math.pi)
    sign = 2.0 * labels - 1.0
    difference = jacobian[:, 1] - jacobian[:, 0]
    at = mean[:, 1] - mean[:, 0] + difference @ middle
    spread = (difference * deviations).square().sum(1).sqrt()
    values = sign[:, None] * (at[:, None] + spread[:, None] * nodes)
    ratio = deviations.square() / scale
    kl = 0.5 * (middle.square() / scale + ratio - 1.0 - ratio.log()).sum()
    return (logsigmoid(values) * weights).sum() - kl


def best_of_two(jacobian, labels, mean, scale):
    """The mean and deviations with the highest bound for two classes, by L-BFGS."""
    p = jacobian.shape[2]
    start = np.concatenate([np.zeros(p), np.full(p, 0.5 * math.log(scale))])

    def loss(values):
        values = torch.tensor(values, requires_grad=True)
        bound = elbo_of_two(jacobian, labels, mean, scale, values[:p], values[p:].exp())
        (-bound).backward()
        return -bound.item(), values.grad.numpy()

    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 3000})
    values = torch.from_numpy(found.x)
    return values[:p], values[p:].exp()


def log_evidence_of_one_weight(jacobian, labels, mean, scale):
    """The log evidence of a model with a single weight, by a fine sum over it."""
    grid = torch.linspace(-12, 12, 20001, dtype=torch.float64) * math.sqrt(scale)
    log_prior = -grid.square() / (2 * scale) - 0.5 * math.log(2 * math.pi * scale)
    outputs = mean + grid[:, None, None] * jacobian[..., 0]
    log_fit = outputs.log_softmax(-1)[:, torch.arange(len(labels)), labels].sum(1)
    return float((log_prior + log_fit).logsumexp(0) + (grid[1] - grid[0]).log())
