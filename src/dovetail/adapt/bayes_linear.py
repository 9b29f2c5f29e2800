r"""Bayesian linear regression on rows of features, its two variances by marginal likelihood.

.. math::
    y_i = b + w^\top x_i + \varepsilon_i, \qquad
    w \sim \mathcal N(0, s^2 I), \quad \varepsilon_i \sim \mathcal N(0, \sigma^2), \quad
    p(b) \propto 1 .

The flat intercept takes the mean of rows and targets away (tilde) and one degree of freedom with
it.  In the singular directions of the centred rows, :math:`\tilde X = U \operatorname{diag}(
\sqrt{\lambda}) V^\top` and :math:`c = U^\top \tilde y`, the evidence is

.. math::
    -2 \log p(y) = \sum_{j=1}^{n-1} \Big[ \log(s^2 \lambda_j + \sigma^2)
                   + \frac{c_j^2}{s^2 \lambda_j + \sigma^2} \Big] + (n - 1) \log 2\pi + \log n .

For a fixed penalty :math:`\sigma^2 / s^2` the best :math:`\sigma^2` is known in closed form, so
that one search over one number finds both.  Every column of targets has variances of its own.
float64 throughout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.linalg.ridge_sums import Penalty, judged_penalties

__all__ = ["BayesLinear", "evidence_of", "fit_bayes"]

LOG10_PENALTIES = (-10.0, 6.0)
"""The search for the penalty, in units of the mean eigenvalue of the scatter."""

LEAST_NOISE = 1e-12
"""The least noise variance, in units of the targets' variance."""

ROUNDING = torch.finfo(torch.float64).eps
"""Of a target, in units of its size: there is never less noise than that."""


@dataclass(frozen=True, eq=False)
class BayesLinear:
    """The posterior: ``weights [d, k]`` and ``intercept [k]`` of the mean, and all its variance.

    ``scale [k]`` is the prior variance of a weight, ``noise [k]`` that of a target, and
    ``log_evidence`` the sum over the columns.

    >>> x = torch.arange(6.0)[:, None]
    >>> line = fit_bayes(x, 2 * x + 1)
    >>> line.mean(torch.tensor([[10.0]]).double()).round(decimals=3)
    tensor([[21.]], dtype=torch.float64)
    """

    weights: Tensor
    intercept: Tensor
    scale: Tensor
    noise: Tensor
    log_evidence: float
    centre: Tensor  # [d]
    directions: Tensor  # [d, r]
    eigenvalues: Tensor  # [r]
    rows: int

    @property
    def penalty(self) -> Tensor:
        """Noise over scale ``[k]``: the penalty of the ridge regression with the same mean."""
        return self.noise / self.scale

    def mean(self, x: Tensor) -> Tensor:
        """Of new targets ``[m, k]`` for rows ``[m, d]``."""
        return x @ self.weights + self.intercept

    def variance(self, x: Tensor, *, noisy: bool = True) -> Tensor:
        """Of new targets ``[m, k]``, or of their means if not ``noisy``."""
        centred = x - self.centre
        along = (centred @ self.directions).square()  # [m, r]
        # What lies outside of the span of the rows has its prior variance still.
        outside = (centred.square().sum(1) - along.sum(1)).clamp(min=0)
        shrunk = self.noise / (self.eigenvalues[:, None] + self.penalty)  # [r, k]
        found = along @ shrunk + outside[:, None] * self.scale + self.noise / self.rows
        return found + self.noise if noisy else found

    def covariance(self, x: Tensor, *, noisy: bool = True) -> Tensor:
        """Of new targets with each other ``[m, m, k]``, or of their means if not ``noisy``."""
        centred = x - self.centre
        along = centred @ self.directions
        shrunk = self.noise / (self.eigenvalues[:, None] + self.penalty) - self.scale
        found = torch.einsum("ir,jr,rk->ijk", along, along, shrunk)
        found = found + (centred @ centred.T)[:, :, None] * self.scale + self.noise / self.rows
        eye = torch.eye(len(x), dtype=x.dtype)[:, :, None]
        return found + eye * self.noise if noisy else found


def fit_bayes(rows: Tensor, targets: Tensor, penalty: Penalty = "auto") -> BayesLinear:
    r"""The posterior for rows ``[n, d]`` and targets ``[n, k]``.

    Args:
        rows: Features.
        targets: What to predict.
        penalty: :math:`\sigma^2 / s^2` if it is known, or several to choose from by evidence;
            ``"auto"`` searches.
    """
    x, y = rows.double(), targets.double()
    n = len(x)
    if n < 2:
        raise TaskError("1 sample says nothing of the noise; give at least two")
    centre, target_mean = x.mean(0), y.mean(0)
    u, root, vt = torch.linalg.svd(x - centre, full_matrices=False)
    kept = max(1, int((root > root[0] * 1e-13 * max(x.shape)).sum()))
    u, eigenvalues, directions = u[:, :kept], root[:kept].square(), vt[:kept].T
    left = y - target_mean
    along = u.T @ left  # [r, k]
    rest = (left - u @ along).square().sum(0)  # [k]
    unit = float(eigenvalues.mean()) or 1.0
    found = [
        _best(
            _Column(
                (eigenvalues / unit).numpy(),
                along[:, k].square().numpy(),
                float(rest[k]),
                n,
                _least_noise(y[:, k], left[:, k]),
            ),
            penalty,
            unit,
        )
        for k in range(y.shape[1])
    ]
    penalties = torch.tensor([each[0] for each in found], dtype=torch.float64)
    noise = torch.tensor([each[1] for each in found], dtype=torch.float64)
    weights = directions @ (root[:kept, None] * along / (eigenvalues[:, None] + penalties))
    return BayesLinear(
        weights,
        target_mean - centre @ weights,
        noise / penalties,
        noise,
        sum(each[2] for each in found),
        centre,
        directions,
        eigenvalues,
        n,
    )


def evidence_of(rows: Tensor, targets: Tensor, scale: Tensor, noise: Tensor) -> Tensor:
    """The log evidence for known variances ``[k]``, summed over the columns; differentiable.

    One Cholesky factor a column, of the smaller of ``n × n`` and ``d × d``.

    >>> x = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    >>> y = torch.tensor([[0.0], [1.2], [1.9]], dtype=torch.float64)
    >>> found = fit_bayes(x, y)
    >>> bool((evidence_of(x, y, found.scale, found.noise) - found.log_evidence).abs() < 1e-9)
    True
    """
    x, y = rows - rows.mean(0), targets - targets.mean(0)
    n, d = x.shape
    inner = x @ x.T if n <= d else x.T @ x
    eye = torch.eye(len(inner), dtype=x.dtype)
    total = x.new_zeros(())
    for k in range(y.shape[1]):
        factor = torch.linalg.cholesky(scale[k] * inner + noise[k] * eye)
        right = y[:, k : k + 1] if n <= d else x.T @ y[:, k : k + 1]
        solved = scale[k] * torch.cholesky_solve(right, factor)
        weights = x.T @ solved if n <= d else solved  # [d, 1]
        residual = y[:, k : k + 1] - x @ weights
        # Both terms are sums of squares: nothing cancels when the noise is tiny.
        fit = residual.square().sum() / noise[k] + weights.square().sum() / scale[k]
        # The constant is a direction of n × n with the noise alone; the intercept has taken it.
        volume = 2 * factor.diagonal().log().sum() + (n - 1 - len(inner)) * noise[k].log()
        total = total - (fit + volume) / 2
    return total - y.shape[1] * ((n - 1) * math.log(2 * math.pi) + math.log(n)) / 2


def _least_noise(targets: Tensor, centred: Tensor) -> float:
    """Of the variance about the mean, so that an offset of the targets makes no difference."""
    rounding = ROUNDING * float(targets.abs().max())
    spread = float(centred.square().mean())
    return max(LEAST_NOISE * spread, rounding * rounding, LEAST_NOISE * 1e-100)


@dataclass(frozen=True, eq=False)
class _Column:
    """One column of targets in the singular directions: all that its evidence depends on."""

    eigenvalues: np.ndarray[Any, Any]
    squares: np.ndarray[Any, Any]
    rest: float
    rows: int
    least_noise: float

    def at(self, penalties: Any) -> tuple[Any, Any]:
        """The best noise variances and the log evidences there, for penalties ``[p]``."""
        free = self.rows - 1
        ratio = self.eigenvalues / np.reshape(penalties, (-1, 1)) + 1  # variance over noise
        unexplained = (self.squares / ratio).sum(1) + self.rest
        noise = np.maximum(unexplained / free, self.least_noise)
        volume = np.log(ratio).sum(1) + free * np.log(noise)
        constant = free * math.log(2 * math.pi) + math.log(self.rows)
        return noise, -(unexplained / noise + volume + constant) / 2


def _best(column: _Column, penalty: Penalty, unit: float) -> tuple[float, float, float]:
    """Penalty, noise and log evidence of the best penalty."""
    choices = judged_penalties(penalty, lambda: (_searched(column) * unit,))
    noise, height = column.at(np.array(choices) / unit)
    best = int(height.argmax())
    return choices[best], float(noise[best]), float(height[best])


def _searched(column: _Column) -> float:
    """The evidence can have two maxima: the best of a grid, then the best nearby."""
    places = np.linspace(*LOG10_PENALTIES, 65)
    for _ in range(7):  # each round looks ten times closer
        best = int(column.at(10.0**places)[1].argmax())
        middle, step = places[best], places[1] - places[0]
        places = np.linspace(middle - step, middle + step, 21)
    return float(10.0**middle)
