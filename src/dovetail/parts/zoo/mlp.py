"""A multi-layer perceptron on vectors or flattened images."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from dovetail.parts.builders import builder
from dovetail.parts.zoo.layers import (
    Activation,
    DType,
    FlattenTo,
    Norm,
    UnitLength,
    dense_block,
    positive,
)


@builder("mlp", takes=lambda shape: shape)
def mlp(
    *,
    shape: tuple[int, ...] = (1, 8, 8),
    classes: int = 10,
    hidden: tuple[int, ...] = (64, 64),
    norm: Norm = "none",
    activation: Activation = "relu",
    unit: bool = False,
    dtype: DType = "float32",
) -> nn.Module:
    """Flatten, then a linear layer, a norm and an activation for each hidden width, then a head.

    With ``unit`` what enters the head is scaled to unit length.  With ``dtype="float64"`` all is
    computed in float64, for inputs of either type.

    >>> [name for name, _ in mlp(shape=(4,), hidden=(8,), classes=3).named_children()]
    ['flatten', 'hidden1', 'head']
    """
    width = 1
    for axis in shape:
        positive("mlp", shape=axis)
        width *= axis
    positive("mlp", classes=classes)
    wide = dtype == "float64"
    flatten = FlattenTo(torch.float64) if wide else nn.Flatten()
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=flatten)
    for i, size in enumerate(hidden, start=1):
        positive("mlp", hidden=size)
        layers[f"hidden{i}"] = dense_block(width, size, norm, activation)
        width = size
    if unit:
        layers["unit"] = UnitLength()
    layers["head"] = nn.Linear(width, classes)
    network = nn.Sequential(layers)
    return network.double() if wide else network
