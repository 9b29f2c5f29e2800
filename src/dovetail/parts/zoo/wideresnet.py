"""Wide residual networks: few blocks, many channels, activation before convolution."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from dovetail.parts.builders import builder
from dovetail.parts.zoo.layers import Norm, image_size, norm_layer, positive

__all__ = ["WideResidual", "wideresnet16"]


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
