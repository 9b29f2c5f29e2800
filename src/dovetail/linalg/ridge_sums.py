r"""Ridge regression from sums that can be merged.

With rows :math:`x_i \in \mathbb{R}^d`, targets :math:`y_i \in \mathbb{R}^k` and row weights
:math:`w_i` (one unless said), the head

.. math::
    \min_{A, b} \sum_i w_i \lVert y_i - A^\top x_i - b\rVert^2 + \lambda \lVert A\rVert_F^2,
    \qquad A = (S + \lambda I)^{-1} C, \quad b = \bar y - A^\top \bar x

needs only the means :math:`\bar x, \bar y`, the scatter :math:`S = \sum_i w_i \tilde x_i \tilde
x_i^\top` and :math:`C = \sum_i w_i \tilde x_i \tilde y_i^\top` of the centred rows (tilde).  Each
process keeps its own and they add up; the sums are kept centred, so that a large common offset of
the features costs no digits.

Leaving row :math:`i` out, its prediction follows from the full fit and the row's leverage,

.. math::
    y_i - \hat y_{-i} = \frac{y_i - \hat y_i}{1 - h_i},
    \qquad h_i = \frac{w_i}{\sum_j w_j} + w_i\, \tilde x_i^\top (S + \lambda I)^{-1} \tilde x_i ,

so one eigendecomposition :math:`S = V \operatorname{diag}(s) V^\top` serves every row and every
:math:`\lambda`: :math:`O(nd^2 + d^3 + pndk)` for :math:`p` penalties.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.linalg.moments import Moments

GRID = tuple(10.0 ** (step / 2) for step in range(-12, 7))
"""Penalties that ``"auto"`` tries, in units of the mean eigenvalue: a millionth to a thousand."""

LEAST_FREE = 1e-9
r"""Rows whose :math:`1 - h_i` is smaller are not left out by division: no digits would be left."""

ENOUGH = 2500
"""So many rows, left out one by one, decide between penalties; more of them would not change it."""

_MOST_CELLS = 1 << 22
"""Predictions for several penalties are made at once while they stay within 32 MB."""

Penalty = float | Literal["auto"] | Sequence[float]


@dataclass(frozen=True)
class Linear:
    """A linear head: ``weights [d, k]``, ``intercept [k]``, and the penalty it was fitted with.

    >>> double = Linear(torch.tensor([[2.0]]), torch.tensor([1.0]), penalty=0.1)
    >>> double(torch.tensor([[3.0]]))
    tensor([[7.]], dtype=torch.float64)
    """

    weights: Tensor
    intercept: Tensor
    penalty: float

    def __call__(self, features: Any) -> Tensor:
        """Outputs ``[n, k]`` for rows ``[n, d]``."""
        return as_matrix(features, "features") @ self.weights.double() + self.intercept.double()


@dataclass(frozen=True)
class LeaveOneOut:
    """What the heads that never saw a row say about it.

    ``predictions [n, k]`` are those of the chosen ``penalty``, ``leverage [n]`` how much each row
    pulls its own fit, ``error`` the (weighted) mean squared error over rows and columns, and
    ``errors`` the same for each of the ``penalties`` tried.

    >>> zeros = torch.zeros(2, 1)
    >>> LeaveOneOut(zeros, torch.zeros(2), 1.0, (0.1, 1.0), (0.5, 0.25)).error
    0.25
    """

    predictions: Tensor
    leverage: Tensor
    penalty: float
    penalties: tuple[float, ...]
    errors: tuple[float, ...]

    @property
    def error(self) -> float:
        """The mean squared error of the chosen penalty."""
        return self.errors[self.penalties.index(self.penalty)]


class RidgeSums:
    """Sums of rows from which ridge heads are solved; they merge, so that processes can share them.

    >>> x, y = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([0.0, 1.0, 2.0, 3.0])
    >>> left, right = RidgeSums().update(x[:1], y[:1]), RidgeSums().update(x[1:], y[1:])
    >>> left.merge(right).fit(penalty=5.0).weights
    tensor([[0.5000]], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self._moments: Moments | None = None
        self._spectrum: tuple[Tensor, Tensor] | None = None

    @property
    def moments(self) -> Moments:
        """Means, scatter and products with the targets, of at least two rows."""
        if self._moments is None or self._moments.rows < 2:
            raise TaskError("a ridge head needs at least two rows")
        return self._moments

    def update(self, features: Any, targets: Any, weights: Any = None) -> RidgeSums:
        """Add rows ``[n, d]`` with targets ``[n, k]`` or ``[n]``, and their weights ``[n]``."""
        x, y, w = checked_rows(features, targets, weights)
        sizes = x.shape[1], y.shape[1]
        known = self._moments
        if known is not None and sizes != (known.d, known.k):
            raise TaskError(
                f"these rows have {sizes[0]} features and {sizes[1]} targets, the sums so far "
                f"{known.d} and {known.k}; keep one RidgeSums for each"
            )
        counts = w > 0
        if not bool(counts.all()):
            x, y, w = x[counts], y[counts], w[counts]
        if not len(x):
            return self
        new = Moments(*sizes, x.device, diagonal="targets")
        return self._add(new.update(x, y, None if weights is None else w))

    def merge(self, other: RidgeSums) -> RidgeSums:
        """Add the rows another has seen."""
        return self if other._moments is None else self._add(copy.deepcopy(other._moments))

    def _add(self, more: Moments) -> RidgeSums:
        self._moments = more if self._moments is None else self._moments.merge(more)
        self._spectrum = None
        return self

    def penalties(self) -> tuple[float, ...]:
        """What ``"auto"`` tries: :data:`GRID` times the mean eigenvalue of the scatter."""
        moments = self.moments
        return grid(float(moments.features.trace()), moments.rows, moments.d)

    def fit(self, penalty: float) -> Linear:
        """The head for one penalty."""
        (penalty,) = judged_penalties(float(penalty), self.penalties)
        (s, v), moments = self.spectrum(), self.moments
        weights = v @ ((v.T @ moments.cross) / (s + penalty)[:, None])
        return Linear(weights, moments.target_mean - moments.feature_mean @ weights, penalty)

    def squared_errors(
        self, features: Any, targets: Any, penalties: Sequence[float], weights: Any = None
    ) -> Tensor:
        """Summed squared leave-one-out errors ``[p]`` of these rows, which must be in the sums.

        Processes add theirs up, and the least one says which penalty all of them take.
        """
        x, y, w = checked_rows(features, targets, weights)
        return _Rotated(self, x, y, w).squared_errors(penalties)

    def leave_one_out(
        self, features: Any, targets: Any, penalty: Penalty = "auto", weights: Any = None
    ) -> LeaveOneOut:
        """Predict each of these rows, which must be in the sums, from all the other rows in them.

        A row that alone decides its own fit (leverage one, within rounding) gets the mean target
        of the others.  ``"auto"`` and several penalties are decided by the rows given here,
        or by a random choice of them where they are many (:data:`ENOUGH`).

        >>> x, y = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0.0, 1.0, 5.0])
        >>> RidgeSums().update(x, y).leave_one_out(x, y, penalty=1e9).predictions.T
        tensor([[3.0000, 2.5000, 0.5000]], dtype=torch.float64)
        """
        x, y, w = checked_rows(features, targets, weights)
        choices = judged_penalties(penalty, self.penalties)
        rotated = _Rotated(self, x, y, w)
        some = rotated.some(ENOUGH) if len(choices) > 1 else rotated
        errors = some.squared_errors(choices) / (some.w.sum() * y.shape[1])
        best = choices[int(errors.argmin())]
        residuals, free = rotated.left_out((best,))
        return LeaveOneOut(
            y - residuals[:, 0], 1 - free[:, 0], best, choices, tuple(errors.tolist())
        )

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues ``[d]`` and eigenvectors ``[d, d]`` of the scatter, kept until it changes."""
        if self._spectrum is None:
            s, v = torch.linalg.eigh(self.moments.features)
            self._spectrum = s.clamp(min=0), v
        return self._spectrum


class _Rotated:
    """Rows in the eigenbasis of the sums, where every penalty is a division."""

    def __init__(self, sums: RidgeSums, x: Tensor, y: Tensor, w: Tensor) -> None:
        (self.s, v), moments = sums.spectrum(), sums.moments
        if float(w.max()) >= moments.weight * (1 - 1e-12):
            raise TaskError("one row has all the weight: nothing is left when it is left out")
        self.y, self.w = y - moments.target_mean, w
        self.z = (x - moments.feature_mean) @ v  # [n, d]
        self.squares = self.z.square() * w[:, None]
        self.coefficients = v.T @ moments.cross  # [d, k]
        self.share = w / moments.weight

    def some(self, most: int) -> _Rotated:
        """At most so many of the rows, drawn at random."""
        n = len(self.z)
        if n <= most:
            return self
        drawn = torch.randperm(n, generator=generator(0, "penalties"))[:most].to(self.z.device)
        part = copy.copy(self)
        for name in ("y", "w", "z", "squares", "share"):
            setattr(part, name, getattr(self, name)[drawn])
        return part

    def squared_errors(self, penalties: Sequence[float]) -> Tensor:
        """Summed over the rows, ``[p]``."""
        return summed_errors(self.left_out, self.w, self.y.shape[1], penalties)

    def left_out(self, penalties: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Residuals ``[n, p, k]`` of rows left out, and what their leverage leaves ``[n, p]``."""
        n, k = self.y.shape
        several = torch.tensor(penalties, dtype=torch.float64, device=self.s.device)
        gain = 1 / (self.s[:, None] + several)  # [d, p]
        solved = (gain[:, :, None] * self.coefficients[:, None, :]).reshape(len(self.s), -1)
        residuals = self.y[:, None, :] - (self.z @ solved).reshape(n, -1, k)
        free = 1 - self.share[:, None] - self.squares @ gain
        stuck = free < LEAST_FREE
        residuals /= free.clamp(min=LEAST_FREE)[:, :, None]
        if bool(stuck.any()):
            alone = self.y / (1 - self.share)[:, None]
            residuals = torch.where(stuck[:, :, None], alone[:, None, :], residuals)
        return residuals, free


def summed_errors(
    left_out: Callable[[Sequence[float]], tuple[Tensor, Tensor]],
    w: Tensor,
    columns: int,
    penalties: Sequence[float],
) -> Tensor:
    """Weighted squared errors ``[p]`` of residuals ``[n, p, k]``, some penalties at a time."""
    step = max(1, _MOST_CELLS // max(1, len(w) * columns))
    errors = []
    for start in range(0, len(penalties), step):
        residuals, _ = left_out(penalties[start : start + step])
        errors.append(w @ torch.einsum("npk,npk->np", residuals, residuals))
    return torch.cat(errors)


def grid(trace: float, rows: int, columns: int) -> tuple[float, ...]:
    """:data:`GRID` in units of the mean eigenvalue, so that scaling the features changes nothing.

    >>> grid(6.0, rows=4, columns=7)[12]
    2.0
    """
    scale = trace / max(1, min(rows - 1, columns))
    return tuple(step * (scale if scale > 0 else 1.0) for step in GRID)


def judged_penalties(
    penalty: Penalty, automatic: Callable[[], tuple[float, ...]]
) -> tuple[float, ...]:
    """The penalties to try; refused unless positive.

    >>> judged_penalties((0.1, 1.0), tuple)
    (0.1, 1.0)
    """
    if isinstance(penalty, str):
        if penalty != "auto":
            raise SettingsError(f"penalty is a number, several, or 'auto'; got {penalty!r}")
        return automatic()
    several = penalty if isinstance(penalty, Sequence) else (penalty,)
    choices = tuple(float(each) for each in several)
    if not choices or not all(math.isfinite(each) and each > 0 for each in choices):
        raise SettingsError(
            f"penalties must be positive numbers, got {penalty!r}; for least squares without one, "
            "take a tiny one"
        )
    return choices


def as_matrix(values: Any, name: str) -> Tensor:
    """A float64 matrix ``[n, columns]``; a vector becomes one column, other axes are flattened.

    >>> as_matrix([1.0, 2.0], "targets").shape
    torch.Size([2, 1])
    """
    matrix = torch.as_tensor(values).detach().to(torch.float64)
    if matrix.ndim == 0:
        raise TaskError(f"{name} must be rows, got one number")
    matrix = matrix.reshape(len(matrix), -1) if matrix.ndim != 2 else matrix
    # The sum of what is not finite is not finite either, and is cheaper to look at.
    if not bool(matrix.sum().isfinite()) and not bool(matrix.isfinite().all()):
        raise TaskError(f"{name} hold values that are not finite; find out where they come from")
    return matrix


def checked_rows(features: Any, targets: Any, weights: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Rows ``[n, d]``, targets ``[n, k]`` and weights ``[n]``, float64 and of one length.

    >>> [tuple(each.shape) for each in checked_rows([[1.0, 2.0]], [3.0], None)]
    [(1, 2), (1, 1), (1,)]
    """
    x, y = as_matrix(features, "features"), as_matrix(targets, "targets")
    if len(x) != len(y):
        raise TaskError(f"{len(x)} rows of features but {len(y)} targets")
    if x.numel() == 0:
        raise TaskError(f"features of shape {tuple(x.shape)} hold nothing to learn from")
    y = y.to(x.device)
    if weights is None:
        return x, y, torch.ones(len(x), dtype=torch.float64, device=x.device)
    w = as_matrix(weights, "weights").squeeze(1).to(x.device)
    if w.shape != (len(x),) or bool((w < 0).any()):
        raise TaskError(f"weights must be {len(x)} numbers, none negative")
    return x, y, w
