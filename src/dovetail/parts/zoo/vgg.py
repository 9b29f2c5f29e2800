"""A VGG-13-like network for small images: plain 3×3 convolutions, two a stage."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from dovetail.parts.builders import builder
from dovetail.parts.zoo.layers import Norm, image_size, norm_layer, positive


@builder("vgg13", takes=lambda channels, size: (channels, size, size))
def vgg13(
    *,
    channels: int = 3,
    size: int = 32,
    classes: int = 10,
    width: int = 64,
    norm: Norm = "batch",
) -> nn.Module:
    """Five stages of two convolutions (1, 2, 4, 8, 8 times ``width``), pooled, then two layers.

    A stage pools only while its map is at least 4 wide, so that 8×8 images keep a map to look at.

    >>> [name for name, _ in vgg13(width=8).named_children()][:3]
    ['stage1', 'stage2', 'stage3']
    """
    positive("vgg13", channels=channels, classes=classes, width=width)
    side = image_size("vgg13", size)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = channels
    for stage, factor in enumerate((1, 2, 4, 8, 8), start=1):
        outputs = width * factor
        steps: OrderedDict[str, nn.Module] = OrderedDict()
        for i in (1, 2):
            steps[f"conv{i}"] = nn.Conv2d(inputs, outputs, 3, padding=1, bias=norm == "none")
            steps[f"norm{i}"] = norm_layer(norm, outputs, maps=True)
            steps[f"act{i}"] = nn.ReLU()
            inputs = outputs
        if side >= 4:
            steps["pool"] = nn.MaxPool2d(2)
            side //= 2
        layers[f"stage{stage}"] = nn.Sequential(steps)
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["fc"] = nn.Sequential(OrderedDict(linear=nn.Linear(inputs, inputs), act=nn.ReLU()))
    layers["head"] = nn.Linear(inputs, classes)
    return nn.Sequential(layers)
