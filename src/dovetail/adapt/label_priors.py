r"""The prior for classes by Laplace's evidence: one scale, or one for each layer.

The log evidence :math:`q` depends on a layer's scale directly and through where the mode is.  With
the dual :math:`a`, the sites' root :math:`R`, :math:`M = R B^{-1} R^\top` and the covariance
:math:`\Sigma = K - K M K` at the mode,

.. math::
    \frac{\partial q}{\partial s_l} = \frac12 \big( a^\top K_l a - \operatorname{tr} M K_l \big)
        - \frac12\, t^\top (I - K M) K_l a, \qquad
    t_{ic} = \pi_{ic} \Big( u_{ic} - \sum_d \pi_{id} u_{id} \Big), \quad
    u_i = \operatorname{diag} \Sigma_i - 2 \Sigma_i \pi_i .

Without the second term, which is what moving the mode does to the likelihood's Hessian, scales end
up several times too small.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import Tensor

from dovetail.adapt.evidence import best_on_a_line
from dovetail.adapt.laplace import mode_of
from dovetail.adapt.posterior import centred, whitened
from dovetail.core.errors import TaskError

__all__ = ["label_evidence", "tune_label_layers", "tune_label_scale", "tune_label_scale_over"]

ROUGHLY = 1e-4
"""How near the mode must be to compare priors by, a label."""

FREEDOM = 1e6
"""How far a layer's scale may go from the common one, up or down."""


def tune_label_scale(kernel: Tensor, mean: Tensor, labels: Tensor) -> tuple[float, float]:
    """The prior's one scale by Laplace's evidence, and that evidence.

    Sought from where the prior says nothing (logits of a hundredth) to where it is sure of
    everything (logits of a hundred).

    Args:
        kernel: ``[n c, n c]`` of scale one, not centred.
        mean: The prior's mean ``[n, c]``.
        labels: Codes ``[n]``.
    """
    return tune_label_scale_over([(kernel, mean, labels)])


def tune_label_scale_over(
    problems: Sequence[tuple[Tensor, Tensor, Tensor]],
) -> tuple[float, float]:
    """The same for several tasks that share a prior: kernels, means and labels of each."""
    parts = [(*_apart((kernel,), mean.shape[1]), mean, labels) for kernel, mean, labels in problems]
    size = sum(float(varied.diagonal().mean()) for _, (varied,), _, _ in parts) / len(parts)
    whole = sum(float(kernel.diagonal().mean()) for kernel, _, _ in problems) / len(problems)
    if not size > 1e-9 * whole:  # what is left is rounding
        raise TaskError(
            "the network's outputs move alike for all these inputs, whatever parameters move: "
            "there is nothing to tell them apart by"
        )
    starts: list[Tensor | None] = [None] * len(parts)

    def height(log_scale: float) -> float:
        total = 0.0
        for i, (constant, (varied,), mean, labels) in enumerate(parts):
            scaled = varied * math.exp(log_scale) + constant
            starts[i], _, _, found = mode_of(scaled, mean, labels, starts[i], enough=ROUGHLY)
            total += found
        return total

    low, high = math.log(1e-4 / size), math.log(1e4 / size)
    best = best_on_a_line(height, low, high, points=9, digits=0.3)
    return math.exp(best), height(best)


def tune_label_layers(
    kernels: tuple[Tensor, ...], mean: Tensor, labels: Tensor, *, steps: int = 20
) -> tuple[tuple[float, ...], float]:
    """A scale for each layer, uphill from the best common one, and the evidence there.

    Args:
        kernels: A layer's each, ``[n c, n c]`` of scale one, not centred.
        mean: The prior's mean ``[n, c]``.
        labels: Codes ``[n]``.
        steps: The most.
    """
    common, evidence = tune_label_scale(torch.stack(kernels).sum(0), mean, labels)
    constant, varied = _apart(kernels, mean.shape[1])
    start: Tensor | None = None

    def downhill(logs: Any) -> tuple[float, Any]:
        nonlocal start
        value, slopes, start = label_evidence(
            constant, varied, np.exp(logs).tolist(), mean, labels, start
        )
        return -value, -np.array(slopes) * np.exp(logs)

    origin = np.full(len(kernels), math.log(common))
    span = math.log(FREEDOM)
    found = minimize(
        downhill,
        origin,
        jac=True,
        bounds=[(centre - span, centre + span) for centre in origin],
        method="L-BFGS-B",
        options={"maxiter": steps, "ftol": 1e-4},
    )
    if not np.isfinite(found.fun) or -found.fun < evidence:
        return (common,) * len(kernels), evidence
    return tuple(map(float, np.exp(found.x))), -float(found.fun)


def label_evidence(
    constant: Tensor,
    kernels: Sequence[Tensor],
    scales: Sequence[float],
    mean: Tensor,
    labels: Tensor,
    start: Tensor | None = None,
) -> tuple[float, list[float], Tensor]:
    r"""Laplace's evidence for :math:`K = K_0 + \sum_l s_l K_l`, its slopes, and the dual.

    Args:
        constant: :math:`K_0`, ``[n c, n c]``.
        kernels: :math:`K_l`.
        scales: :math:`s_l`.
        mean: The prior's mean ``[n, c]``.
        labels: Codes ``[n]``.
        start: A dual to begin with.
    """
    n, classes = mean.shape
    whole = constant.clone()
    for scale, kernel in zip(scales, kernels, strict=True):
        whole += scale * kernel
    dual, root, lower, value = mode_of(whole, mean, labels, start)
    eye = torch.eye(len(whole), dtype=whole.dtype, device=whole.device)
    half = torch.linalg.solve_triangular(lower, whitened(root, eye), upper=False)
    sites = half.T @ half  # M
    explained = half @ whole
    blocks = torch.stack(
        [
            whole[i : i + classes, i : i + classes]
            - explained[:, i : i + classes].T @ explained[:, i : i + classes]
            for i in range(0, n * classes, classes)
        ]
    )
    chances = F.one_hot(labels, classes).to(dual) - dual
    push = blocks.diagonal(dim1=1, dim2=2) - 2 * (blocks @ chances[:, :, None])[:, :, 0]
    bend = (chances * (push - (chances * push).sum(1, keepdim=True))).flatten()
    flat = dual.flatten()
    back = bend - sites @ (whole @ bend)  # (I - M K) t, for all layers at once
    slopes = []
    for kernel in kernels:
        moved = kernel @ flat
        direct = float(flat @ moved) - float((sites * kernel).sum())
        slopes.append(0.5 * (direct - float(back @ moved)))
    return value, slopes, dual


def _apart(kernels: Sequence[Tensor], classes: int) -> tuple[Tensor, list[Tensor]]:
    """The kernel of the constants, and what varies of each layer's."""
    constant = centred(torch.zeros_like(kernels[0]), classes)
    return constant, [centred(kernel, classes) - constant for kernel in kernels]
