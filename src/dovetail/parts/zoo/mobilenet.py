"""A MobileNetV2-like network: depthwise convolutions between narrow layers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from torch import Tensor, nn

from dovetail.core.errors import RecipeError
from dovetail.parts.builders import builder
from dovetail.parts.zoo.layers import Norm, conv_block, image_size, norm_layer, positive

_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 2, 2),
    (6, 64, 2, 2),
    (6, 96, 1, 1),
    (6, 160, 1, 2),
)
"""Expansion, channels, blocks, stride of each stage."""


class InvertedResidual(nn.Module):
    """Widen by a 1×1, look around by a depthwise 3×3, narrow by a 1×1 without activation.

    The shortcut is there where the shape stays.  ``norm`` is one of ours, or makes a norm for a
    number of channels; ``pad`` goes before a depthwise convolution that does not pad itself.

    >>> import torch
    >>> InvertedResidual(8, 8, expand=6, stride=1, norm="batch")(torch.zeros(1, 8, 4, 4)).shape
    torch.Size([1, 8, 4, 4])
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        expand: int,
        stride: int,
        norm: Norm | Callable[[int], nn.Module],
        kernel: int = 3,
        pad: nn.Module | None = None,
    ) -> None:
        super().__init__()
        free, wide = norm == "none", inputs * expand
        around = kernel // 2 if pad is None else 0

        def normed(width: int) -> nn.Module:
            return norm(width) if callable(norm) else norm_layer(norm, width, maps=True)

        self.residual = stride == 1 and inputs == outputs
        steps: OrderedDict[str, nn.Module] = OrderedDict()
        if expand > 1:
            steps["widen"] = nn.Conv2d(inputs, wide, 1, bias=free)
            steps["norm1"] = normed(wide)
            steps["act1"] = nn.ReLU6()
        if pad is not None:
            steps["pad"] = pad
        steps["depthwise"] = nn.Conv2d(wide, wide, kernel, stride, around, groups=wide, bias=free)
        steps["norm2"] = normed(wide)
        steps["act2"] = nn.ReLU6()
        steps["narrow"] = nn.Conv2d(wide, outputs, 1, bias=free)
        steps["norm3"] = normed(outputs)
        self.inner = nn.Sequential(steps)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[n, inputs, h, w]`` to ``[n, outputs, h / stride, w / stride]``."""
        y: Tensor = self.inner(x)
        return x + y if self.residual else y


@builder("mobilenetv2", takes=lambda channels, size: (channels, size, size))
def mobilenetv2(
    *,
    channels: int = 3,
    size: int = 32,
    classes: int = 10,
    width: float = 1.0,
    norm: Norm = "batch",
) -> nn.Module:
    """Six stages of inverted residuals; ``width`` scales every channel count.

    A stage halves the map only while it is at least 4 wide; from 64 pixels on the stem does too.

    >>> [name for name, _ in mobilenetv2(width=0.25).named_children()][-4:]
    ['last', 'pool', 'flatten', 'head']
    """
    positive("mobilenetv2", channels=channels, classes=classes)
    if not 0.05 <= width <= 16:
        raise RecipeError(f"builder 'mobilenetv2': width must be from 0.05 to 16, got {width}")
    side = image_size("mobilenetv2", size)
    inputs, stride = _scaled(32, width), 2 if side >= 64 else 1
    side //= stride
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        stem=conv_block(channels, inputs, norm=norm, stride=stride, act=nn.ReLU6)
    )
    for number, (expand, base, blocks, wanted) in enumerate(_STAGES, start=1):
        outputs = _scaled(base, width)
        stride = wanted if side >= 4 else 1
        side //= stride
        stage = nn.Sequential()
        for step in (stride, *(1,) * (blocks - 1)):
            stage.append(InvertedResidual(inputs, outputs, expand=expand, stride=step, norm=norm))
            inputs = outputs
        layers[f"stage{number}"] = stage
    last = _scaled(320, max(width, 1.0))
    layers["last"] = conv_block(inputs, last, norm=norm, kernel=1, act=nn.ReLU6)
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(last, classes)
    return nn.Sequential(layers)


def _scaled(channels: int, width: float) -> int:
    """A multiple of 4, as close to ``channels * width`` as can be, at least 4."""
    return max(4, round(channels * width / 4) * 4)
