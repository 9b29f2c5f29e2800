r"""What is summed for targets that are numbers: regression, or the zeros and ones of many labels.

With targets :math:`y \in \mathbb{R}^k`, their mean and scatter :math:`\sum \tilde y \tilde
y^\top`, and with raw and unit rows the products :math:`\sum \tilde y \tilde x^\top` and
:math:`\sum \tilde y \tilde\phi^\top` of centred values (tilde).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["NumberSums"]


@dataclass
class NumberSums:
    """``mean [k]``, ``scatter [k, k]``, ``raw_cross`` and ``unit_cross [k, d]``.

    >>> zero, one = torch.zeros(1), torch.ones(1)
    >>> def of(y):
    ...     return NumberSums(y, *torch.zeros(3, 1, 1))
    >>> sums = of(zero)
    >>> sums.absorb(of(one), mine=1, theirs=1, raw_gap=2 * one, unit_gap=zero)
    >>> sums.mean, sums.raw_cross
    (tensor([0.5000]), tensor([[1.]]))
    """

    mean: Tensor
    scatter: Tensor
    raw_cross: Tensor
    unit_cross: Tensor

    def absorb(
        self,
        other: NumberSums,
        sign: int = 1,
        *,
        mine: int,
        theirs: int,
        raw_gap: Tensor,
        unit_gap: Tensor,
    ) -> None:
        """Add ``theirs`` rows to ``mine``, or with ``sign=-1`` take them away.

        The gaps are how far the means of their features ``[d]`` lie from ours.
        """
        n = mine + sign * theirs
        gap = other.mean - self.mean
        weight = sign * mine * theirs / n
        for own, more, right in (
            (self.scatter, other.scatter, gap),
            (self.raw_cross, other.raw_cross, raw_gap),
            (self.unit_cross, other.unit_cross, unit_gap),
        ):
            own.add_(more, alpha=sign)
            own.add_(torch.outer(gap, right), alpha=weight)
        self.mean = self.mean + gap * (sign * theirs / n)
