"""Jacobians and curvature as dense matrices, in float64, by the definitions."""

from __future__ import annotations

import copy

import torch
from torch.func import functional_call, hessian, jacrev


def _function(module, inputs, names):
    """The network of a flat vector of the named parameters, in float64, and that vector."""
    module = copy.deepcopy(module).double().eval()
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    theta = dict(module.named_parameters())
    names = list(theta) if names is None else names
    shapes = [theta[name].shape for name in names]
    flat = torch.cat([theta[name].detach().reshape(-1) for name in names])

    def outputs(vector):
        pieces = vector.split([shape.numel() for shape in shapes])
        own = {n: p.reshape(s) for n, p, s in zip(names, pieces, shapes, strict=True)}
        return functional_call(module, own, (inputs,))

    return outputs, flat


def dense_jacobian(module, inputs, names=None):
    """Every output by every parameter: ``[n * o, p]``."""
    function, flat = _function(module, inputs, names)
    return jacrev(lambda vector: function(vector).reshape(-1))(flat).detach()


def jacobian_by_steps(module, inputs, names=None, step=1e-6):
    """The same by moving one parameter at a time, there and back."""
    function, flat = _function(module, inputs, names)
    columns = []
    with torch.no_grad():
        for i in range(len(flat)):
            there, back = flat.clone(), flat.clone()
            there[i] += step
            back[i] -= step
            columns.append((function(there) - function(back)).reshape(-1) / (2 * step))
    return torch.stack(columns, dim=1)


def dense_fisher(module, inputs, likelihood, noise=1.0, names=None):
    """The sum over rows of J^T Lambda J, row by row, Lambda written out."""
    function, flat = _function(module, inputs, names)
    outputs = function(flat).detach()
    classes = outputs.shape[1]
    rows = dense_jacobian(module, inputs, names).reshape(len(outputs), classes, -1)
    total = torch.zeros(len(flat), len(flat), dtype=torch.float64)
    for row, logits in zip(rows, outputs, strict=True):
        if likelihood == "gaussian":
            curvature = torch.eye(classes, dtype=torch.float64) / noise
        else:
            p = logits.softmax(0)
            curvature = torch.diag(p) - torch.outer(p, p)
        total += row.T @ curvature @ row
    return total


def dense_hessian(module, inputs, loss, names=None):
    """The loss's second derivatives ``[p, p]``."""
    function, flat = _function(module, inputs, names)
    return hessian(lambda vector: loss(function(vector)))(flat).detach()
