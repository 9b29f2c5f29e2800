r"""The evidence of a Bayesian linear model, maximised: LogME.

For one target :math:`t \in \mathbb{R}^n` and features :math:`F`, :math:`t = F w + e` with
:math:`w \sim N(0, I/a)` and :math:`e \sim N(0, I/b)`, so :math:`t \sim N(0, I/b + FF^\top/a)`.
With the eigenvalues :math:`s_i > 0` of :math:`F^\top F`, the target's part :math:`x_i` along the
:math:`i`-th left singular vector, :math:`\lambda = a / b` and :math:`w_i = \lambda/(\lambda +
s_i)`, the best :math:`b` for a given :math:`\lambda` is :math:`n / q`, which leaves

.. math::
    \frac{L(\lambda)}{n} = -\frac12 \left(1 + \log \frac{2 \pi q}{n}\right)
    + \frac{1}{2n} \sum_i \log w_i, \qquad
    q = \sum_i w_i x_i^2 + \Big(t^\top t - \sum_i x_i^2\Big).

One unknown instead of two: its logarithm is searched on a grid (evidence can have two maxima) and
then by Newton's method, held between its neighbours.  :math:`\lambda \to \infty` is a part that
says nothing, :math:`-\frac12 (1 + \log(2 \pi t^\top t / n))`: the *null value*, taken when nothing
beats it.  Features with :math:`s_i = 0` have :math:`w_i = 1` and drop out, hence nothing is
special about :math:`n < d`.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.linalg.moments import SecondMoment
from dovetail.measure.inputs import CHUNK, float_rows, lengths_of, plain_targets

CUT = 1e-12
"""Eigenvalues below this share of the greatest are rounding, and count as zero."""

NOISE = 1e-12
"""Targets that the features fit exactly have no bound on their evidence; sums in double precision
know a residual only to about this share of the target, so the noise is taken to be no less."""

_STEPS, _NEAR = 60, 1e-10
_BELOW, _ABOVE = 30.0, 25.0
_ROWS = 4096


def logme(features: Any, targets: Any) -> float:
    r"""The mean over targets of their log evidence a row, of rows that are all at hand.

    What ``PairStatistics().update(features, targets).score("logme")`` gives, in less than half the
    time: :math:`O(n d \min(n, d))`.

    Args:
        features: Rows ``[n, d]``.
        targets: Integers ``[n]``, a class each, or numbers ``[n]`` or ``[n, k]``.

    >>> rows = torch.tensor([[1.0, 0.0], [0.9, 0.2], [0.1, 1.0], [0.0, 0.8]])
    >>> logme(rows, [0, 0, 1, 1]) > logme(rows, [0, 1, 0, 1])
    True
    """
    rows = float_rows(features)
    values = plain_targets(targets, len(rows))
    n, width = rows.shape
    if not n:
        raise TaskError("there are no rows to score")
    if n < width:
        lengths_of(rows)  # refuses what is not finite
        rows = torch.linalg.qr(rows.double().T, mode="r").R.T  # the same lengths and angles
        width = n
    if values.is_floating_point():
        total = values.square().sum(0)
    else:
        _, values, counts = torch.unique(values, return_inverse=True, return_counts=True)
        total = counts.double()  # of one-hot targets
    second = SecondMoment(width)
    products = torch.zeros(len(total), width, dtype=torch.float64)
    for start in range(0, n, _ROWS):
        part = slice(start, start + _ROWS)
        chunk = rows[part].double()
        second.add(chunk)
        if values.is_floating_point():
            products.addmm_(values[part].T, chunk)
        else:
            products.index_add_(0, values[part], chunk)
    matrix = second.matrix()
    if not matrix.isfinite().all():
        lengths_of(rows)  # says which row
    return mean_evidence(matrix, products, total, n)


def log_evidence(
    eigenvalues: Tensor, squares: Tensor, total: Tensor, n: int, *, full: bool = False
) -> Tensor:
    r"""The greatest log evidence of each target, divided by ``n``: ``[m]``.

    Args:
        eigenvalues: The positive eigenvalues of :math:`F^\top F`, ``[k]``; may be none.
        squares: :math:`x_i^2` of each target, ``[m, k]``.
        total: :math:`t^\top t > 0` of each target, ``[m]``.
        n: The number of rows.
        full: The features span every target (their rank is ``n``), so there is no residual.

    >>> nothing = torch.zeros(0, dtype=torch.float64)
    >>> one = torch.ones(1, dtype=torch.float64)
    >>> log_evidence(nothing, nothing[None], 4 * one, 4)  # the null value
    tensor([-1.4189], dtype=torch.float64)
    """
    null = -0.5 * (1 + torch.log(2 * math.pi * total / n))
    if not len(eigenvalues):
        return null
    best = torch.empty_like(null)
    step = max(CHUNK // len(eigenvalues), 1)
    for start in range(0, len(total), step):
        part = slice(start, start + step)
        best[part] = _Profile(eigenvalues, squares[part], total[part], n, full).greatest()
    return torch.maximum(best, null)


def mean_evidence(second: Tensor, products: Tensor, total: Tensor, n: int) -> float:
    r"""The mean over targets of their log evidence a row, from sums.

    Args:
        second: :math:`F^\top F`, ``[d, d]``.
        products: :math:`t^\top F` of each target, ``[m, d]``.
        total: :math:`t^\top t` of each, ``[m]``; targets that are all zero are left out.
        n: The number of rows.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> mean_evidence(0 * one, 0 * one, 4 * one[0], 4)
    -1.4189385332046727
    """
    varying = total > 0
    if not varying.any():
        raise TaskError("the targets are all zero; 'logme' is undefined")
    values, vectors = torch.linalg.eigh(second)
    large = values > CUT * values[-1].clamp(min=0)
    values, vectors = values[large], vectors[:, large]
    squares = (products[varying] @ vectors).square() / values
    return float(log_evidence(values, squares, total[varying], n, full=len(values) >= n).mean())


class _Profile:
    """The evidence as a function of the logarithm of lambda, for several targets at once."""

    def __init__(self, s: Tensor, squares: Tensor, total: Tensor, n: int, full: bool) -> None:
        self.s, self.squares, self.n = s, squares, n
        self.floor = NOISE * total
        rest = total - squares.sum(1)
        self.rest = torch.where((rest > self.floor) & (not full), rest, 0.0)

    def greatest(self) -> Tensor:
        """The maximum of each target, ``[m]``."""
        low = math.log(float(self.s.min())) - _BELOW
        high = math.log(float(self.s.max())) + math.log(self.n) + _ABOVE
        grid = torch.linspace(low, high, math.ceil(high - low) + 1, dtype=torch.float64)
        ratio = grid[:, None] - self.s.log()  # [g, k], the same for every target
        q = torch.maximum(torch.sigmoid(ratio) @ self.squares.T + self.rest, self.floor)  # [g, m]
        best, at = self._value(q, F.logsigmoid(ratio).sum(1)[:, None]).max(0)
        inner = ((at > 0) & (at < len(grid) - 1)).nonzero()[:, 0]  # the last is the null value
        if len(inner):
            near = at[inner]
            refined = self._only(inner)._refine(grid[near], grid[near - 1], grid[near + 1])
            best[inner] = torch.maximum(best[inner], refined)
        return best

    def _only(self, which: Tensor) -> _Profile:
        part = copy.copy(self)
        part.squares, part.rest = self.squares[which], self.rest[which]
        part.floor = self.floor[which]
        return part

    def _value(self, q: Tensor, logs: Tensor) -> Tensor:
        return (logs / self.n - 1 - torch.log(2 * math.pi * q / self.n)) / 2

    def _at(self, theta: Tensor) -> Tensor:
        ratio = theta[:, None] - self.s.log()
        q = torch.maximum((self.squares * torch.sigmoid(ratio)).sum(1) + self.rest, self.floor)
        return self._value(q, F.logsigmoid(ratio).sum(1))

    def _refine(self, theta: Tensor, below: Tensor, above: Tensor) -> Tensor:
        """The maximum near ``theta``, between two neighbours; all ``[m]``."""
        best, todo, part = theta.clone(), torch.arange(len(theta)), self
        for _ in range(_STEPS):
            slope, bend = part._slope(theta)
            below = torch.where(slope > 0, theta, below)
            above = torch.where(slope > 0, above, theta)
            newton = theta - slope / torch.where(bend < 0, bend, -1.0)
            inside = (bend < 0) & (newton >= below) & (newton <= above)
            new = torch.where(inside, newton, (below + above) / 2)
            moving = (new - theta).abs() > _NEAR
            theta = best[todo] = new
            if not moving.any():
                break
            if not moving.all():
                theta, below, above = theta[moving], below[moving], above[moving]
                todo, part = todo[moving], part._only(moving)
        return self._at(best)

    def _slope(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """First and second derivative, both times 2."""
        ratio = theta[:, None] - self.s.log()  # [m, k]
        w, less = torch.sigmoid(ratio), torch.sigmoid(-ratio)
        fall = w * less
        weighed = self.squares * fall
        plain = (self.squares * w).sum(1) + self.rest
        free = plain > self.floor  # on the floor q does not move
        q = torch.where(free, plain, self.floor)
        first = torch.where(free, weighed.sum(1), 0.0) / q
        second = torch.where(free, (weighed * (less - w)).sum(1), 0.0) / q
        slope = less.sum(1) - self.n * first
        return slope, -self.n * (second - first.square()) - fall.sum(1)
