r"""What of a network's output is taken for the targets: all of it, some columns, or a projection.

A part made for other classes has as many outputs as they were.  A fixed projection :math:`P` of
those to the number wanted keeps everything the network computes in play:
:math:`g(x) = \operatorname{pool}(f(x)) P + b`.  It is drawn once and never fitted; the offset
:math:`b` is a parameter like others, with a prior of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError
from dovetail.core.seeds import generator

__all__ = ["OFFSET", "Readout", "chosen_columns", "drawn_projection"]

OFFSET = "offset"
"""The name of the offset among the parameters."""


class Readout(nn.Module):
    """A network, the mean over positions of what it gives, a projection, an offset.

    Args:
        body: Gives ``[n, d]`` or maps ``[n, d, ...]``.
        width: :math:`o`, what comes out.
        projection: ``[d, o]``; None where the network gives ``o`` numbers already.

    >>> net = Readout(nn.Linear(3, 4), 2, drawn_projection(4, 2))
    >>> net(torch.zeros(5, 3)).shape, [name for name, _ in net.named_parameters()]
    (torch.Size([5, 2]), ['offset', 'body.weight', 'body.bias'])
    """

    projection: Tensor | None

    def __init__(self, body: nn.Module, width: int, projection: Tensor | None = None) -> None:
        super().__init__()
        self.body = body
        own = (each.dtype for each in body.parameters() if each.is_floating_point())
        dtype = next(own, torch.float32)  # what the body computes in
        self.register_buffer("projection", None if projection is None else projection.to(dtype))
        self.offset = nn.Parameter(torch.zeros(width, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """``[n, o]``."""
        return self.projected(self.body(x)) + self.offset

    def projected(self, outputs: Tensor) -> Tensor:
        """What the network gave, as rows of the width wanted."""
        if not isinstance(outputs, Tensor):
            raise ContractError(
                f"the network gives {type(outputs).__name__}, not one tensor; wrap it so that it "
                "gives the one to adapt"
            )
        rows = outputs.flatten(2).mean(2) if outputs.ndim > 2 else outputs
        rows = rows.reshape(-1, 1) if rows.ndim < 2 else rows
        return rows if self.projection is None else rows @ self.projection


def drawn_projection(takes: int, gives: int, *, seed: int = 0) -> Tensor:
    r"""A fixed random matrix ``[takes, gives]``, entries :math:`\mathcal N(0, 1 / \text{takes})`.

    >>> drawn_projection(3, 2).equal(drawn_projection(3, 2))
    True
    """
    if takes < 1 or gives < 1:
        raise SettingsError(f"a projection of {takes} to {gives} numbers is none")
    draw = generator(seed, "projection")
    return torch.randn(takes, gives, generator=draw).div(takes**0.5)


def chosen_columns(takes: int, columns: list[int]) -> Tensor:
    """The projection ``[takes, len(columns)]`` that keeps some outputs, in this order.

    >>> torch.tensor([[5.0, 6.0, 7.0]]) @ chosen_columns(3, [2, 0])
    tensor([[7., 5.]])
    """
    kept = torch.zeros(takes, len(columns))
    kept[columns, torch.arange(len(columns))] = 1.0
    return kept
