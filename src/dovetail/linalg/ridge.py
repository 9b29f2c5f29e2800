r"""Ridge regression with an intercept and closed-form leave-one-out, float64.

With at least as many rows as columns everything follows from the :math:`d \times d` scatter
(:mod:`dovetail.linalg.ridge_sums`).  With fewer rows, or where rows are known by their inner
products only, it follows from the :math:`n \times n` Gram matrix of the centred rows,
:math:`\tilde K = H K H = U \operatorname{diag}(s) U^\top` with :math:`H = I - 1 1^\top / n`: the
residual of a row that was left out is

.. math::
    y_i - \hat y_{-i} = \frac{\sum_j u_{ij} (U^\top \tilde y)_j / (s_j + \lambda)}
                             {\sum_j u_{ij}^2 / (s_j + \lambda)} ,

a ratio in which nothing cancels, so that it stays exact when the fit passes through every row.
(:math:`u` is taken orthogonal to the constant, which the intercept has absorbed.)  One
decomposition serves every row and every penalty: :math:`O(n^3 + p n^2 k)` for :math:`p` of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.linalg.ridge_sums import (
    LEAST_FREE,
    LeaveOneOut,
    Linear,
    Penalty,
    RidgeSums,
    as_matrix,
    checked_rows,
    grid,
    judged_penalties,
    summed_errors,
)


def fit(features: Any, targets: Any, penalty: Penalty = "auto", weights: Any = None) -> Linear:
    """The ridge head of rows ``[n, d]`` for targets ``[n, k]`` (or ``[n]``).

    ``penalty`` is a number, several to choose from, or ``"auto"``; the choice is the one with the
    least leave-one-out squared error, see :func:`leave_one_out`.

    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> fit(x, 2 * x + 1, penalty=1e-9)(torch.tensor([[10.0]])).round(decimals=6)
    tensor([[21.]], dtype=torch.float64)
    """
    solved = solve(features, targets, weights)
    choices = judged_penalties(penalty, solved.penalties)
    return solved.fit(solved.leave_one_out(choices).penalty if len(choices) > 1 else choices[0])


def leave_one_out(
    features: Any, targets: Any, penalty: Penalty = 1.0, weights: Any = None
) -> LeaveOneOut:
    r"""Predict every row by the ridge head of all the others, without refitting.

    Args:
        features: Rows ``[n, d]``, tensor or array; further axes are flattened.
        targets: ``[n, k]`` or ``[n]`` numbers (one-hot columns for classes).
        penalty: :math:`\lambda > 0`, several of them, or ``"auto"``: 19 values from a millionth to
            a thousand times the mean eigenvalue of the scatter, two a decade, which makes the
            result independent of the scale of the features.  Among several the one with the least
            mean squared error is taken, the smallest of equals.
        weights: How much each row counts ``[n]``.

    >>> x, y = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0.0, 1.0, 2.0, 3.0])
    >>> leave_one_out(x, y, penalty=1e-9).predictions.flatten().round(decimals=6).tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    return solve(features, targets, weights).leave_one_out(penalty)


class Decomposed(Protocol):
    """Rows decomposed once; every penalty and every row left out follow cheaply."""

    def penalties(self) -> tuple[float, ...]:
        """What ``"auto"`` tries."""

    def fit(self, penalty: float) -> Linear:
        """The head for one penalty."""

    def leave_one_out(self, penalty: Penalty) -> LeaveOneOut:
        """Every row predicted by the head of all the others."""

    def remainder(self, penalty: float, rows: Tensor) -> Tensor:
        """The block of ``I - H`` for some rows ``[r, r]``, up to a common factor.

        ``H`` is the matrix that makes fitted values of targets.  Two by two its blocks say what a
        pair of rows left out together would be predicted.  Of rows that all weigh one.
        """


def solve(features: Any, targets: Any, weights: Any = None) -> Decomposed:
    """Decompose rows ``[n, d]`` for any number of heads and penalties.

    >>> solved = solve([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
    >>> solved.remainder(1e9, torch.arange(3))  # the mean is all that is fitted
    tensor([[ 0.6667, -0.3333, -0.3333],
            [-0.3333,  0.6667, -0.3333],
            [-0.3333, -0.3333,  0.6667]], dtype=torch.float64)
    """
    x, y, w = checked_rows(features, targets, weights)
    if int((w > 0).sum()) < 2:
        raise TaskError("a ridge head needs at least two rows (of positive weight)")
    return _ByColumns(x, y, w) if len(x) >= x.shape[1] else _ByRows(x, y, w)


class _ByColumns:
    """At least as many rows as columns: the sums do it, but for rows of leverage one."""

    def __init__(self, x: Tensor, y: Tensor, w: Tensor) -> None:
        self.x, self.y, self.w = x, y, w
        self.sums = RidgeSums().update(x, y, w)

    def penalties(self) -> tuple[float, ...]:
        return self.sums.penalties()

    def fit(self, penalty: float) -> Linear:
        return self.sums.fit(penalty)

    def leave_one_out(self, penalty: Penalty) -> LeaveOneOut:
        left_out = self.sums.leave_one_out(self.x, self.y, penalty, self.w)
        for row in (1 - left_out.leverage < LEAST_FREE).nonzero().flatten().tolist():
            # No digits are left to divide by, so this row really is left out.
            others = torch.arange(len(self.x)) != row
            head = RidgeSums().update(self.x[others], self.y[others], self.w[others])
            left_out.predictions[row] = head.fit(left_out.penalty)(self.x[row : row + 1])[0]
        return left_out

    def remainder(self, penalty: float, rows: Tensor) -> Tensor:
        s, v = self.sums.spectrum()
        z = (self.x[rows] - self.sums.moments.feature_mean) @ v
        hat = 1 / self.sums.moments.weight + (z / (s + penalty)) @ z.T
        return torch.eye(len(rows), dtype=z.dtype, device=z.device) - hat


class _ByRows:
    """Fewer rows than columns: the Gram matrix of the centred rows."""

    def __init__(self, x: Tensor, y: Tensor, w: Tensor) -> None:
        self.all_rows, self.all_targets = x, y
        self.counts = w > 0  # the others pull nothing, and are predicted by the full fit
        x, y, w = x[self.counts], y[self.counts], w[self.counts]
        self.mean, self.target_mean = w @ x / w.sum(), w @ y / w.sum()
        root = w.sqrt()
        self.rows = (x - self.mean) * root[:, None]
        targets = (y - self.target_mean) * root[:, None]
        self.solved = GramRidge(self.rows @ self.rows.T, targets, root)

    def penalties(self) -> tuple[float, ...]:
        return self.solved.penalties(self.rows.shape[1])

    def fit(self, penalty: float) -> Linear:
        weights = self.rows.T @ self.solved.dual(penalty)
        return Linear(weights, self.target_mean - self.mean @ weights, penalty)

    def leave_one_out(self, penalty: Penalty) -> LeaveOneOut:
        penalties = judged_penalties(penalty, self.penalties)
        best, errors = self.solved.chosen(penalties)
        residuals, free = self.solved.left_out((best,))
        predictions = self.fit(best)(self.all_rows)
        predictions[self.counts] = self.all_targets[self.counts] - residuals[:, 0]
        leverage = torch.zeros_like(predictions[:, 0])
        leverage[self.counts] = 1 - free[:, 0]
        return LeaveOneOut(predictions, leverage, best, penalties, errors)

    def remainder(self, penalty: float, rows: Tensor) -> Tensor:
        return self.solved.remainder(penalty, rows)


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
