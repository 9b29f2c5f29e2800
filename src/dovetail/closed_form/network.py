"""A fitted network as a module, and as a part that says what it takes and gives."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from dovetail.closed_form.layers import ACTIVATIONS, Layer
from dovetail.core.errors import SettingsError
from dovetail.parts.contract import Contract, Port, Preprocess
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part, build
from dovetail.parts.weights import dtype_name

__all__ = ["network_part", "two_columns"]


class Applied(nn.Module):
    """A function of tensors as a module.

    >>> Applied(torch.relu)(torch.tensor([-1.0]))
    tensor([0.])
    """

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """What the function makes of ``x``."""
        return cast(Tensor, self.function(x))


def network_part(
    layers: list[Layer],
    activation: Any,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    origin: Origin,
    *,
    classes: tuple[str, ...] | None = None,
    inputs: tuple[str, ...] | None = None,
) -> Part:
    """The layers (the last is the head) as a part that ``mlp`` rebuilds.

    Args:
        layers: On raw inputs.
        activation: As the user gave it; with a function of theirs there is no recipe.
        shape: Of one input.
        dtype: float64 or float32 weights.  Inputs may be of either.
        origin: What the part says of itself.
        classes: Names of the outputs; without any they are numbers.
        inputs: Names of the inputs, where known.

    >>> line = Layer(torch.ones(2, 1).double(), torch.zeros(1).double(), nn.Identity())
    >>> network_part([line], "relu", (2,), torch.float64, Origin(how="closed-form"))
    Part(mlp: 2 -> 1, 3 weights)
    """
    if dtype not in (torch.float32, torch.float64):
        raise SettingsError(f"dtype must be torch.float64 or torch.float32, got {dtype!r}")
    ours = isinstance(activation, str) and activation in ACTIVATIONS
    widths = tuple(layer.weights.shape[1] for layer in layers)
    part = build(
        "mlp",
        shape=shape,
        classes=widths[-1],
        hidden=widths[:-1],
        activation=activation if ours else "identity",
        dtype=dtype_name(dtype),
    )
    state: dict[str, Tensor] = {}
    for i, layer in enumerate(layers, start=1):
        name = "head" if i == len(layers) else f"hidden{i}.linear"
        state |= {f"{name}.weight": layer.weights.T, f"{name}.bias": layer.bias}
    part.module.load_state_dict(state)
    if not ours:
        for i in range(1, len(layers)):
            used = copy.deepcopy(activation) if isinstance(activation, nn.Module) else None
            part.module.get_submodule(f"hidden{i}").act = used or Applied(activation)
    contract = Contract(
        takes=(Port(shape),),
        gives=(Port((widths[-1],), dtype_name(dtype)),),
        preprocess=_preprocess(shape),
        classes=classes,
        kind="regression" if classes is None else "classes",
        inputs=inputs,
    )
    recipe = part.recipe if ours else None
    return Part(part.module.eval(), contract, recipe, origin)


def two_columns(head: Layer) -> Layer:
    """A head for one score as a head of two, whose difference is the score.

    >>> head = Layer(torch.ones(1, 1), torch.zeros(1), nn.Identity())
    >>> two_columns(head)(torch.tensor([[3.0]]))
    tensor([[-1.5000,  1.5000]])
    """
    halves = torch.tensor([-0.5, 0.5], dtype=head.weights.dtype)
    both = halves[:, None] * head.weights.T  # [2, w], as a module holds it
    return Layer(both.T, head.bias * halves, head.activation)


def _preprocess(shape: tuple[int, ...]) -> Preprocess | None:
    """Images of another size are brought to this one; what was centred is in the weights."""
    if len(shape) != 3:
        return None
    return Preprocess(size=(shape[1], shape[2]), channels=shape[0])
