r"""Ridge regression that knows its rows by their inner products only, float64.

With the Gram matrix :math:`\tilde K = H K H = U \operatorname{diag}(s) U^\top` of centred rows
(:math:`H = I - 1 1^\top / n`) the residual of a row that was left out is

.. math::
    y_i - \hat y_{-i} = \frac{\sum_j u_{ij} (U^\top \tilde y)_j / (s_j + \lambda)}
                             {\sum_j u_{ij}^2 / (s_j + \lambda)} ,

a ratio in which nothing cancels, so that it stays exact when the fit passes through every row.
(:math:`u` is taken orthogonal to the constant, which the intercept has absorbed.)  One
decomposition serves every row and every penalty: :math:`O(n^3 + p n^2 k)` for :math:`p` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.linalg.ridge_sums import (
    LeaveOneOut,
    Penalty,
    as_matrix,
    grid,
    judged_penalties,
    summed_errors,
)

__all__ = ["GramRidge", "kernel_leave_one_out"]


def kernel_leave_one_out(kernel: Any, targets: Any, penalty: Penalty = "auto") -> LeaveOneOut:
    r"""Predict every row by the kernel ridge fit, with an intercept, of all the others.

    Args:
        kernel: Inner products of the rows ``[n, n]``, as they are: centring is done here.
        targets: ``[n, k]`` or ``[n]`` numbers (one-hot columns for classes).
        penalty: :math:`\lambda > 0`, several of them, or ``"auto"``, as for
            :func:`dovetail.linalg.ridge.leave_one_out`, with which it agrees for
            :math:`K = X X^\top`.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> found = kernel_leave_one_out(x @ x.T, x, penalty=1e-9)
    >>> found.predictions.flatten().round(decimals=6).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    gram, y = as_matrix(kernel, "kernel"), as_matrix(targets, "targets")
    if gram.shape != (len(y), len(y)):
        raise TaskError(
            f"a kernel of {len(y)} targets is [{len(y)}, {len(y)}], got {list(gram.shape)}"
        )
    if len(y) < 2:
        raise TaskError("leaving one out takes at least two rows")
    y = y.to(gram.device)
    means = gram.mean(0)
    gram = gram - means - means[:, None] + means.mean()
    solved = GramRidge(gram, y - y.mean(0), torch.ones_like(y[:, 0]))
    choices = judged_penalties(penalty, lambda: solved.penalties(len(y)))
    best, errors = solved.chosen(choices)
    residuals, free = solved.left_out((best,))
    return LeaveOneOut(y - residuals[:, 0], 1 - free[:, 0], best, choices, errors)


class GramRidge:
    """Centred rows decomposed by their Gram matrix; every penalty and every row left out follow.

    Args:
        gram: Inner products ``[n, n]`` of centred rows, each times its ``root``.
        targets: Centred ``[n, k]``, each times its ``root``.
        root: Square roots of the rows' weights ``[n]``, all positive.
    """

    def __init__(self, gram: Tensor, targets: Tensor, root: Tensor) -> None:
        self.root = root
        s, self.u = torch.linalg.eigh(gram)
        self.s = s.clamp(min=0)
        # What is left of the basis once the intercept has taken the constant.
        constant = root / root.norm()
        self.basis = self.u - torch.outer(constant, constant @ self.u)
        self.coefficients = self.basis.T @ targets

    def penalties(self, columns: int) -> tuple[float, ...]:
        """What ``"auto"`` tries, for rows of so many columns."""
        return grid(float(self.s.sum()), len(self.s), columns)

    def dual(self, penalty: float) -> Tensor:
        """What each row has in the weights ``[n, k]``."""
        dual: Tensor = self.u @ (self.coefficients / (self.s + penalty)[:, None])
        return dual

    def left_out(self, penalties: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Residuals ``[n, p, k]`` of rows left out, and what their leverage leaves ``[n, p]``."""
        several = torch.tensor(penalties, dtype=torch.float64, device=self.s.device)
        gain = 1 / (self.s[:, None] + several)  # [n, p]
        n, k = self.coefficients.shape
        solved = (gain[:, :, None] * self.coefficients[:, None, :]).reshape(n, -1)
        free = self.basis.square() @ gain
        divisor = (free * self.root[:, None])[:, :, None]
        return (self.basis @ solved).reshape(n, -1, k) / divisor, free * several

    def chosen(self, penalties: Sequence[float]) -> tuple[float, tuple[float, ...]]:
        """The penalty of the least mean squared error of rows left out, and the errors of all."""
        weights, k = self.root.square(), self.coefficients.shape[1]
        errors = summed_errors(self.left_out, weights, k, penalties) / (weights.sum() * k)
        return penalties[int(errors.argmin())], tuple(errors.tolist())

    def remainder(self, penalty: float, rows: Tensor) -> Tensor:
        """The block of ``I - H`` for some rows ``[r, r]``, where ``H`` makes fits of targets."""
        basis = self.basis[rows]
        block: Tensor = (basis / (self.s + penalty)) @ basis.T * penalty
        return block
