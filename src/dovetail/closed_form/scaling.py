r"""Inputs and targets as the recurrence wants them, and its network as the user wants it.

Each input is centred, and all are divided by one number, the root of their mean variance:

.. math:: z = (x - \bar x) / s, \qquad s^2 = \tfrac1d \textstyle\sum_j \operatorname{Var} x_j .

So neither an offset nor the unit of the inputs changes the network, while inputs of unequal spread
stay unequal (pixels at the border of images are best left small).  An input that never changes
counts for nothing.  Of columns of unlike units (age, income) none is comparable with another, and
each is divided by its own deviation instead, :math:`s_j^2 = \operatorname{Var} x_j`.

Numbers to predict are standardised column by column.

All of it is affine, and is folded into the first and the last layer afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dovetail.closed_form.layers import Layer
from dovetail.closed_form.platonic import Platonic
from dovetail.closed_form.spread import Spread
from dovetail.core.errors import TaskError

__all__ = ["SCALES", "Scaling", "scaling_of"]

SCALES = ("together", "each")
"""What inputs are divided by: one number for all, or each by its own deviation."""

ROUNDED = 16 * torch.finfo(torch.float64).eps
"""A deviation of so little, relatively, is what rounding makes of one and the same number."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """``z = (x - centre) * factor`` for inputs ``[d]``, the same for targets ``[k]``.

    >>> one = torch.ones(1).double()
    >>> Scaling(3 * one, one / 2, one, one).inputs(torch.tensor([[5.0]]).double())
    tensor([[1.]], dtype=torch.float64)
    """

    centre: Tensor
    factor: Tensor
    target_centre: Tensor
    target_factor: Tensor

    def inputs(self, x: Tensor) -> Tensor:
        """Rows ``[n, d]`` as the recurrence wants them."""
        return (x - self.centre).mul_(self.factor)

    def targets(self, y: Tensor) -> Tensor:
        """Targets ``[n, k]`` as the recurrence wants them."""
        return (y - self.target_centre).mul_(self.target_factor)

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


def scaling_of(spread: Spread, inputs: int, columns: int, by: str = "together") -> Scaling:
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
    if by == "each":
        changes &= power.sqrt() > ROUNDED * spread.mean[:inputs].abs()
    else:
        power = (power * changes).mean().expand(inputs)
    if bool((changes & ~((power > 1e-280) & (power < 1e280))).any()):
        raise TaskError(
            f"the inputs reach from {float(spread.low[:inputs].min()):.3g} to "
            f"{float(spread.high[:inputs].max()):.3g}, and products of such numbers are beyond "
            "float64; bring them nearer to one"
        )
    both = zip(power.tolist(), changes.tolist(), strict=True)
    factor = torch.tensor([p**-0.5 if moves else 0.0 for p, moves in both], dtype=torch.float64)
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
    return Scaling(spread.mean[:inputs], factor, centre, scale.reciprocal())
