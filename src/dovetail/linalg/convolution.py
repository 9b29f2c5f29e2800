r"""Convolutions whose gradients can be differentiated again at the price of convolutions.

A convolution :math:`y = x * w` is linear in either argument, so everything about it is made of
three maps: :math:`x, w \mapsto y`; :math:`g, w \mapsto x`-like; and :math:`g, x \mapsto w`-like.
The derivative of its backward pass along :math:`(\dot x, \dot w)`, cotangents of its two results,

.. math::
    \partial g = \dot x * w + x * \dot w, \qquad
    \partial x = (g, \dot w)_x, \qquad
    \partial w = (g, \dot x)_w ,

needs nothing else.  torch's own formula takes the last one as a convolution whose kernel is as
large as the image, with the examples as channels: several times the time on a processor.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

_DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}
_Way = tuple[list[int], list[int], list[int], int]
"""Stride, padding, dilation and groups."""


class TwiceDifferentiable(TorchFunctionMode):
    """Inside the block, convolutions on a processor have a cheap second derivative.

    >>> w = torch.ones(1, 1, 2, 2, requires_grad=True)
    >>> with TwiceDifferentiable():
    ...     y = torch.conv2d(torch.ones(1, 1, 3, 3), w).square().sum()
    >>> (slope,) = torch.autograd.grad(y, w, create_graph=True)
    >>> torch.autograd.grad(slope.sum(), w)[0].flatten()
    tensor([32., 32., 32., 32.])
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function not in _DIMENSIONS or kwargs or len(args) != 7:
            return function(*args, **kwargs)
        x, w, b, stride, padding, dilation, groups = args
        axes = _DIMENSIONS[function]
        plain = x.ndim == axes + 2 and x.device.type == "cpu" and not isinstance(padding, str)
        if not plain:
            return function(*args)
        way = tuple(_each(v, axes) for v in (stride, padding, dilation))
        y = _Convolution.apply(x, w, (*way, groups))  # type: ignore[no-untyped-call]
        return y if b is None else y + b.reshape(-1, *(1,) * axes)


def _each(value: Any, axes: int) -> list[int]:
    several = list(value) if isinstance(value, list | tuple) else [value]
    return several * axes if len(several) == 1 else several


def _forward(x: Tensor, w: Tensor, way: _Way) -> Tensor:
    stride, padding, dilation, groups = way
    nothing = [0] * len(stride)
    y: Tensor = torch.ops.aten.convolution(
        x, w, None, stride, padding, dilation, False, nothing, groups
    )
    return y


def _backward(
    g: Tensor, x: Tensor, w: Tensor, way: _Way, wants: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    stride, padding, dilation, groups = way
    nothing = [0] * len(stride)
    like_x, like_w, _ = torch.ops.aten.convolution_backward(
        g, x, w, None, stride, padding, dilation, False, nothing, groups, [*wants, False]
    )
    return like_x, like_w


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, way: _Way) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.way = way
        return _forward(x, w, way)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        wants = ctx.needs_input_grad[:2]
        return *_Slopes.apply(g, x, w, ctx.way, wants), None  # type: ignore[no-untyped-call]


class _Slopes(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, w: Tensor, way: _Way, wants: tuple[bool, bool]
    ) -> Any:
        ctx.save_for_backward(g, x, w)
        ctx.way = way
        ctx.set_materialize_grads(False)
        return _backward(g, x, w, way, wants)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dx: Tensor | None, dw: Tensor | None) -> Any:
        g, x, w = ctx.saved_tensors
        ask_g, ask_x, ask_w = ctx.needs_input_grad[:3]
        to_g = None
        if ask_g:
            pairs = [(a, b) for a, b in ((dx, w), (x, dw)) if a is not None and b is not None]
            moved = [_forward(a, b, ctx.way) for a, b in pairs]
            to_g = sum(moved[1:], moved[0]) if moved else None
        to_x = _backward(g, x, dw, ctx.way, (True, False))[0] if ask_x and dw is not None else None
        to_w = _backward(g, dx, w, ctx.way, (False, True))[1] if ask_w and dx is not None else None
        return to_g, to_x, to_w, None, None
