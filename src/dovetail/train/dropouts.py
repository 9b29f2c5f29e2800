r"""The two dropouts of a training layer by layer: of what enters a stage, and of what comes back.

In a network that is trained at once, what enters a layer keeps changing while those below it learn,
and what comes back to it has gone through all layers above.  A layer that is trained alone has
neither, and overfits.  Dropout of its input, less from epoch to epoch, stands for the first:

.. math:: p_e = p_0 \, d^{\,e}, \qquad e = 0, 1, \dots

Dropout of the gradient that the decision block sends back stands for the second.  The decision
block itself sees neither.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.train.loop import EpochSource


class InputDropout(nn.Module):
    """Dropout whose rate may be set from epoch to epoch (:class:`Fading` does).

    >>> InputDropout(0.8, 0.95).at_epoch(2).rate
    0.722
    """

    def __init__(self, first: float = 0.0, fade: float = 1.0) -> None:
        super().__init__()
        self.first, self.fade = first, fade
        self.rate = first

    def at_epoch(self, number: int) -> InputDropout:
        """The rate of an epoch, counted from 0: set, and the module itself."""
        self.rate = round(self.first * self.fade**number, 12)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[n, ...]`` to the same shape, kept entries divided by the share that is kept."""
        return F.dropout(x, self.rate, self.training) if self.rate else x

    def extra_repr(self) -> str:
        """The first rate, and its factor."""
        return f"{self.first} fading by {self.fade} an epoch"


class GradientDropout(nn.Module):
    """Leaves what goes forward as it is, and drops some of the gradient that comes back.

    >>> x = torch.ones(1000, requires_grad=True)
    >>> GradientDropout(0.5)(x).sum().backward()
    >>> x.grad.unique()
    tensor([0., 2.])
    """

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """The very numbers that come in."""
        if not (self.rate and self.training):
            return x
        dropped: Tensor = _DropGradient.apply(x, self.rate)  # type: ignore[no-untyped-call]
        return dropped

    def extra_repr(self) -> str:
        """The rate."""
        return str(self.rate)


class _DropGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float) -> Tensor:
        ctx.rate = rate
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return F.dropout(gradients[0], ctx.rate, training=True), None


class Fading:
    """Batches that tell a dropout which epoch it is, so that a resumed run has the rate it had."""

    def __init__(self, batches: EpochSource, dropout: InputDropout) -> None:
        self._batches, self._dropout = batches, dropout

    def __len__(self) -> int:
        return len(self._batches)

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of an epoch, at its rate."""
        self._dropout.at_epoch(number)
        yield from self._batches.epoch(number, start)
