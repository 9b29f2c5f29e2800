"""Targets given functions: how probable they are, and what they ask of the functions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class Likelihood:
    r"""Targets given functions :math:`g`: of classes, or of numbers with Gaussian noise.

    Functions are ``[draws, b, o]``, rows say which of the targets they are about.

    >>> likelihood = Likelihood(torch.tensor([0, 1]), None)
    >>> g = torch.zeros(1, 1, 2, dtype=torch.float64)
    >>> likelihood.slope(g, slice(0, 1))
    tensor([[[ 0.5000, -0.5000]]], dtype=torch.float64)
    """

    def __init__(self, targets: Tensor, noise: float | None, counts: Tensor | None = None) -> None:
        self.targets, self.noise = targets.cpu(), noise
        self.counts = torch.ones(len(targets)).double() if counts is None else counts.cpu()

    def log_density(self, g: Tensor, rows: Tensor | slice) -> Tensor:
        """Of each target, as many times as it counts, ``[draws, b]``."""
        target = self.targets[rows]
        if self.noise is None:
            codes = target.expand(g.shape[:-1])[..., None]
            return self.counts[rows] * g.log_softmax(-1).gather(-1, codes)[..., 0]
        constant = math.log(2 * math.pi * self.noise)
        each = -0.5 * ((target.double() - g).square() / self.noise + constant).sum(-1)
        return self.counts[rows] * each

    def slope(self, g: Tensor, rows: Tensor | slice) -> Tensor:
        r"""The gradient :math:`u = \nabla_g \log p`, ``[draws, b, o]``."""
        target = self.targets[rows]
        if self.noise is None:
            slope = nn.functional.one_hot(target, g.shape[-1]) - g.softmax(-1)
        else:
            slope = (target.double() - g) / self.noise
        return self.counts[rows][:, None] * slope

    def drawn_slope(self, g: Tensor, rows: Tensor | slice, draw: torch.Generator) -> Tensor:
        r"""A random ``[b, o]`` of mean 0 and covariance :math:`-\nabla_g^2 \log p`, each row alone.

        For classes that is :math:`\operatorname{diag} p - p p^\top = R R^\top` with
        :math:`R = \operatorname{diag}\sqrt p - p \sqrt{p}^\top`; of several draws the mean.
        """
        signs = torch.randint(0, 2, g.shape, generator=draw).double() * 2 - 1
        if self.noise is None:
            p = g.softmax(-1)
            part = p.sqrt() * signs
            signs = part - p * part.sum(-1, keepdim=True)
        else:
            signs = signs / math.sqrt(self.noise)
        return self.counts[rows].sqrt()[:, None] * signs.sum(0) / math.sqrt(len(g))
