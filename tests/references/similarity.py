"""Similarity of Jacobians as its definition says it, from Jacobians written out in float64."""

from __future__ import annotations

import copy

import torch
from references.gram import jacobian


def rows(model, x, names=None):
    """The Jacobian as a matrix ``[n o, p]``, output by output within a sample."""
    return jacobian(copy.deepcopy(model).double(), x.double(), names).flatten(0, 1)


def of_parameters(one, other, x, x2=None, names=None):
    """``tr(A' B B' A) / (|A A'| |B B'|)`` with ``p x no`` matrices."""
    a, b = rows(one, x, names).T, rows(other, x if x2 is None else x2, names).T
    shared = torch.trace(a.T @ b @ b.T @ a)
    return float(shared / ((a @ a.T).norm() * (b @ b.T).norm()))


def of_functions(one, other, x, x2=None, *, trace=False, centred=False):
    """The cosine of two kernels, entry by entry."""
    n = len(x)
    kernels = []
    for model, given in ((one, x), (other, x if x2 is None else x2)):
        j = rows(model, given)
        kernel = (j @ j.T).reshape(n, -1, n, j.shape[0] // n)
        if trace:
            kernel = torch.einsum("icjc->ij", kernel)[:, None, :, None]
        if centred:
            h = torch.eye(n, dtype=torch.float64) - 1 / n
            kernel = torch.einsum("ik,kcld,lj->icjd", h, kernel, h)
        kernels.append(kernel)
    a, b = kernels
    return float((a * b).sum() / (a.norm() * b.norm()))
