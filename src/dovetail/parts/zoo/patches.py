r"""A perceptron behind filters that answer to the shape of a patch, not to light or contrast.

With the mean :math:`\mu_p` and the variance :math:`v_p` of a patch :math:`p \in \mathbb{R}^{c s^2}`
a filter :math:`w` answers

.. math:: f = w^\top \frac{p - \mu_p}{\sqrt{v_p + \epsilon}} + b ,

and what goes on are :math:`\max(f, 0)` and :math:`\max(-f, 0)`, averaged over squares.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dovetail.core.errors import RecipeError
from dovetail.parts.builders import builder
from dovetail.parts.zoo.layers import Activation, DType, positive
from dovetail.parts.zoo.mlp import mlp


class Patches(nn.Module):
    """Images ``[n, c, h, w]`` to maps ``[n, 2 filters, h', w']``, those of both signs.

    >>> Patches(1, filters=6, size=3, pool=2, contrast=0.01)(torch.rand(5, 1, 8, 8)).shape
    torch.Size([5, 12, 3, 3])
    """

    def __init__(
        self, channels: int, *, filters: int, size: int, pool: int, contrast: float
    ) -> None:
        super().__init__()
        self.filters = nn.Conv2d(channels, filters, size)
        self.size, self.pool, self.contrast = size, pool, contrast

    def forward(self, x: Tensor) -> Tensor:
        """The maps of images in the dtype of the filters."""
        weight, bias = self.filters.weight, self.filters.bias
        assert bias is not None
        x = x.to(weight.dtype)
        x = x - x.mean((1, 2, 3), keepdim=True)  # squares of a bright image would lose digits
        light = F.avg_pool2d(x.mean(1, keepdim=True), self.size, 1)
        power = F.avg_pool2d(x.square().mean(1, keepdim=True), self.size, 1)
        size = ((power - light.square()).clamp(min=0) + self.contrast).rsqrt()
        sums = weight.sum((1, 2, 3))[:, None, None]
        answers = (F.conv2d(x, weight) - light * sums) * size + bias[:, None, None]
        return F.avg_pool2d(torch.cat([answers.relu(), (-answers).relu()], 1), self.pool)


@builder("patch-mlp", takes=lambda shape: shape)
def patch_mlp(
    *,
    shape: tuple[int, int, int] = (1, 28, 28),
    classes: int = 10,
    filters: int = 32,
    patch: int = 7,
    pool: int = 5,
    contrast: float = 0.01,
    hidden: tuple[int, ...] = (64,),
    activation: Activation = "relu",
    dtype: DType = "float32",
) -> nn.Module:
    """Filters of ``patch`` by ``patch`` pixels, averaged over ``pool`` by ``pool``, then ``mlp``.

    ``contrast`` is the variance of a patch that counts as one of some contrast.

    >>> [name for name, _ in patch_mlp(hidden=(8,)).named_children()]
    ['patches', 'flatten', 'hidden1', 'head']
    """
    channels, height, width = shape
    positive("patch-mlp", channels=channels, filters=filters, patch=patch, pool=pool)
    if patch + pool - 1 > min(height, width):
        raise RecipeError(
            f"builder 'patch-mlp': patches of side {patch} pooled by {pool} need images of side "
            f"{patch + pool - 1} or more, got {height}x{width}"
        )
    if not contrast > 0:
        raise RecipeError(f"builder 'patch-mlp': contrast must be above 0, got {contrast}")
    maps = (2 * filters, (height - patch + 1) // pool, (width - patch + 1) // pool)
    front = Patches(channels, filters=filters, size=patch, pool=pool, contrast=contrast)
    behind = mlp(shape=maps, classes=classes, hidden=hidden, activation=activation, dtype=dtype)
    network = nn.Sequential(OrderedDict(patches=front, **dict(behind.named_children())))
    return network.double() if dtype == "float64" else network
