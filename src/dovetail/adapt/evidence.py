r"""The prior's scale and the noise by marginal likelihood.

The log density of the data under the prior (the evidence) weighs fit against freedom, so no data
have to be held out.  For targets :math:`r \sim \mathcal N(0,\; s K + \sigma^2 I)` and
:math:`K = U \operatorname{diag}(\lambda) U^\top`, with :math:`z = U^\top r` and
:math:`\rho = \sigma^2 / s`, the best scale is known for each ratio,

.. math::
    \hat s(\rho) = \frac1N \sum_i \frac{z_i^2}{\lambda_i + \rho}, \qquad
    \log p = -\frac12 \Big( N \log \hat s + \sum_i \log(\lambda_i + \rho) + N + N \log 2\pi \Big) ,

so that one decomposition and a search along a line settle both.  With a scale for each layer,
:math:`\sum_l s_l K_l + \sigma^2 I`, the gradient :math:`\frac12 (a^\top K_l a - \operatorname{tr}
A^{-1} K_l)` leads uphill from there.  Several tasks share a prior by adding their log evidence.

For classes it is Laplace's evidence :math:`q` (:mod:`dovetail.adapt.laplace`), which depends on a
layer's scale directly and through where the mode is.  With the dual :math:`a`, the sites' root
:math:`R`, :math:`M = R B^{-1} R^\top` and the covariance :math:`\Sigma = K - K M K` at the mode,

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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from dovetail.adapt.laplace import mode_of
from dovetail.adapt.posterior import centred, mean_over, whitened
from dovetail.core.errors import SettingsError, TaskError, shown

LEAST, MOST = 1e-9, 1e6
"""Between which the noise is sought, in units of the kernel's mean diagonal times the scale."""

FREEDOM, LABEL_FREEDOM = 1e8, 1e6
"""How far a layer's scale may go from the common one, up or down: for numbers, for classes."""

ROUGHLY = 1e-4
"""How near the mode must be to compare priors by, a label."""


@dataclass(frozen=True, eq=False)
class Problem:
    r"""One task's data: a kernel for each layer (or one for all) and what they are to explain.

    Attributes:
        kernels: ``[N, N]`` each, float64, symmetric.
        target: ``[N]``, targets less the prior's mean.
        noise: Known relative variances ``[N]`` (ones unless some rows are noisier than others); the
            noise sought multiplies them.
        counts: How many times each row counts ``[N]``, once unless said: its noise is divided by so
            many, and what so many rows alike say of the noise beyond that is in the evidence.
        free: Columns ``[N, c]`` of which nothing is known, such as a constant; the evidence is then
            that of what is orthogonal to them (the restricted likelihood).  Else what they explain
            is charged to the prior, which with ten rows is enough to make it vanish.
    """

    kernels: tuple[Tensor, ...]
    target: Tensor
    noise: Tensor | None = None
    free: Tensor | None = None
    counts: Tensor | None = None

    @property
    def repeats(self) -> float:
        """Rows beyond the first of each: what they have of noise is known to be nothing."""
        return 0.0 if self.counts is None else float(self.counts.sum()) - len(self.counts)

    def white(self) -> tuple[tuple[Tensor, ...], Tensor, float]:
        """Kernels and target with known noise and free columns removed, the log of what it took."""
        kernels, target, free, log_root = self.kernels, self.target, self.free, 0.0
        if self.noise is not None or self.counts is not None:
            noise = torch.ones_like(target) if self.noise is None else self.noise
            counts = torch.ones_like(target) if self.counts is None else self.counts
            root = (counts / noise).sqrt()
            kernels = tuple(root[:, None] * kernel * root for kernel in kernels)
            # Of w rows alike, each with noise v: v / w for their mean, v for each of the others.
            target, log_root = root * target, -0.5 * float((counts * noise.log()).sum())
            free = None if free is None else root[:, None] * free
        if free is not None:
            rest = torch.linalg.qr(free, mode="complete").Q[:, free.shape[1] :]
            kernels = tuple(rest.T @ kernel @ rest for kernel in kernels)
            target = rest.T @ target
        return kernels, target, log_root


@dataclass(frozen=True)
class Tuned:
    """What was found.

    Attributes:
        scales: The prior's variance, one for each kernel.
        noise: The noise's variance.
        log_evidence: Of all tasks together.
    """

    scales: tuple[float, ...]
    noise: float
    log_evidence: float


def tune(
    problems: Sequence[Problem], *, scale: float | None = None, noise: float | None = None
) -> Tuned:
    """One scale for all parameters and the noise, or the one that is not given.

    Args:
        problems: One for each task that shares the prior; kernels of a problem are added up.
        scale: Known, or None to find it.
        noise: Known, or None to find it.

    >>> kernel = torch.eye(2).double()
    >>> found = tune([Problem((kernel,), torch.tensor([3.0, 1.0]).double())], noise=1.0)
    >>> round(found.scales[0], 2)  # the mean square is 5, of which 1 is noise
    4.0
    """
    _refuse_unlike(problems)
    spectra = [_spectrum(problem) for problem in problems]
    if scale is not None and noise is not None:
        return Tuned((scale,), noise, _density(spectra, scale, noise))
    count = sum(len(z) + repeats for _, z, _, repeats in spectra)
    # The yardstick of the search: the mean of the kernels' diagonals.
    size = max(sum(float(each[0].sum()) for each in spectra) / max(count, 1), 1e-300)
    moment = sum(float(z.square().sum()) for _, z, _, _ in spectra)
    if moment <= 0.0:  # nothing to explain: a prior of nothing is the best
        noise = LEAST * size if noise is None else noise
        scale = 0.0 if scale is None else scale
        return Tuned((scale,), noise, _density(spectra, scale, noise))

    def both(log_ratio: float) -> tuple[float, float]:
        ratio = math.exp(log_ratio) * size
        if noise is not None:
            return noise / ratio, noise
        if scale is not None:
            return scale, ratio * scale
        shares = (float((z.square() / (values + ratio)).sum()) for values, z, _, _ in spectra)
        best = sum(shares) / count
        return best, ratio * best

    best = best_on_a_line(
        lambda at: _density(spectra, *both(at)), math.log(LEAST), math.log(MOST), points=61
    )
    found_scale, found_noise = both(best)
    return Tuned((found_scale,), found_noise, _density(spectra, found_scale, found_noise))


def tune_layers(
    problems: Sequence[Problem], *, noise: float | None = None, steps: int = 60
) -> Tuned:
    """A scale for each kernel, and the noise unless it is known, by gradient from the common one.

    >>> a, b = torch.diag(torch.tensor([1.0, 1.0, 0.0, 0.0])), torch.diag(torch.ones(4))
    >>> target = torch.tensor([9.0, -9.0, 0.1, 0.1])
    >>> problem = Problem((a.double(), b.double()), target.double())
    >>> found = tune_layers([problem], noise=0.01)
    >>> found.scales[0] > 50 and found.scales[1] < 0.1
    True
    """
    start = tune(problems, noise=noise)
    count = len(problems[0].kernels)
    common = Tuned(start.scales * count, start.noise, start.log_evidence)
    if count == 1 or start.scales[0] <= 0:
        return common
    whites = [(*problem.white(), problem.repeats) for problem in problems]
    origin = np.log(np.array([*common.scales, common.noise]))
    free = count + (noise is None)

    def evidence(logs: Any) -> tuple[float, Any]:
        sizes = np.exp(np.concatenate([logs, origin[free:]]))
        layers = [_layered(white, sizes) for white in whites]
        return sum(value for value, _ in layers), sum(slope for _, slope in layers)[:free]

    logs, height = _uphill(evidence, origin[:free], FREEDOM, maxiter=steps)
    if height < start.log_evidence:
        return common
    sizes = np.exp(np.concatenate([logs, origin[free:]]))
    return Tuned(tuple(map(float, sizes[:count])), float(sizes[count]), height)


LabelProblem = tuple[Tensor, Tensor, Tensor] | tuple[Tensor, Tensor, Tensor, Tensor | None]


def tune_label_scale(problems: Sequence[LabelProblem]) -> tuple[float, float]:
    """One scale for all parameters by Laplace's evidence of classes, and that evidence.

    Sought from where the prior says nothing (logits of a hundredth) to where it is sure of
    everything (logits of a hundred).

    Args:
        problems: For each task that shares the prior its kernel ``[n c, n c]`` of scale one, not
            centred, the prior's mean ``[n, c]``, the labels' codes ``[n]`` and, if some count more
            than once, how many times ``[n]``.
    """
    parts = [_as_part(*problem) for problem in problems]
    size = sum(_size(varied, counts) for _, varied, _, _, counts in parts) / len(parts)
    whole = sum(float(problem[0].diagonal().mean()) for problem in problems) / len(problems)
    if not size > 1e-9 * whole:  # what is left is rounding
        raise TaskError(
            "the network's outputs move alike for all these inputs, whatever parameters move: "
            "there is nothing to tell them apart by"
        )
    starts: list[Tensor | None] = [None] * len(parts)

    def height(log_scale: float) -> float:
        total = 0.0
        for i, (constant, varied, mean, labels, counts) in enumerate(parts):
            scaled = varied * math.exp(log_scale) + constant
            starts[i], _, _, evidence = mode_of(
                scaled, mean, labels, starts[i], counts=counts, enough=ROUGHLY
            )
            total += evidence
        return total

    low, high = math.log(1e-4 / size), math.log(1e4 / size)
    best = best_on_a_line(height, low, high, points=9, digits=0.3)
    return math.exp(best), height(best)


def tune_label_layers(
    kernels: tuple[Tensor, ...],
    mean: Tensor,
    labels: Tensor,
    *,
    counts: Tensor | None = None,
    steps: int = 20,
) -> tuple[tuple[float, ...], float]:
    """A scale for each layer, uphill from the best common one, and the evidence there.

    Args:
        kernels: A layer's each, ``[n c, n c]`` of scale one, not centred.
        mean: The prior's mean ``[n, c]``.
        labels: Codes ``[n]``.
        counts: How many times each label counts ``[n]``; once unless said.
        steps: The most.
    """
    common, least = tune_label_scale([(torch.stack(kernels).sum(0), mean, labels, counts)])
    constant, varied = _apart(kernels, mean.shape[1], counts)
    start: Tensor | None = None

    def evidence(logs: Any) -> tuple[float, Any]:
        nonlocal start
        scales = np.exp(logs)
        value, slopes, start = label_evidence(
            constant, varied, scales.tolist(), mean, labels, start, counts
        )
        return value, np.array(slopes) * scales

    origin = np.full(len(kernels), math.log(common))
    logs, height = _uphill(evidence, origin, LABEL_FREEDOM, maxiter=steps, ftol=1e-4)
    if height < least:
        return (common,) * len(kernels), least
    return tuple(map(float, np.exp(logs))), height


def label_evidence(
    constant: Tensor,
    kernels: Sequence[Tensor],
    scales: Sequence[float],
    mean: Tensor,
    labels: Tensor,
    start: Tensor | None = None,
    counts: Tensor | None = None,
) -> tuple[float, list[float], Tensor]:
    r"""Laplace's evidence for :math:`K = K_0 + \sum_l s_l K_l`, its slopes, and the dual.

    Args:
        constant: :math:`K_0`, ``[n c, n c]``.
        kernels: :math:`K_l`.
        scales: :math:`s_l`.
        mean: The prior's mean ``[n, c]``.
        labels: Codes ``[n]``.
        start: A dual to begin with.
        counts: How many times each label counts ``[n]``; once unless said.
    """
    n, classes = mean.shape
    times = torch.ones_like(mean[:, :1]) if counts is None else counts[:, None]
    whole = constant.clone()
    for scale, kernel in zip(scales, kernels, strict=True):
        whole += scale * kernel
    dual, root, lower, value = mode_of(whole, mean, labels, start, counts=counts)
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
    chances = F.one_hot(labels, classes).to(dual) - dual / times
    push = blocks.diagonal(dim1=1, dim2=2) - 2 * (blocks @ chances[:, :, None])[:, :, 0]
    bend = (times * chances * (push - (chances * push).sum(1, keepdim=True))).flatten()
    flat = dual.flatten()
    back = bend - sites @ (whole @ bend)  # (I - M K) t, for all layers at once
    slopes = []
    for kernel in kernels:
        moved = kernel @ flat
        direct = float(flat @ moved) - float((sites * kernel).sum())
        slopes.append(0.5 * (direct - float(back @ moved)))
    return value, slopes, dual


def best_on_a_line(
    height: Callable[[float], float], low: float, high: float, *, points: int, digits: float = 1e-3
) -> float:
    """Where a function of one number is highest: a grid first, as there may be several hills.

    >>> round(best_on_a_line(lambda x: -((x - 2) ** 2), -5.0, 5.0, points=11), 2)
    2.0
    """
    grid = np.linspace(low, high, points)
    heights = np.array([height(float(at)) for at in grid])
    if not np.isfinite(heights).any():
        raise TaskError("the data have no density under this prior; look at their scale")
    top = int(np.nanargmax(np.where(np.isfinite(heights), heights, -np.inf)))
    near = (grid[max(top - 1, 0)], grid[min(top + 1, points - 1)])
    best = minimize_scalar(
        lambda at: -height(float(at)), bounds=near, method="bounded", options={"xatol": digits}
    )
    return float(best.x) if -best.fun >= heights[top] else float(grid[top])


def _uphill(
    evidence: Callable[[Any], tuple[float, Any]], origin: Any, freedom: float, **options: float
) -> tuple[Any, float]:
    """Logarithms of higher evidence, by its slopes, and how high; no more than a factor away."""

    def downhill(logs: Any) -> tuple[float, Any]:
        value, slopes = evidence(logs)
        return -value, -slopes

    span = math.log(freedom)
    bounds = [(centre - span, centre + span) for centre in origin]
    top = minimize(downhill, origin, jac=True, bounds=bounds, method="L-BFGS-B", options=options)
    return top.x, -float(top.fun) if np.isfinite(top.fun) else -math.inf


Spectrum = tuple[Tensor, Tensor, float, float]


def _spectrum(problem: Problem) -> Spectrum:
    """Eigenvalues, the target in their basis, the log of what was divided out, the repeats."""
    kernels, target, log_root = problem.white()
    kernel = kernels[0] if len(kernels) == 1 else torch.stack(kernels).sum(0)
    values, basis = torch.linalg.eigh(kernel)
    return values.clamp(min=0.0), basis.T @ target, log_root, problem.repeats


def _density(spectra: Sequence[Spectrum], scale: float, noise: float) -> float:
    value = 0.0
    for values, z, log_root, repeats in spectra:
        total = scale * values + noise
        value += log_root - 0.5 * float(
            (z.square() / total).sum() + total.log().sum() + len(z) * math.log(2 * math.pi)
        )
        value -= 0.5 * repeats * math.log(2 * math.pi * noise)
    return value


def _layered(
    white: tuple[tuple[Tensor, ...], Tensor, float, float], sizes: Any
) -> tuple[float, Any]:
    """The log evidence of one task and its slope by the logarithms of scales and noise."""
    kernels, target, log_root, repeats = white
    total = sum(float(s) * kernel for s, kernel in zip(sizes, kernels, strict=False))
    assert isinstance(total, Tensor)
    total.diagonal().add_(float(sizes[-1]))
    lower, info = torch.linalg.cholesky_ex(total)
    if int(info):
        return -math.inf, np.zeros(len(sizes))
    dual = torch.cholesky_solve(target[:, None], lower)[:, 0]
    inverse = torch.cholesky_inverse(lower)
    value = log_root - 0.5 * float(target @ dual) - float(lower.diagonal().log().sum())
    value -= 0.5 * len(target) * math.log(2 * math.pi)
    value -= 0.5 * repeats * math.log(2 * math.pi * float(sizes[-1]))
    slopes = [
        0.5 * float(s) * float(dual @ kernel @ dual - (inverse * kernel).sum())
        for s, kernel in zip(sizes, kernels, strict=False)
    ]
    slopes.append(0.5 * float(sizes[-1]) * float(dual @ dual - inverse.trace()) - 0.5 * repeats)
    return value, np.array(slopes)


def _refuse_unlike(problems: Sequence[Problem]) -> None:
    if not problems:
        raise SettingsError("there is no task to tune the prior on")
    if len({len(problem.kernels) for problem in problems}) != 1:
        raise SettingsError("tasks that share a prior need the same layers")
    for problem in problems:
        for kernel in problem.kernels:
            if kernel.shape != (len(problem.target),) * 2:
                raise SettingsError(
                    f"a kernel of shape {shown(list(kernel.shape))} does not belong to "
                    f"{len(problem.target)} targets"
                )


def _apart(
    kernels: Sequence[Tensor], classes: int, counts: Tensor | None
) -> tuple[Tensor, list[Tensor]]:
    """The kernel of the constants, and what varies of each layer's."""
    constant = centred(torch.zeros_like(kernels[0]), classes)
    return constant, [centred(kernel, classes, counts) - constant for kernel in kernels]


def _as_part(
    kernel: Tensor, mean: Tensor, labels: Tensor, counts: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    constant, (varied,) = _apart((kernel,), mean.shape[1], counts)
    return constant, varied, mean, labels, counts


def _size(kernel: Tensor, counts: Tensor | None) -> float:
    """The mean of a kernel's diagonal, over labels as often as each counts."""
    if counts is None:
        return float(kernel.diagonal().mean())
    return float(mean_over(kernel.diagonal().reshape(len(counts), -1).mean(1), 0, counts))
