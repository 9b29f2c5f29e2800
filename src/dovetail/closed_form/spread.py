"""How far columns reach: their means, variances and extremes, in sums that merge."""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.core.errors import TaskError

__all__ = ["Spread"]


class Spread:
    r"""Weighted mean and variance of each of ``columns`` columns, its least and greatest value.

    The variance is kept as :math:`\sum_i w_i (a_i - \bar a)^2`, which two shares of the rows add up
    without losing digits to a common offset.  The extremes tell a column that never changes from
    one whose rounding errors do.

    >>> spread = Spread(1).update(torch.tensor([[1.0], [3.0]])).update(torch.tensor([[5.0]]))
    >>> spread.mean, spread.variance, spread.constant
    (tensor([3.], dtype=torch.float64), tensor([2.6667], dtype=torch.float64), tensor([False]))
    """

    def __init__(self, columns: int) -> None:
        self.rows = 0
        self.weight = 0.0
        self.whole = True
        self.mean = torch.zeros(columns, dtype=torch.float64)
        self.squares = torch.zeros(columns, dtype=torch.float64)
        self.low = torch.full((columns,), torch.inf, dtype=torch.float64)
        self.high = torch.full((columns,), -torch.inf, dtype=torch.float64)

    @property
    def variance(self) -> Tensor:
        """Of each column ``[c]``."""
        return self.squares / self.weight

    @property
    def row_weight(self) -> float:
        """What weights are divided by: whole ones count copies of rows, others only compare them.

        >>> Spread(1).update(torch.rand(4, 1), torch.tensor([0.5, 0.0, 0.5, 0.25])).row_weight
        0.3125
        """
        return 1.0 if self.whole else self.weight / self.rows

    @property
    def constant(self) -> Tensor:
        """Which columns never change ``[c]``."""
        return self.low == self.high

    def update(self, values: Tensor, weights: Tensor | None = None) -> Spread:
        """Add rows ``[b, c]`` with positive weights ``[b]`` (one unless said)."""
        if len(values) == 0:
            return self
        other = Spread(values.shape[1])
        other.rows = len(values)
        values = values.double()
        w = torch.ones(len(values), dtype=torch.float64) if weights is None else weights.double()
        other.weight = float(w.sum())
        other.whole = bool((w == w.round()).all())
        other.mean = w @ values / other.weight
        other.squares = w @ (values - other.mean).square()
        other.low, other.high = values.amin(0), values.amax(0)
        return self.merge(other)

    def merge(self, other: Spread) -> Spread:
        """Add the rows another has seen."""
        if len(other.mean) != len(self.mean):
            raise TaskError(
                f"rows of {len(other.mean)} columns meet rows of {len(self.mean)}; all must have "
                "the same"
            )
        if other.rows == 0:
            return self
        total = self.weight + other.weight
        apart = other.mean - self.mean
        share = other.weight / total
        self.squares = self.squares + other.squares + self.weight * share * apart.square()
        self.mean = self.mean + share * apart
        self.low, self.high = self.low.minimum(other.low), self.high.maximum(other.high)
        self.rows, self.weight = self.rows + other.rows, total
        self.whole = self.whole and other.whole
        return self

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors by name, to send to another process."""
        return {
            "rows": torch.tensor([self.rows, self.whole]),
            "weight": torch.tensor(self.weight, dtype=torch.float64),
            "columns": torch.stack([self.mean, self.squares, self.low, self.high]),
        }

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Spread:
        """What :meth:`state` gave.

        >>> Spread.from_state(Spread(2).update(torch.rand(3, 2)).state()).rows
        3
        """
        found = cls(state["columns"].shape[1])
        found.rows, found.whole = int(state["rows"][0]), bool(state["rows"][1])
        found.weight = float(state["weight"])
        found.mean, found.squares, found.low, found.high = state["columns"]
        return found
