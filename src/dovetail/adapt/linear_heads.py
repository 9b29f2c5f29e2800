r"""Linear heads on rows of features, float64.

Bayesian linear regression, its two variances by marginal likelihood:

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

Multinomial logistic regression, the strength of its :math:`L_2` penalty by cross-validation: for
rows :math:`x_i \in \mathbb{R}^d` of class :math:`y_i`,

.. math::
    \min_{W, b} \; -\sum_i \log \operatorname{softmax}(W^\top x_i + b)_{y_i}
                   + \tfrac{\lambda}{2} \lVert W\rVert_F^2 ,

by L-BFGS.  The penalty does not change under rotation, so the rows are first expressed in their
principal directions: at most :math:`\min(n, d)` columns, whatever :math:`d`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from threadpoolctl import threadpool_limits
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.core.seeds import generator
from dovetail.linalg.ridge_sums import Linear, Penalty, judged_penalties

LOG10_PENALTIES = (-10.0, 6.0)
"""The search for the penalty, in units of the mean eigenvalue of the scatter."""

LEAST_NOISE = 1e-12
"""The least noise variance, in units of the targets' variance."""

ROUNDING = torch.finfo(torch.float64).eps
"""Of a target, in units of its size: there is never less noise than that."""


FOLDS = 5
STEPS = tuple(10.0 ** (step / 2) for step in range(4, -13, -1))
"""Penalties that ``"auto"`` tries, strong to weak, in units of the mean eigenvalue of the scatter:
from a hundred to a millionth, two a decade."""

PATIENCE = 3
"""So many weaker penalties in a row that do worse end the search."""


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
        variance = along @ shrunk + outside[:, None] * self.scale + self.noise / self.rows
        return variance + self.noise if noisy else variance

    def covariance(self, x: Tensor, *, noisy: bool = True) -> Tensor:
        """Of new targets with each other ``[m, m, k]``, or of their means if not ``noisy``."""
        centred = x - self.centre
        along = centred @ self.directions
        shrunk = self.noise / (self.eigenvalues[:, None] + self.penalty) - self.scale
        covariance = torch.einsum("ir,jr,rk->ijk", along, along, shrunk)
        covariance = (
            covariance + (centred @ centred.T)[:, :, None] * self.scale + self.noise / self.rows
        )
        eye = torch.eye(len(x), dtype=x.dtype)[:, :, None]
        return covariance + eye * self.noise if noisy else covariance


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
    rank = max(1, int((root > root[0] * 1e-13 * max(x.shape)).sum()))
    u, eigenvalues, directions = u[:, :rank], root[:rank].square(), vt[:rank].T
    left = y - target_mean
    along = u.T @ left  # [r, k]
    rest = (left - u @ along).square().sum(0)  # [k]
    unit = float(eigenvalues.mean()) or 1.0
    fits = [
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
    penalties = torch.tensor([each[0] for each in fits], dtype=torch.float64)
    noise = torch.tensor([each[1] for each in fits], dtype=torch.float64)
    weights = directions @ (root[:rank, None] * along / (eigenvalues[:, None] + penalties))
    return BayesLinear(
        weights,
        target_mean - centre @ weights,
        noise / penalties,
        noise,
        sum(each[2] for each in fits),
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


class Path(NamedTuple):
    """A fitted head, the penalties tried and their held-out log losses (empty if none were)."""

    head: Linear
    penalties: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def loss(self) -> float | None:
        """The held-out log loss of the chosen penalty, a row."""
        return min(self.losses) if self.losses else None


def fit_logistic(
    rows: Tensor, codes: Tensor, classes: int, penalty: Penalty = "auto", *, seed: int = 0
) -> Path:
    """The head of rows ``[n, d]`` with class codes ``[n]``.

    Among several penalties the one with the least log loss on rows held out is taken: five folds
    that are stratified by class, or as many as the largest class has rows.  A class with one row
    stays in every fold that is fitted.  When every class has one row there is nothing to hold out,
    and the middle penalty of those tried is taken.

    >>> x, y = torch.tensor([[0.0], [0.1], [1.0], [1.1]]), torch.tensor([0, 0, 1, 1])
    >>> fit_logistic(x, y, 2, penalty=0.1).head(x).argmax(1)
    tensor([0, 0, 1, 1])
    """
    rows = rows.double()
    mean = rows.mean(0)
    _, s, vt = torch.linalg.svd(rows - mean, full_matrices=False)
    rank = max(1, int((s > s[0] * 1e-12).sum()))
    strength = float(s.square().sum()) / rank or 1.0
    unit = (strength / len(rows)) ** 0.5
    basis = vt[:rank].T / unit  # [d, r]
    z = (rows - mean) @ basis
    choices = judged_penalties(penalty, lambda: tuple(step * strength for step in STEPS))
    choices = tuple(sorted(choices, reverse=True))  # each starts from the solution of a stronger
    losses: tuple[float, ...] = ()
    best = choices[len(choices) // 2]
    every, start = z.new_ones(len(z), 1), z.new_zeros(rank + 1, 1, classes)
    with threadpool_limits(1, user_api="blas"):  # L-BFGS's vectors are too short to share
        if len(choices) > 1 and int(torch.bincount(codes).max()) > 1:
            losses = _held_out(z, codes, classes, [each / unit**2 for each in choices], seed)
            best = choices[int(np.argmin(losses))]
        solution = _solve(z, codes, best / unit**2, start, every)[:, 0]
    weights = basis @ solution[:-1]
    return Path(Linear(weights, solution[-1] - mean @ weights, best), choices, losses)


def _held_out(
    z: Tensor, codes: Tensor, classes: int, penalties: Sequence[float], seed: int
) -> tuple[float, ...]:
    """The mean log loss of held-out rows for each penalty; infinite where the search had ended."""
    folds = folds_of(codes, seed)
    held = F.one_hot(folds + 1)[:, 1:].bool()  # [n, f]
    solution = z.new_zeros(z.shape[1] + 1, held.shape[1], classes)
    losses: list[float] = []
    for penalty in penalties:
        since = len(losses) - 1 - int(np.argmin(losses)) if losses else 0
        if since >= PATIENCE:
            losses.append(float("inf"))
            continue
        solution = _solve(z, codes, penalty, solution, (~held).double(), precision=1e-3)
        outputs = _outputs(z, solution)[held]  # a row at a time, by the fold that left it out
        losses.append(float(F.cross_entropy(outputs, codes[held.any(1)])))
    return tuple(losses)


def folds_of(codes: Tensor, seed: int, most: int = FOLDS) -> Tensor:
    """Which fold holds each row out ``[n]``; -1 for the only row of a class, which none does.

    At most ``most`` folds, stratified by class, and no more than the largest class has rows.

    >>> folds_of(torch.tensor([0, 0, 1, 1, 2]), seed=0).sort().values.tolist()
    [-1, 0, 0, 1, 1]
    """
    counts = torch.bincount(codes)
    number = min(most, int(counts.max()))
    drawn = torch.randperm(len(codes), generator=generator(seed, "folds"))
    order = drawn[torch.argsort(codes[drawn], stable=True)]
    order = order[counts[codes[order]] > 1]
    folds = torch.full_like(codes, -1)
    folds[order] = torch.arange(len(order)) % number  # dealt out class by class
    return folds


def _outputs(z: Tensor, solution: Tensor) -> Tensor:
    """Of several heads ``[r + 1, f, c]`` for rows ``[n, r]``, by one product: ``[n, f, c]``."""
    return (z @ solution[:-1].flatten(1)).reshape(-1, *solution.shape[1:]) + solution[-1]


def _solve(
    z: Tensor, codes: Tensor, penalty: float, start: Tensor, counts: Tensor, precision: float = 1e-8
) -> Tensor:
    """Weights and, in the last row, intercepts ``[r + 1, f, c]`` of ``f`` heads at once.

    A row counts for each of them as often as ``counts [n, f]`` says.  Heads have nothing to do with
    each other; as one problem they share their products, which are too small to be quick alone.

    In principal directions the curvature is nearly diagonal, about a tenth of the squares and the
    penalty; divided by its root, all directions are alike and few iterations do.
    """
    targets = F.one_hot(codes, start.shape[2]).double()[:, None]  # [n, 1, c]
    curvature = torch.cat([z.square().T @ counts / 10 + penalty, counts.sum(0)[None] / 10])
    root, counts = curvature.sqrt()[:, :, None], counts[:, :, None]

    def loss(flat: Any) -> tuple[float, Any]:
        solution = torch.from_numpy(flat).reshape(start.shape) / root
        logs = torch.log_softmax(_outputs(z, solution), dim=2)
        surplus = (logs.exp() - targets) * counts  # [n, f, c]
        pull = (z.T @ surplus.flatten(1)).reshape(solution[:-1].shape)
        slope = torch.cat([pull + penalty * solution[:-1], surplus.sum(0)[None]])
        value = penalty / 2 * solution[:-1].square().sum() - (logs * targets * counts).sum()
        return float(value), (slope / root).flatten().numpy()

    options = {"maxiter": 1000, "ftol": 1e-3 * precision, "gtol": precision * len(z) ** 0.5}
    first = (start * root).flatten().numpy()
    lowest = minimize(loss, first, jac=True, method="L-BFGS-B", options=options)
    return torch.from_numpy(lowest.x).reshape(start.shape) / root
