"""Layers the zoo's networks share."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

import torch
from torch import Tensor, nn

from dovetail.core.errors import RecipeError
from dovetail.objectives.unit import unit_length

Norm = Literal["batch", "layer", "instance", "none"]
Activation = Literal[
    "relu",
    "tanh",
    "sigmoid",
    "gelu",
    "leaky-relu",
    "elu",
    "celu",
    "selu",
    "softplus",
    "hardtanh",
    "relu6",
    "identity",
]
DType = Literal["float32", "float64"]

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "gelu": nn.GELU,
    "leaky-relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "celu": nn.CELU,
    "selu": nn.SELU,
    "softplus": nn.Softplus,
    "hardtanh": nn.Hardtanh,
    "relu6": nn.ReLU6,
    "identity": nn.Identity,
}


class UnitLength(nn.Module):
    r"""Each example scaled to length one, :math:`x \mapsto x / \lVert x \rVert`; zero stays zero.

    >>> import torch
    >>> UnitLength()(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[n, ...]`` to ``[n, ...]``."""
        return unit_length(x.flatten(1)).reshape(x.shape)


class FlattenTo(nn.Flatten):
    """Rows of one dtype, whatever floating-point type the inputs come in.

    Tasks hold float32, and weights of float64 do not multiply with it.

    >>> FlattenTo(torch.float64)(torch.zeros(2, 3, 4)).dtype
    torch.float64
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[n, ...]`` to rows ``[n, d]``."""
        return super().forward(x).to(self.dtype)


def activation_layer(name: Activation) -> nn.Module:
    """The activation as a module.

    >>> activation_layer("tanh")
    Tanh()
    """
    return _ACTIVATIONS[name]()


def norm_layer(norm: Norm, width: int, *, maps: bool) -> nn.Module:
    """A normalisation of ``width`` channels of feature maps, or of ``width`` features.

    Layer norm on maps is over channels and positions together (one group).  A plain vector is one
    instance of all its features, so instance norm on it is layer norm without scale and shift.

    >>> norm_layer("batch", 8, maps=True).num_features
    8
    """
    if norm == "batch":
        return nn.BatchNorm2d(width) if maps else nn.BatchNorm1d(width)
    if norm == "layer":
        return nn.GroupNorm(1, width) if maps else nn.LayerNorm(width)
    if norm == "instance":
        if maps:
            return nn.InstanceNorm2d(width, affine=True)
        return nn.LayerNorm(width, elementwise_affine=False)
    return nn.Identity()


def conv_block(
    inputs: int,
    outputs: int,
    *,
    norm: Norm,
    kernel: int = 3,
    stride: int = 1,
    act: type[nn.Module] = nn.ReLU,
) -> nn.Module:
    """Convolution, norm and activation; a map keeps its size but for the stride.

    >>> [name for name, _ in conv_block(3, 8, norm="batch").named_children()]
    ['conv', 'norm', 'act']
    """
    free = norm == "none"  # a norm has its own shift, so a bias before it is idle
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=free)
    return nn.Sequential(
        OrderedDict(conv=conv, norm=norm_layer(norm, outputs, maps=True), act=act())
    )


def dense_block(inputs: int, outputs: int, norm: Norm, activation: Activation) -> nn.Module:
    """Linear layer, norm and activation.

    >>> [name for name, _ in dense_block(4, 8, "none", "relu").named_children()]
    ['linear', 'norm', 'act']
    """
    return nn.Sequential(
        OrderedDict(
            linear=nn.Linear(inputs, outputs),
            norm=norm_layer(norm, outputs, maps=False),
            act=activation_layer(activation),
        )
    )


def image_size(builder: str, size: int) -> int:
    """Refuse images too small to be halved twice.

    >>> image_size("vgg13", 4)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.RecipeError: builder 'vgg13': size must be at least 8, got 4
    """
    if size < 8:
        raise RecipeError(f"builder {builder!r}: size must be at least 8, got {size}")
    return size


def positive(builder: str, **values: int) -> None:
    """Refuse sizes and counts below one.

    >>> positive("mlp", classes=0)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.RecipeError: builder 'mlp': classes must be at least 1, got 0
    """
    for name, value in values.items():
        if value < 1:
            raise RecipeError(f"builder {builder!r}: {name} must be at least 1, got {value}")
