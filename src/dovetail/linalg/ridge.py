r"""Ridge regression with an intercept and closed-form leave-one-out, float64.

With at least as many rows as columns everything follows from the :math:`d \times d` scatter
(:mod:`dovetail.linalg.ridge_sums`).  With fewer rows the :math:`n \times n` Gram matrix of the
centred rows is the smaller one (:mod:`dovetail.linalg.kernel_ridge`).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.linalg.kernel_ridge import GramRidge
from dovetail.linalg.ridge_sums import (
    LEAST_FREE,
    LeaveOneOut,
    Linear,
    Penalty,
    RidgeSums,
    checked_rows,
    judged_penalties,
)

__all__ = ["LeaveOneOut", "Linear", "Penalty", "Solved", "fit", "leave_one_out", "solve"]


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


class Solved(Protocol):
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


def solve(features: Any, targets: Any, weights: Any = None) -> Solved:
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
        found = self.sums.leave_one_out(self.x, self.y, penalty, self.w)
        for row in (1 - found.leverage < LEAST_FREE).nonzero().flatten().tolist():
            # No digits are left to divide by, so this row really is left out.
            others = torch.arange(len(self.x)) != row
            head = RidgeSums().update(self.x[others], self.y[others], self.w[others])
            found.predictions[row] = head.fit(found.penalty)(self.x[row : row + 1])[0]
        return found

    def remainder(self, penalty: float, rows: Tensor) -> Tensor:
        s, v = self.sums.spectrum()
        z = (self.x[rows] - self.sums.mean) @ v
        hat = 1 / self.sums.weight + (z / (s + penalty)) @ z.T
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
