"""EfficientNet-Lite: inverted residuals without squeeze-and-excitation, as published for ImageNet.

The layers are those of the released checkpoints, so their weights fit
(:mod:`dovetail.parts.foreign.lite_weights`).  A convolution pads just so much that its map shrinks
by the stride, rounded up, and more to the right and below, as the original framework does; so the
padding depends on the size of the image.
"""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn

from dovetail.core.errors import RecipeError
from dovetail.parts.builders import builder
from dovetail.parts.zoo.layers import positive
from dovetail.parts.zoo.mobilenet import InvertedResidual

_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
"""Blocks, kernel, stride, expansion and channels of each stage."""


class LiteBlock(InvertedResidual):
    """An inverted residual that pads as the original framework does, on maps ``side`` wide.

    >>> import torch
    >>> LiteBlock(8, 16, side=7, kernel=5, stride=2, expand=6)(torch.zeros(1, 8, 7, 7)).shape
    torch.Size([1, 16, 4, 4])
    """

    def __init__(
        self, inputs: int, outputs: int, *, side: int, kernel: int, stride: int, expand: int
    ) -> None:
        pad = _padding(side, kernel, stride)
        super().__init__(
            inputs, outputs, expand=expand, stride=stride, norm=_norm, kernel=kernel, pad=pad
        )


def _takes(size: int) -> tuple[int, int, int]:
    return (3, size, size)


@builder("efficientnet-lite0", takes=_takes)
def efficientnet_lite0(*, size: int = 224, classes: int = 1000) -> nn.Module:
    """The smallest one: 4.65 million weights, 1280 features.

    >>> net = efficientnet_lite0(classes=1000)
    >>> sum(p.numel() for p in net.parameters())
    4652008
    """
    return _lite("efficientnet-lite0", size, classes, width=1.0, depth=1.0)


@builder("efficientnet-lite1", takes=_takes)
def efficientnet_lite1(*, size: int = 240, classes: int = 1000) -> nn.Module:
    """A tenth deeper.

    >>> len(efficientnet_lite1(classes=10).stage4)
    4
    """
    return _lite("efficientnet-lite1", size, classes, width=1.0, depth=1.1)


@builder("efficientnet-lite2", takes=_takes)
def efficientnet_lite2(*, size: int = 260, classes: int = 1000) -> nn.Module:
    """A fifth deeper and a tenth wider.

    >>> efficientnet_lite2(classes=10).last.conv.in_channels
    352
    """
    return _lite("efficientnet-lite2", size, classes, width=1.1, depth=1.2)


def _lite(name: str, size: int, classes: int, *, width: float, depth: float) -> nn.Module:
    positive(name, classes=classes)
    if size < 32:
        raise RecipeError(f"builder {name!r}: size must be at least 32, got {size}")
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=nn.Sequential(
            OrderedDict(
                pad=_padding(size, 3, 2),
                conv=nn.Conv2d(3, 32, 3, 2, bias=False),
                norm=_norm(32),
                act=nn.ReLU6(),
            )
        )
    )
    inputs, side = 32, math.ceil(size / 2)
    for number, (blocks, kernel, stride, expand, channels) in enumerate(_STAGES, start=1):
        outputs = _rounded(channels * width)
        # Stem, head and the outer stages keep their size in every member of the family.
        repeats = blocks if number in (1, len(_STAGES)) else math.ceil(blocks * depth)
        stage = nn.Sequential()
        for step in (stride, *(1,) * (repeats - 1)):
            stage.append(
                LiteBlock(inputs, outputs, side=side, kernel=kernel, stride=step, expand=expand)
            )
            inputs, side = outputs, math.ceil(side / step)
        layers[f"stage{number}"] = stage
    layers["last"] = nn.Sequential(
        OrderedDict(conv=nn.Conv2d(inputs, 1280, 1, bias=False), norm=_norm(1280), act=nn.ReLU6())
    )
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["dropout"] = nn.Dropout(0.2)
    layers["head"] = nn.Linear(1280, classes)
    return nn.Sequential(layers)


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


def _padding(side: int, kernel: int, stride: int) -> nn.Module:
    """Zeros around a map ``side`` wide; the odd one goes right and below."""
    total = max((math.ceil(side / stride) - 1) * stride + kernel - side, 0)
    before, after = total // 2, total - total // 2
    return nn.ZeroPad2d((before, after, before, after))


def _rounded(channels: float) -> int:
    """A multiple of 8 that is not more than a tenth below ``channels``."""
    near = max(8, int(channels + 4) // 8 * 8)
    return near + 8 if near < 0.9 * channels else near
