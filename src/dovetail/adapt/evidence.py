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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError, shown

__all__ = ["Problem", "Tuned", "best_on_a_line", "tune", "tune_layers"]

LEAST, MOST = 1e-9, 1e6
"""Between which the noise is sought, in units of the kernel's mean diagonal times the scale."""

FREEDOM = 1e8
"""How far a layer's scale may go from the common one, up or down."""


@dataclass(frozen=True, eq=False)
class Problem:
    r"""One task's data: a kernel for each layer (or one for all) and what they are to explain.

    Attributes:
        kernels: ``[N, N]`` each, float64, symmetric.
        target: ``[N]``, targets less the prior's mean.
        noise: Known relative variances ``[N]`` (ones unless some rows are noisier than others); the
            noise sought multiplies them.
        free: Columns ``[N, c]`` of which nothing is known, such as a constant; the evidence is then
            that of what is orthogonal to them (the restricted likelihood).  Else what they explain
            is charged to the prior, which with ten rows is enough to make it vanish.
    """

    kernels: tuple[Tensor, ...]
    target: Tensor
    noise: Tensor | None = None
    free: Tensor | None = None

    def white(self) -> tuple[tuple[Tensor, ...], Tensor, float]:
        """Kernels and target with known noise and free columns removed, the log of what it took."""
        kernels, target, free, log_root = self.kernels, self.target, self.free, 0.0
        if self.noise is not None:
            root = self.noise.rsqrt()
            kernels = tuple(root[:, None] * kernel * root for kernel in kernels)
            target, log_root = root * target, float(root.log().sum())
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
    spectra = [_spectrum(problem) for problem in _checked(problems)]
    if scale is not None and noise is not None:
        return Tuned((scale,), noise, _density(spectra, scale, noise))
    size = _size(spectra)
    moment = sum(float(z.square().sum()) for _, z, _ in spectra)
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
        found = _best_scale(spectra, ratio)
        return found, ratio * found

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
    problems = _checked(problems)
    count = len(problems[0].kernels)
    start = tune(problems, noise=noise)
    if count == 1 or start.scales[0] <= 0:
        return Tuned(start.scales * count, start.noise, start.log_evidence)
    whites = [problem.white() for problem in problems]
    origin = np.log(np.array([*start.scales * count, start.noise]))
    free = count + (noise is None)

    def downhill(at: Any) -> tuple[float, Any]:
        logs = np.concatenate([at, origin[free:]])
        value, gradient = 0.0, np.zeros(count + 1)
        for white in whites:
            one, slope = _layered(white, np.exp(logs))
            value += one
            gradient += slope
        return -value, -gradient[:free]

    span = math.log(FREEDOM)
    bounds = [(centre - span, centre + span) for centre in origin[:free]]
    found = minimize(
        downhill,
        origin[:free],
        jac=True,
        bounds=bounds,
        method="L-BFGS-B",
        options={"maxiter": steps},
    )
    if not np.isfinite(found.fun) or -found.fun < start.log_evidence:
        return Tuned(start.scales * count, start.noise, start.log_evidence)
    sizes = np.exp(np.concatenate([found.x, origin[free:]]))
    return Tuned(tuple(map(float, sizes[:count])), float(sizes[count]), -float(found.fun))


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
    found = minimize_scalar(
        lambda at: -height(float(at)), bounds=near, method="bounded", options={"xatol": digits}
    )
    return float(found.x) if -found.fun >= heights[top] else float(grid[top])


Spectrum = tuple[Tensor, Tensor, float]


def _spectrum(problem: Problem) -> Spectrum:
    """Eigenvalues, the target in their basis, and the log determinant of what was divided out."""
    kernels, target, log_root = problem.white()
    kernel = kernels[0] if len(kernels) == 1 else torch.stack(kernels).sum(0)
    values, basis = torch.linalg.eigh(kernel)
    return values.clamp(min=0.0), basis.T @ target, log_root


def _size(spectra: Sequence[Spectrum]) -> float:
    """The mean of the kernels' diagonals, as a yardstick."""
    total = sum(float(values.sum()) for values, _, _ in spectra)
    return max(total / max(sum(len(values) for values, _, _ in spectra), 1), 1e-300)


def _best_scale(spectra: Sequence[Spectrum], ratio: float) -> float:
    total = sum(float((z.square() / (values + ratio)).sum()) for values, z, _ in spectra)
    return total / sum(len(z) for _, z, _ in spectra)


def _density(spectra: Sequence[Spectrum], scale: float, noise: float) -> float:
    value = 0.0
    for values, z, log_root in spectra:
        total = scale * values + noise
        value += log_root - 0.5 * float(
            (z.square() / total).sum() + total.log().sum() + len(z) * math.log(2 * math.pi)
        )
    return value


def _layered(white: tuple[tuple[Tensor, ...], Tensor, float], sizes: Any) -> tuple[float, Any]:
    """The log evidence of one task and its slope by the logarithms of scales and noise."""
    kernels, target, log_root = white
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
    slopes = [
        0.5 * float(s) * float(dual @ kernel @ dual - (inverse * kernel).sum())
        for s, kernel in zip(sizes, kernels, strict=False)
    ]
    slopes.append(0.5 * float(sizes[-1]) * float(dual @ dual - inverse.trace()))
    return value, np.array(slopes)


def _checked(problems: Sequence[Problem]) -> Sequence[Problem]:
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
    return problems
