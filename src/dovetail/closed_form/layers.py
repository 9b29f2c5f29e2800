"""A layer that was solved for, and the activations that may follow it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dovetail.core.errors import SettingsError, first_line

__all__ = ["ACTIVATIONS", "Activation", "Layer", "activation_of"]

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "leaky-relu": F.leaky_relu,
    "elu": F.elu,
    "celu": F.celu,
    "selu": F.selu,
    "softplus": F.softplus,
    "hardtanh": F.hardtanh,
    "relu6": F.relu6,
    "identity": nn.Identity(),
}
"""Monotonic, as the method wants: what is sorted before an activation is sorted after it."""


@dataclass(frozen=True)
class Layer:
    r"""One layer, :math:`z \mapsto \sigma(z W + b)`: ``weights [d, w]``, ``bias [w]``.

    >>> Layer(-torch.eye(2), torch.zeros(2), torch.relu)(torch.tensor([[1.0, -2.0]]))
    tensor([[0., 2.]])
    """

    weights: Tensor
    bias: Tensor
    activation: Activation

    def __call__(self, z: Tensor) -> Tensor:
        """Rows ``[n, d]`` to rows ``[n, w]``."""
        return self.activation(torch.addmm(self.bias, z, self.weights))


def activation_of(given: Any) -> Activation:
    """The function a name stands for; any other monotonic function is taken as it is.

    >>> activation_of("tanh") is torch.tanh
    True
    >>> activation_of("gelu")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: 'gelu' is no monotonic activation we know; say one of relu,
    tanh, sigmoid, leaky-relu, elu, celu, selu, softplus, hardtanh, relu6, identity
    """
    if isinstance(given, str):
        if given not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise SettingsError(f"{given!r} is no monotonic activation we know; say one of {known}")
        return ACTIVATIONS[given]
    if not callable(given):
        raise SettingsError(f"an activation is a name or a function, not {type(given).__name__}")
    chosen: Activation = given
    probe = torch.linspace(-2.0, 2.0, 6, dtype=torch.float64).reshape(3, 2)
    try:
        found = chosen(probe)
    except Exception as error:
        raise SettingsError(f"the activation fails on a tensor: {first_line(error)}") from error
    if (
        not isinstance(found, Tensor)
        or found.shape != probe.shape
        or found.dtype != probe.dtype
        or not bool(found.isfinite().all())
    ):
        raise SettingsError(
            "an activation takes a float64 tensor [n, w] and gives finite numbers of that shape "
            "and type, with torch's functions; this one does not"
        )
    return chosen
