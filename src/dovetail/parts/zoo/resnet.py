"""Residual networks for small images: 6n+2 layers deep, or wide.

With ``unit`` the pooled features of a deep one are scaled to unit length before the head.

>>> [name for name, _ in resnet8().named_children()]
['stem', 'layer1', 'layer2', 'layer3', 'pool', 'flatten', 'head']
>>> sum(p.numel() for p in resnet20(channels=3, classes=10).parameters())
272474
>>> len(resnet56()[3])
9
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from dovetail.parts.builders import builder
from dovetail.parts.zoo.layers import (
    Norm,
    UnitLength,
    conv_block,
    image_size,
    norm_layer,
    positive,
)


class Residual(nn.Module):
    r"""Two 3×3 convolutions around a shortcut, :math:`\mathrm{relu}(f(x) + s(x))`.

    >>> import torch
    >>> Residual(4, 8, stride=2, norm="batch")(torch.zeros(1, 4, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        free = norm == "none"  # a norm has its own shift, so a bias before it is idle
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=free)
        self.norm1 = norm_layer(norm, outputs, maps=True)
        self.act1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=free)
        self.norm2 = norm_layer(norm, outputs, maps=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(inputs, outputs, 1, stride=stride, bias=free),
                    norm=norm_layer(norm, outputs, maps=True),
                )
            )
        self.act2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[n, inputs, h, w]`` to ``[n, outputs, h / stride, w / stride]``."""
        inner = self.norm2(self.conv2(self.act1(self.norm1(self.conv1(x)))))
        y: Tensor = self.act2(inner + self.shortcut(x))
        return y


def _resnet(name: str, blocks: int) -> Callable[..., nn.Module]:
    """The builder of a network of three stages, each of so many blocks."""

    def resnet(
        *,
        channels: int = 3,
        size: int = 32,
        classes: int = 10,
        width: int = 16,
        norm: Norm = "batch",
        unit: bool = False,
    ) -> nn.Module:
        positive(name, channels=channels, classes=classes, width=width)
        image_size(name, size)
        stages: OrderedDict[str, nn.Module] = OrderedDict(
            stem=conv_block(channels, width, norm=norm)
        )
        inputs = width
        for stage in range(3):
            layer, outputs = nn.Sequential(), width << stage
            for stride in (2 if stage else 1, *(1,) * (blocks - 1)):
                layer.append(Residual(inputs, outputs, stride=stride, norm=norm))
                inputs = outputs
            stages[f"layer{stage + 1}"] = layer
        stages["pool"] = nn.AdaptiveAvgPool2d(1)
        stages["flatten"] = nn.Flatten()
        if unit:
            stages["unit"] = UnitLength()
        stages["head"] = nn.Linear(inputs, classes)
        return nn.Sequential(stages)

    resnet.__name__ = resnet.__qualname__ = name
    resnet.__doc__ = f"A residual network of {6 * blocks + 2} layers; blocks a stage: {blocks}."
    return builder(name, takes=lambda channels, size: (channels, size, size))(resnet)


resnet8, resnet20, resnet56 = (_resnet(f"resnet{6 * n + 2}", n) for n in (1, 3, 9))


# Few blocks, many channels, activation before convolution ----------------------------------------


class WideResidual(nn.Module):
    r"""Norm and ReLU come first: :math:`s(a) + f(a)`, :math:`a = \mathrm{relu}(\mathrm{norm}(x))`.

    Where the shape stays, the shortcut is the untouched :math:`x`.

    >>> import torch
    >>> WideResidual(4, 8, stride=2, norm="batch")(torch.zeros(1, 4, 6, 6)).shape
    torch.Size([1, 8, 3, 3])
    """

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: Norm) -> None:
        super().__init__()
        free = norm == "none"
        self.norm1 = norm_layer(norm, inputs, maps=True)
        self.act1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=free)
        self.norm2 = norm_layer(norm, outputs, maps=True)
        self.act2 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=free)
        self.shortcut: nn.Module | None = None
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=free)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[n, inputs, h, w]`` to ``[n, outputs, h / stride, w / stride]``."""
        a = self.act1(self.norm1(x))
        around: Tensor = x if self.shortcut is None else self.shortcut(a)
        y: Tensor = around + self.conv2(self.act2(self.norm2(self.conv1(a))))
        return y


@builder("wideresnet16", takes=lambda channels, size: (channels, size, size))
def wideresnet16(
    *,
    channels: int = 3,
    size: int = 32,
    classes: int = 10,
    widen: int = 2,
    norm: Norm = "batch",
) -> nn.Module:
    """16 layers deep and ``widen`` times as wide as the thin network (16, 32 and 64 channels).

    >>> [name for name, _ in wideresnet16(widen=1).named_children()]
    ['stem', 'layer1', 'layer2', 'layer3', 'last', 'pool', 'flatten', 'head']
    """
    positive("wideresnet16", channels=channels, classes=classes, widen=widen)
    image_size("wideresnet16", size)
    inputs = 16
    stages: OrderedDict[str, nn.Module] = OrderedDict(
        stem=nn.Conv2d(channels, inputs, 3, padding=1, bias=norm == "none")
    )
    for stage in range(3):
        outputs = (16 << stage) * widen
        first = WideResidual(inputs, outputs, stride=2 if stage else 1, norm=norm)
        second = WideResidual(outputs, outputs, stride=1, norm=norm)
        stages[f"layer{stage + 1}"] = nn.Sequential(first, second)
        inputs = outputs
    stages["last"] = nn.Sequential(
        OrderedDict(norm=norm_layer(norm, inputs, maps=True), act=nn.ReLU())
    )
    stages["pool"] = nn.AdaptiveAvgPool2d(1)
    stages["flatten"] = nn.Flatten()
    stages["head"] = nn.Linear(inputs, classes)
    return nn.Sequential(stages)
