"""A decision block: what decides, from the features of some layer, before all layers are there."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from dovetail.core.errors import RecipeError
from dovetail.parts.builders import builder
from dovetail.parts.zoo.layers import Norm, norm_layer, positive

SIDE = 2
"""Of the map that is left for the linear layer."""


class TokenMean(nn.Module):
    """The mean of an example's tokens, ``[n, tokens, d]`` to ``[n, d]``.

    >>> import torch
    >>> TokenMean()(torch.ones(2, 3, 4)).shape
    torch.Size([2, 4])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[n, tokens, d]`` to ``[n, d]``."""
        return x.mean(1)


@builder("decision-block", takes=lambda shape: shape)
def decision_block(
    *,
    shape: tuple[int, ...] = (16, 8, 8),
    classes: int = 10,
    convs: int = 1,
    channels: int = 32,
    pool: int = 1,
    norm: Norm = "batch",
) -> nn.Module:
    """Maps are averaged over squares of ``pool``, halved by ``convs`` convolutions, then a layer.

    A convolution (3×3, ``channels`` wide) takes every second position while the map is wider than
    two; what is left is averaged to two by two.  Vectors go to the linear layer as they are, tokens
    by their mean.

    >>> [name for name, _ in decision_block(shape=(8, 16, 16), convs=2).named_children()]
    ['conv1', 'conv2', 'pool', 'flatten', 'head']
    """
    positive("decision-block", classes=classes, channels=channels, pool=pool)
    for axis in shape:
        positive("decision-block", shape=axis)
    if convs < 0:
        raise RecipeError(f"builder 'decision-block': convs must be at least 0, got {convs}")
    if not 1 <= len(shape) <= 3:
        raise RecipeError(
            f"builder 'decision-block': vectors, tokens or maps can be decided on, not {shape}"
        )
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = shape[0]
    if len(shape) == 2:
        layers["mean"], width = TokenMean(), shape[1]
    if len(shape) == 3:
        sides: tuple[int, ...] = shape[1:]
        if pool > 1:
            layers["before"] = nn.AvgPool2d(pool, ceil_mode=True)
            sides = tuple(-(-side // pool) for side in sides)
        for i in range(1, convs + 1):
            stride = 2 if min(sides) > SIDE else 1
            layers[f"conv{i}"] = nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(width, channels, 3, stride, padding=1, bias=norm == "none"),
                    norm=norm_layer(norm, channels, maps=True),
                    act=nn.ReLU(),
                )
            )
            sides, width = tuple((side - 1) // stride + 1 for side in sides), channels
        averaged = tuple(min(side, SIDE) for side in sides)
        layers["pool"] = nn.AdaptiveAvgPool2d(averaged)
        layers["flatten"] = nn.Flatten()
        width *= averaged[0] * averaged[1]
    layers["head"] = nn.Linear(width, classes)
    return nn.Sequential(layers)
