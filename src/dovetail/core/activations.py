r"""Activations by name, and the range of the kernel they leave.

For unit-length features :math:`\phi` the kernel :math:`k(u, v) = \langle\phi(u), \phi(v)\rangle`
lies in :math:`[\beta, \alpha]` with :math:`\alpha = 1`.  Features that cannot be negative can at
most be orthogonal, so :math:`\beta = 0`; features of both signs can be opposite, so
:math:`\beta = -1`.
"""

from __future__ import annotations

from typing import NamedTuple

from dovetail.core.errors import SettingsError, nearest


class KernelRange(NamedTuple):
    """The least and the greatest value of the kernel.

    >>> KernelRange(0.0, 1.0).beta
    0.0
    """

    beta: float
    alpha: float


_NON_NEGATIVE = ("relu", "relu6", "sigmoid", "hardsigmoid", "softplus", "softmax")
_BOTH_SIGNS = (
    "identity",
    "tanh",
    "hardtanh",
    "elu",
    "selu",
    "celu",
    "gelu",
    "silu",
    "mish",
    "hardswish",
    "leaky-relu",
    "prelu",
)
_RANGES = {name: KernelRange(0.0, 1.0) for name in _NON_NEGATIVE} | {
    name: KernelRange(-1.0, 1.0) for name in _BOTH_SIGNS
}


def kernel_range(activation: str) -> KernelRange:
    """The kernel's range after an activation.

    >>> kernel_range("relu"), kernel_range("tanh")
    (KernelRange(beta=0.0, alpha=1.0), KernelRange(beta=-1.0, alpha=1.0))
    """
    if activation not in _RANGES:
        raise SettingsError(f"unknown activation {activation!r}{nearest(activation, _RANGES)}")
    return _RANGES[activation]


def is_activation(name: str) -> bool:
    """Whether this is the name of an activation we know.

    >>> is_activation("relu"), is_activation("conv2d")
    (True, False)
    """
    return name in _RANGES
