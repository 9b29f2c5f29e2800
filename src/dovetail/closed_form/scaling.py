r"""Inputs and targets as the recurrence wants them, and its network as the user wants it.

Each input is centred, and all are divided by one number, the root of their mean variance
(``"together"``):

.. math:: z = (x - \bar x) / s, \qquad s^2 = \tfrac1d \textstyle\sum_j \operatorname{Var} x_j .

So neither an offset nor the unit of the inputs changes the network, while inputs of unequal spread
stay unequal (pixels at the border of images are best left small).  An input that never changes
counts for nothing.  Columns of unlike units (age, income) can each be divided by their own
deviation, :math:`s_j^2 = \operatorname{Var} x_j` (``"each"``).

Unless said (``"auto"``), inputs are taken together, but none is to drown the others or to be lost
among them: one whose range :math:`r_j` (greatest less least value) is more than twice the median
:math:`m` of all ranges, or less than half of it, is first brought to that,

.. math:: x_j \leftarrow x_j \, \min(\max(r_j, m / 2), 2 m) / r_j .

The range, not the deviation, because a pixel that is rarely lit deviates little and reaches as far
as any.  Where most inputs share their least value (the background of images), those that do and
reach less far are pixels that were never fully lit, and stay small.

Numbers to predict are standardised column by column.

How far columns reach is found in sums that merge (:class:`Spread`).  All of it is affine, and is
folded into the first and the last layer afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dovetail.closed_form.layers import Layer
from dovetail.closed_form.platonic import Platonic
from dovetail.closed_form.rows import Block
from dovetail.core.errors import TaskError
from dovetail.linalg.moments import Moments

SCALES = ("auto", "together", "each")
"""What inputs are divided by: one number for all (once their ranges are alike, or as they are), or
each by its own deviation."""

ALIKE = 2.0
"""Ranges within this factor of the median are of inputs in like units."""

ROUNDED = 16 * torch.finfo(torch.float64).eps
"""A range of so little, relatively, is what rounding makes of one and the same number."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """``z = (x - centre) * factor`` for inputs ``[d]``, the same for targets ``[k]``.

    Weights of rows are divided by ``row_weight``.

    >>> one, row = torch.ones(1).double(), torch.tensor([[5.0]]).double()
    >>> Scaling(3 * one, one / 2, one, one).scaled(Block(row, row)).z
    tensor([[1.]], dtype=torch.float64)
    """

    centre: Tensor
    factor: Tensor
    target_centre: Tensor
    target_factor: Tensor
    row_weight: float = 1.0

    def scaled(self, rows: Block) -> Block:
        """Raw rows ``[n, d]`` with targets ``[n, k]`` as the recurrence wants them."""
        return Block(
            (rows.z - self.centre).mul_(self.factor),
            (rows.y - self.target_centre).mul_(self.target_factor),
            None if rows.weights is None else rows.weights / self.row_weight,
        )

    def folded(self, network: Platonic) -> list[Layer]:
        """The layers that do to raw inputs what the network does to scaled ones, head included."""
        back = self.target_factor.reciprocal()
        head = replace(
            network.head,
            weights=network.head.weights * back,
            bias=network.head.bias * back + self.target_centre,
        )
        first, *rest = *network.layers, head
        weights = self.factor[:, None] * first.weights
        return [replace(first, weights=weights, bias=first.bias - self.centre @ weights), *rest]


def scaling_of(spread: Spread, inputs: int, columns: int, by: str = "auto") -> Scaling:
    """The scaling of ``inputs`` inputs; what the spread knows beyond is of numbers to predict.

    Args:
        spread: Of inputs, and of numbers to predict beside them.
        inputs: How many of the columns are inputs.
        columns: How many targets there are; those the spread does not know stay as they are.
        by: One of :data:`SCALES`.

    >>> scaling_of(Spread(2).update(torch.tensor([[0.0, 7.0], [2.0, 7.0]])), 2, 1).factor
    tensor([1.4142, 0.0000], dtype=torch.float64)
    >>> scaling_of(Spread(2).update(torch.tensor([[0.0, 0.0], [2.0, 8.0]])), 2, 1, "each").factor
    tensor([1.0000, 0.2500], dtype=torch.float64)
    """
    changes, power = ~spread.constant[:inputs], spread.variance[:inputs]
    low, high, alike = spread.low[:inputs], spread.high[:inputs], torch.ones_like(power)
    if by != "together":
        changes &= high - low > ROUNDED * spread.mean[:inputs].abs()
    if by == "auto" and bool(changes.any()):
        alike[changes] = _ranges_made_alike(low[changes], high[changes])
    if by != "each":
        power = (power * alike.square() * changes).mean().expand(inputs)
    if bool((changes & ~((power > 1e-280) & (power < 1e280))).any()):
        raise TaskError(
            f"the inputs reach from {float(low.min()):.3g} to {float(high.max()):.3g}, and "
            "products of such numbers are beyond float64; bring them nearer to one"
        )
    both = zip(power.tolist(), changes.tolist(), strict=True)
    factor = torch.tensor([p**-0.5 if moves else 0.0 for p, moves in both], dtype=torch.float64)
    factor *= alike
    centre, scale = torch.zeros(columns).double(), torch.ones(columns).double()
    if len(spread.mean) > inputs:
        centre = spread.mean[inputs:]
        deviation = spread.variance[inputs:].sqrt()
        known = ~spread.constant[inputs:]
        if bool((known & ~((deviation > 1e-140) & (deviation < 1e140))).any()):
            raise TaskError(
                "some numbers to predict are so large or so close to each other that their squares "
                "are beyond float64; bring them nearer to one"
            )
        scale = torch.where(known, deviation, torch.ones_like(deviation))
    return Scaling(
        spread.mean[:inputs], factor, centre, scale.reciprocal(), row_weight=spread.row_weight
    )


def _ranges_made_alike(low: Tensor, high: Tensor) -> Tensor:
    """What to multiply inputs by so that none of their ranges is far from the median ``[d]``.

    >>> _ranges_made_alike(torch.zeros(4), torch.tensor([1.0, 1.0, 10.0, 0.1]))
    tensor([1.0000, 1.0000, 0.2000, 1.0000])
    >>> _ranges_made_alike(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 2.125]))
    tensor([1., 1., 4.])
    """
    ranges = high - low
    ordered = ranges.log().sort().values
    typical = float((ordered[(len(low) - 1) // 2] + ordered[len(low) // 2]).div(2).exp())
    background = low == low.mode().values
    if 2 * int(background.sum()) <= len(low):
        background = torch.zeros_like(background)
    wanted = ranges.clamp(typical / ALIKE, typical * ALIKE)
    return torch.where(background & (ranges < typical), 1.0, wanted / ranges)


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
        self.moments = Moments(columns, diagonal="both")
        self.whole = True
        self.low = torch.full((columns,), torch.inf, dtype=torch.float64)
        self.high = torch.full((columns,), -torch.inf, dtype=torch.float64)

    @property
    def rows(self) -> int:
        """How many rows there were."""
        return self.moments.rows

    @property
    def weight(self) -> float:
        """What they weigh together."""
        return self.moments.weight

    @property
    def mean(self) -> Tensor:
        """Of each column ``[c]``."""
        return self.moments.mean

    @property
    def variance(self) -> Tensor:
        """Of each column ``[c]``."""
        return self.moments.features / self.moments.weight

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
        self._refuse_other(values.shape[1])
        self.moments.update(values, weights=weights)
        self.whole &= weights is None or bool((weights == weights.round()).all())
        self._reach(values.amin(0).double(), values.amax(0).double())
        return self

    def merge(self, other: Spread) -> Spread:
        """Add the rows another has seen."""
        self._refuse_other(len(other.mean))
        self.moments.merge(other.moments)
        self.whole &= other.whole
        self._reach(other.low, other.high)
        return self

    def _reach(self, low: Tensor, high: Tensor) -> None:
        self.low, self.high = self.low.minimum(low), self.high.maximum(high)

    def _refuse_other(self, columns: int) -> None:
        if columns != len(self.mean):
            raise TaskError(
                f"rows of {columns} columns meet rows of {len(self.mean)}; all must have the same"
            )

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors by name, to send to another process."""
        own = {"whole": torch.tensor(self.whole), "low": self.low, "high": self.high}
        return own | self.moments.state()

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Spread:
        """What :meth:`state` gave.

        >>> Spread.from_state(Spread(2).update(torch.rand(3, 2)).state()).rows
        3
        """
        spread = cls(0)
        spread.moments = Moments.from_state(state)
        spread.whole, spread.low, spread.high = bool(state["whole"]), state["low"], state["high"]
        return spread
