"""Residual networks for small images, 6n+2 layers deep.

With ``unit`` the pooled features are scaled to unit length before the head.

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
from dovetail.parts.zoo.layers import Norm, UnitLength, image_size, norm_layer, positive

__all__ = ["Residual", "resnet20", "resnet56", "resnet8"]


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
            stem=nn.Sequential(
                OrderedDict(
                    conv=nn.Conv2d(channels, width, 3, padding=1, bias=norm == "none"),
                    norm=norm_layer(norm, width, maps=True),
                    act=nn.ReLU(),
                )
            )
        )
        inputs = width
        for stage in range(3):
            outputs = width << stage
            stages[f"layer{stage + 1}"] = nn.Sequential(
                *(
                    Residual(
                        inputs if block == 0 else outputs,
                        outputs,
                        stride=2 if stage > 0 and block == 0 else 1,
                        norm=norm,
                    )
                    for block in range(blocks)
                )
            )
            inputs = outputs
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
