r"""Numbers to predict, in units that training copes with.

Prices in the hundred thousands make the squared error overflow, and thousandths make it vanish.  So
a network that ends in a linear layer is trained on :math:`(y - \mu)/\sigma`, with the mean and
deviation of the training targets, and the scale is folded into that layer afterwards:
:math:`W \mapsto \sigma W`, :math:`b \mapsto \sigma b + \mu`.  The part then gives natural units.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dovetail.tasks.task import Task

__all__ = ["NATURAL", "TargetScale", "target_scale"]


@dataclass(frozen=True)
class TargetScale:
    """A mean and a deviation a target, and the layer they belong into; without one, 0 and 1."""

    mean: Tensor
    std: Tensor
    layer: nn.Linear | None

    def standard(self, targets: Tensor) -> Tensor:
        """Targets as the network sees them in training."""
        if self.layer is None:
            return targets
        return (targets - self.mean.to(targets)) / self.std.to(targets)

    def natural(self, outputs: Tensor) -> Tensor:
        """Outputs in the units of the task."""
        if self.layer is None:
            return outputs
        return outputs * self.std.to(outputs) + self.mean.to(outputs)

    def fold(self) -> None:
        """Make the layer give natural units."""
        if self.layer is not None:
            with torch.no_grad():
                self.layer.weight.mul_(self.std.to(self.layer.weight)[:, None])
                self.layer.bias.mul_(self.std.to(self.layer.bias)).add_(
                    self.mean.to(self.layer.bias)
                )

    def unfold(self) -> None:
        """Undo :meth:`fold`, for a network that was trained before."""
        if self.layer is not None:
            with torch.no_grad():
                self.layer.weight.div_(self.std.to(self.layer.weight)[:, None])
                self.layer.bias.sub_(self.mean.to(self.layer.bias)).div_(
                    self.std.to(self.layer.bias)
                )


NATURAL = TargetScale(torch.zeros(()), torch.ones(()), None)
"""Targets as they are."""


def target_scale(module: nn.Module, task: Task) -> TargetScale:
    """The scale for a task's training targets ``[n]`` or ``[n, k]``.

    >>> task = Task(torch.rand(40, 2), 1000 + 10 * torch.randn(40), kind="regression")
    >>> scale = target_scale(nn.Sequential(nn.Linear(2, 1)), task)
    >>> bool(scale.standard(task.targets).abs().max() < 5)
    True
    """
    last = module
    while isinstance(last, nn.Sequential) and len(last):
        last = last[-1]
    fits = isinstance(last, nn.Linear) and last.bias is not None
    if task.kind != "regression" or not isinstance(last, nn.Linear) or not fits:
        return NATURAL
    targets = task.targets[task.indices("train")].double().reshape(task.size("train"), -1)
    std = targets.std(0, correction=0)
    std[std < 1e-12] = 1.0
    return TargetScale(targets.mean(0).float(), std.float(), last)
