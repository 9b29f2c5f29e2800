"""A network's features at many cut points, from one pass over the data."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dovetail.core.errors import ContractError, SettingsError
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part, as_part
from dovetail.running.features import Features, Pooling, pooled
from dovetail.running.forward import outputs_of
from dovetail.running.preprocess import refuse_other_inputs
from dovetail.tasks.task import Split, Task

__all__ = ["features_along"]


def features_along(
    part: Part | nn.Module,
    at: Sequence[str],
    task: Task,
    *,
    split: Split = "train",
    pooling: Pooling = "average",
    batch_size: int = 512,
) -> dict[str, Features]:
    """What a network gives at each of several points, as rows.

    The network is cut at one point after the other and every batch runs once through the pieces:
    all points cost one pass up to the last of them.

    Args:
        part: The network.
        at: Names of cut points in the order of the network, as ``cut_points`` lists them.
        task: Where the inputs come from.
        split: Which of them.
        pooling: How feature maps become rows.
        batch_size: Inputs a batch.

    >>> from dovetail.parts.part import build
    >>> task = Task(torch.rand(60, 1, 8, 8), [0, 1, 2] * 20)
    >>> along = features_along(build("lenet5", size=8), ["conv1", "fc1"], task)
    >>> {name: tuple(found.values.shape) for name, found in along.items()}
    {'conv1': (42, 6), 'fc1': (42, 120)}
    """
    part = as_part(part)
    if len(set(at)) < len(at) or not at:
        raise SettingsError("name at least one cut point, and each of them once")
    refuse_other_inputs(task, part.contract)
    inputs, targets = task.subset(split)
    pieces, rest = [], part
    for name in at:
        front, rest = cut(rest, at=name)
        if len(front.contract.gives) != 1:
            raise ContractError(f"{len(front.contract.gives)} tensors cross at {name!r}, not one")
        pieces.append(front.module)
    tapped = _Tapped(pieces, pooling)
    values = outputs_of(part.changed(module=tapped), inputs, batch_size=batch_size)
    settings = {"split": split, "pooling": pooling, "batch_size": batch_size}
    columns = torch.split(values, tapped.widths, dim=1)
    return {
        name: Features(rows.contiguous(), targets, settings | {"at": name})
        for name, rows in zip(at, columns, strict=True)
    }


class _Tapped(nn.Module):
    """Pieces in a row; gives the pooled output of each, side by side ``[n, d1 + d2 + ...]``."""

    def __init__(self, pieces: list[nn.Module], pooling: Pooling) -> None:
        super().__init__()
        self.pieces = nn.ModuleList(pieces)
        self.pooling: Pooling = pooling
        self.widths: list[int] = []

    def forward(self, x: Tensor) -> Tensor:
        taps = []
        for piece in self.pieces:
            x = piece(x)
            taps.append(pooled(x, self.pooling))
        self.widths = [tap.shape[1] for tap in taps]
        return torch.cat(taps, dim=1)
