"""LeNet-5 for 28×28 digits, and down to 8×8."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from dovetail.parts.builders import builder
from dovetail.parts.zoo.layers import (
    Activation,
    Norm,
    UnitLength,
    activation_layer,
    dense_block,
    image_size,
    norm_layer,
    positive,
)


@builder("lenet5", takes=lambda channels, size: (channels, size, size))
def lenet5(
    *,
    channels: int = 1,
    size: int = 28,
    classes: int = 10,
    norm: Norm = "none",
    activation: Activation = "relu",
    unit: bool = False,
) -> nn.Module:
    """Two 5×5 convolutions (6 and 16 channels), each pooled, then 120, 84 and the classes.

    The second convolution shrinks the map as in the original when the input is at least 20 wide;
    on smaller inputs it keeps the size, so that something is left to pool.  With ``unit`` the 84
    features are scaled to unit length before the head.

    >>> [name for name, _ in lenet5().named_children()]
    ['conv1', 'conv2', 'flatten', 'fc1', 'fc2', 'head']
    """
    positive("lenet5", channels=channels, classes=classes)
    image_size("lenet5", size)
    shrinks = size >= 20
    side = (size // 2 - 4 if shrinks else size // 2) // 2

    def conv(inputs: int, outputs: int, padding: int) -> nn.Module:
        return nn.Sequential(
            OrderedDict(
                conv=nn.Conv2d(inputs, outputs, 5, padding=padding),
                norm=norm_layer(norm, outputs, maps=True),
                act=activation_layer(activation),
                pool=nn.MaxPool2d(2),
            )
        )

    layers: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=conv(channels, 6, padding=2),
        conv2=conv(6, 16, padding=0 if shrinks else 2),
        flatten=nn.Flatten(),
        fc1=dense_block(16 * side * side, 120, norm, activation),
        fc2=dense_block(120, 84, norm, activation),
    )
    if unit:
        layers["unit"] = UnitLength()
    layers["head"] = nn.Linear(84, classes)
    return nn.Sequential(layers)
