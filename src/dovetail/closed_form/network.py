"""A fitted network as a module, and as a part that says what it takes and gives."""

from __future__ import annotations

import copy
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor, nn

from dovetail.closed_form.layers import ACTIVATIONS, Layer
from dovetail.core.errors import SettingsError
from dovetail.core.plain import to_plain
from dovetail.core.seeds import seeded
from dovetail.parts.builders import find_builder
from dovetail.parts.contract import Contract, Port, Preprocess
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part
from dovetail.parts.recipe import Build, Cut, Join, Recipe, rebuild
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
    """The layers (the last is the head) as a part that ``mlp`` rebuilds, or several in a row.

    Args:
        layers: On raw inputs; hidden ones with the activation, or linear.
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
    recipe, names = _recipe(layers, activation if ours else "identity", shape, dtype_name(dtype))
    with seeded(0, "weights"):  # drawn to be replaced, and the user's generator stays as it is
        module = rebuild(recipe)
    state: dict[str, Tensor] = {}
    for name, layer in zip(names, layers, strict=True):
        place = name if layer is layers[-1] else f"{name}.linear"
        state |= {f"{place}.weight": layer.weights.T, f"{place}.bias": layer.bias}
        if not ours and not _is_linear(layer):
            used = copy.deepcopy(activation) if isinstance(activation, nn.Module) else None
            module.get_submodule(name).act = used or Applied(activation)
    module.load_state_dict(state)
    contract = Contract(
        takes=(Port(shape),),
        gives=(Port((layers[-1].weights.shape[1],), dtype_name(dtype)),),
        preprocess=_preprocess(shape),
        classes=classes,
        kind="regression" if classes is None else "classes",
        inputs=inputs,
    )
    return Part(module.eval(), contract, recipe if ours else None, origin)


def _recipe(
    layers: list[Layer], activation: str, shape: tuple[int, ...], dtype: str
) -> tuple[Recipe, list[str]]:
    """What rebuilds the layers, and where each of them is in it.

    A perceptron has one activation, so runs of linear layers, and of those with the activation, are
    the fronts of perceptrons in a row; the last is a whole one.
    """
    *hidden, head = layers
    runs = [list(run) for _, run in groupby(hidden, _is_linear)] or [[]]
    recipes: list[Recipe] = []
    names: list[str] = []
    for run in runs:
        last, before = run is runs[-1], f"{len(recipes)}." * (len(runs) > 1)
        args = {
            "shape": shape,
            "classes": head.weights.shape[1] if last else 1,
            "hidden": tuple(layer.weights.shape[1] for layer in run),
            "activation": "identity" if run and _is_linear(run[0]) else activation,
            "dtype": dtype,
        }
        whole = Build("mlp", to_plain(find_builder("mlp").arguments(args)))
        recipes.append(whole if last else Cut(whole, f"hidden{len(run)}", "front"))
        names += [f"{before}hidden{i}" for i in range(1, len(run) + 1)]
        names += [f"{before}head"] * last
        shape = (run[-1].weights.shape[1],) if run else shape
    return (recipes[0] if len(recipes) == 1 else Join(tuple(recipes))), names


def _is_linear(layer: Layer) -> bool:
    return isinstance(layer.activation, nn.Identity)


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
