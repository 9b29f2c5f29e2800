r"""Least squares with an intercept, exact to float64's last digits, over rows that stream by.

For rows :math:`x_i \in \mathbb{R}^d` with targets :math:`y_i \in \mathbb{R}^k`,

.. math::
    \min_{W, b} \sum_i \lVert x_i W + b - y_i\rVert^2 + \lambda \lVert W\rVert_F^2 .

Sums of products would square the condition of the rows, and nearly equal channels would cost every
digit.  So what is kept is the triangle of an orthogonal factorisation: stack it upon the next rows,
factorise again, and it is the triangle of all of them,

.. math::
    \begin{pmatrix} 1 & X & Y \end{pmatrix} = Q R, \qquad
    R = \begin{pmatrix} r & p & q \\ & A & B \\ & & C \end{pmatrix} .

With the ones in front, :math:`A` is the triangle of the *centred* rows, and all follows from it:
:math:`\min \lVert A W - B\rVert^2 + \lambda\lVert W\rVert^2` gives :math:`W`,
:math:`b = (q - pW)/r`, the squared residuals are :math:`\lVert AW - B\rVert^2 + \lVert C\rVert^2`,
and the squared deviations of the targets from their mean
:math:`\lVert B\rVert^2 + \lVert C\rVert^2`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.linalg.ridge_sums import Linear, checked_rows

_MOST_CELLS = 1 << 22
"""Rows are factorised in blocks of at most 32 MB, and of at least as many rows as columns."""

_CENTRED = 64 * torch.finfo(torch.float64).eps
"""What is left of a constant column once its mean is gone, in units of the column: rounding."""


class LeastSquares:
    """The triangle of all rows so far, from which the best linear map and its errors follow.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> rows = LeastSquares().update(x[:1], 2 * x[:1] + 1).update(x[1:], 2 * x[1:] + 1)
    >>> best = rows.solve()
    >>> best(torch.tensor([[10.0]])).round(decimals=9)
    tensor([[21.]], dtype=torch.float64)
    >>> round(rows.r2(best), 9)
    1.0
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sizes: tuple[int, int] | None = None
        self._triangle = torch.zeros(0)
        self._waiting: list[Tensor] = []
        self._factors: tuple[Tensor, Tensor, Tensor] | None = None

    def update(self, features: Any, targets: Any) -> LeastSquares:
        """Add rows ``[n, d]`` with targets ``[n, k]`` or ``[n]``."""
        x, y, _ = checked_rows(features, targets, None)
        sizes = (x.shape[1], y.shape[1])
        if self._sizes is not None and sizes != self._sizes:
            raise TaskError(
                f"these rows have {sizes[0]} features and {sizes[1]} targets, those so far "
                f"{self._sizes[0]} and {self._sizes[1]}; keep one LeastSquares for each"
            )
        self._sizes = sizes
        width = 1 + sum(sizes)
        block = max(width, _MOST_CELLS // width)
        for some, theirs in zip(torch.split(x, block), torch.split(y, block), strict=True):
            self.rows += len(some)
            self._waiting.append(torch.cat([some.new_ones(len(some), 1), some, theirs], dim=1))
            # A factorisation costs its columns squared even for one row, so few rows wait for more.
            if sum(map(len, self._waiting)) >= width:
                self._fold()
        return self

    def solve(self, ridge: float = 0.0) -> Linear:
        r"""The best map; where several are, the one with the least :math:`\lVert W\rVert_F`.

        Directions of the centred rows that are no longer than rounding errors count as none, so
        that a dead or a doubled channel gets no weight, or half of it.  ``ridge`` is
        :math:`\lambda`; it does not touch the intercept.

        >>> twice = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
        >>> LeastSquares().update(twice, [0.0, 4.0, 8.0]).solve().weights.T.round(decimals=9)
        tensor([[2., 2.]], dtype=torch.float64)
        """
        if not (isinstance(ridge, float | int) and math.isfinite(ridge) and ridge >= 0):
            raise SettingsError(f"ridge must be a number of at least 0, got {ridge!r}")
        first, inner, _ = self._blocks()
        d = self._columns[0]
        u, s, v = self._decomposed()
        gain = torch.where(s > self._least(), s / (s.square() + ridge), torch.zeros_like(s))
        weights = v.mT @ (gain[:, None] * (u.mT @ inner[:, d:]))
        intercept = (first[1 + d :] - first[1 : 1 + d] @ weights) / first[0]
        return Linear(weights, intercept, float(ridge))

    @property
    def rank(self) -> int:
        """How many directions the centred rows have.

        >>> LeastSquares().update([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]], [0.0, 1.0, 2.0]).rank
        1
        """
        return int((self._decomposed()[1] > self._least()).sum())

    @property
    def mean_square(self) -> float:
        r"""The mean squared singular value of the centred rows: a natural unit for ``ridge``.

        >>> round(LeastSquares().update([[0.0, 0.0], [2.0, 0.0]], [0.0, 1.0]).mean_square, 9)
        1.0
        """
        _, inner, _ = self._blocks()
        d = self._columns[0]
        return float(inner[:, :d].square().sum()) / d

    def squared_error(self, head: Linear) -> float:
        r"""The squared residuals :math:`\sum_i \lVert x_i W + b - y_i\rVert^2` of a map.

        >>> rows = LeastSquares().update([[0.0], [1.0], [2.0]], [0.0, 0.0, 3.0])
        >>> round(rows.squared_error(rows.solve()), 9)
        1.5
        """
        first, inner, last = self._blocks()
        d = self._columns[0]
        weights, intercept = head.weights.double(), head.intercept.double()
        shifted = first[0] * intercept + first[1 : 1 + d] @ weights - first[1 + d :]
        missed = shifted.square().sum() + (inner[:, :d] @ weights - inner[:, d:]).square().sum()
        return float(missed + last.square().sum())  # the last: what no map of these could explain

    def r2(self, head: Linear) -> float:
        r"""The share of the targets' variance that a map explains on these rows.

        One minus the squared residuals over the squared deviations from the mean, both summed over
        rows and columns.  Targets that do not vary are explained (1) or not (0).

        >>> rows = LeastSquares().update([[0.0], [1.0]], [0.0, 2.0])
        >>> zero = Linear(torch.zeros(1, 1), torch.zeros(1), 0.0)
        >>> round(rows.r2(zero), 9), round(rows.r2(rows.solve()), 9)
        (-1.0, 1.0)
        """
        first, inner, last = self._blocks()
        d = self._columns[0]
        error, beyond = self.squared_error(head), float(last.square().sum())
        varied = float(inner[:, d:].square().sum()) + beyond
        size = float(first[1 + d :].square().sum()) + varied
        if varied <= _CENTRED**2 * size:
            return 1.0 if error <= _CENTRED * size else 0.0
        return 1 - error / varied

    @property
    def _columns(self) -> tuple[int, int]:
        if self._sizes is None:
            raise TaskError("least squares needs at least one row")
        return self._sizes

    def _blocks(self) -> tuple[Tensor, Tensor, Tensor]:
        """``(r, p, q)`` as one row, ``(A, B)`` side by side, and ``C``."""
        d, _ = self._columns
        self._fold()
        return self._triangle[0], self._triangle[1 : 1 + d, 1:], self._triangle[1 + d :, 1 + d :]

    def _least(self) -> float:
        """Singular values of the centred rows up to this are rounding errors."""
        first, inner, _ = self._blocks()
        d = self._columns[0]
        longest = float(self._decomposed()[1][0])
        # Centring leaves rounding errors of the columns as they were, however long their means.
        before = math.sqrt(float(first[: 1 + d].square().sum() + inner[:, :d].square().sum()))
        eps = torch.finfo(torch.float64).eps
        return max(eps * max(self.rows, d) * longest, _CENTRED * before)

    def _decomposed(self) -> tuple[Tensor, Tensor, Tensor]:
        """The singular values of the centred rows and their vectors, once for all solutions."""
        _, inner, _ = self._blocks()  # which forgets them when there are new rows
        if self._factors is None:
            d = self._columns[0]
            self._factors = torch.linalg.svd(inner[:, :d], full_matrices=False)
        return self._factors

    def _fold(self) -> None:
        if not self._waiting:
            return
        self._factors = None
        above = [self._triangle] if self._triangle.numel() else []
        triangle = torch.linalg.qr(torch.cat([*above, *self._waiting]), mode="r").R
        short = triangle.shape[1] - len(triangle)  # fewer rows than columns so far
        self._triangle = torch.nn.functional.pad(triangle, (0, 0, 0, short))
        self._waiting = []
