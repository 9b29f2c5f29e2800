r"""A layer that was solved for: its activation, its factors of low rank, its place in a part.

**Low rank** makes a layer wider for the same number of weights.  Its weights
:math:`W \in \mathbb{R}^{d \times w}` are replaced by the matrix of rank :math:`r` that changes
least what enters the activation,

.. math:: \min_{\operatorname{rank} W_r \le r} \lVert \tilde Z (W - W_r) \rVert_F ,
          \qquad W_r = W Q Q^\top ,

with :math:`Q` the first :math:`r` eigenvectors of :math:`W^\top S W`: the principal components of
:math:`\tilde Z W`.  Kept as :math:`(W Q)\,Q^\top` they are :math:`r (d + w)` numbers, not
:math:`d w`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dovetail.core.errors import SettingsError, first_line
from dovetail.core.plain import to_plain
from dovetail.core.seeds import seeded
from dovetail.linalg.moments import Moments
from dovetail.pack.tensors import dtype_name
from dovetail.parts.builders import find_builder
from dovetail.parts.contract import Contract, Port, Preprocess
from dovetail.parts.facts import Origin
from dovetail.parts.part import Part
from dovetail.parts.recipe import Build, Cut, Join, Recipe, rebuild
from dovetail.parts.zoo.patches import Patches

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


def activation_of(named: Any) -> Activation:
    """The function a name stands for; any other monotonic function is taken as it is.

    >>> activation_of("tanh") is torch.tanh
    True
    >>> activation_of("gelu")
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: 'gelu' is no monotonic activation we know; say one of relu,
    tanh, sigmoid, leaky-relu, elu, celu, selu, softplus, hardtanh, relu6, identity
    """
    if isinstance(named, str):
        if named not in ACTIVATIONS:
            known = ", ".join(ACTIVATIONS)
            raise SettingsError(f"{named!r} is no monotonic activation we know; say one of {known}")
        return ACTIVATIONS[named]
    if not callable(named):
        raise SettingsError(f"an activation is a name or a function, not {type(named).__name__}")
    chosen: Activation = named
    rows = torch.linspace(-2.0, 2.0, 6, dtype=torch.float64).reshape(3, 2)
    try:
        images = chosen(rows)
    except Exception as error:
        raise SettingsError(f"the activation fails on a tensor: {first_line(error)}") from error
    if (
        not isinstance(images, Tensor)
        or images.shape != rows.shape
        or images.dtype != rows.dtype
        or not bool(images.isfinite().all())
    ):
        raise SettingsError(
            "an activation takes a float64 tensor [n, w] and gives finite numbers of that shape "
            "and type, with torch's functions; this one does not"
        )
    return chosen


def cut_to_rank(layer: Layer, moments: Moments, rank: int) -> Layer:
    """The layer with weights of a rank, for rows with these moments.

    The mean of what enters the activation stays what it was.

    >>> rows = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    >>> layer = Layer(torch.eye(2).double(), torch.zeros(2).double(), torch.relu)
    >>> moments = Moments(2, 1).update(rows, rows[:, :1])
    >>> int(torch.linalg.matrix_rank(cut_to_rank(layer, moments, 1).weights))
    1
    """
    if rank >= min(layer.weights.shape):
        return layer
    inner = layer.weights.T @ moments.features @ layer.weights
    axes = torch.linalg.eigh(inner)[1][:, -rank:]
    weights = layer.weights @ axes @ axes.T
    bias = layer.bias + moments.feature_mean @ (layer.weights - weights)
    return Layer(weights, bias, layer.activation)


def factors_of(layer: Layer, rank: int | None = None) -> tuple[Layer, ...]:
    r"""A layer as two, the first linear, where that is fewer numbers; else as it is.

    Weights :math:`U \Sigma V^\top` become :math:`U \Sigma^{1/2}` and
    :math:`\Sigma^{1/2} V^\top`, so that what goes between is neither large nor small.

    Args:
        layer: One whose weights are of low rank.
        rank: Which, if that is known; else what rounding leaves of the singular values says.

    >>> line = Layer(torch.ones(4, 4).double(), torch.zeros(4).double(), torch.relu)
    >>> [tuple(each.weights.shape) for each in factors_of(line)]
    [(4, 1), (1, 4)]
    """
    d, w = layer.weights.shape
    u, s, vh = torch.linalg.svd(layer.weights, full_matrices=False)
    if rank is None:
        rank = max(1, int((s > max(d, w) * torch.finfo(s.dtype).eps * s[0]).sum()))
    if rank * (d + w + 1) >= d * w:
        return (layer,)
    size = s[:rank].sqrt()
    # Laid out as a module holds them, so that it multiplies in the same order.
    down, up = (u[:, :rank] * size).T.contiguous().T, (vh[:rank].T * size).contiguous().T
    return Layer(down, down.new_zeros(rank), nn.Identity()), Layer(up, layer.bias, layer.activation)


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
    front: Patches | None = None,
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
        front: Filters before the first layer; ``patch-mlp`` rebuilds them.

    >>> line = Layer(torch.ones(2, 1).double(), torch.zeros(1).double(), nn.Identity())
    >>> network_part([line], "relu", (2,), torch.float64, Origin(how="closed-form"))
    Part(mlp: 2 -> 1, 3 weights)
    """
    if dtype not in (torch.float32, torch.float64):
        raise SettingsError(f"dtype must be torch.float64 or torch.float32, got {dtype!r}")
    ours = isinstance(activation, str) and activation in ACTIVATIONS
    named = activation if ours else "identity"
    recipe, names = _recipe(layers, named, shape, dtype_name(dtype), front)
    with seeded(0, "weights"):  # drawn to be replaced, and the user's generator stays as it is
        module = rebuild(recipe)
    state: dict[str, Tensor] = {}
    if front is not None:
        before = "0." * isinstance(recipe, Join)
        state = {f"{before}patches.{name}": each for name, each in front.state_dict().items()}
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
    layers: list[Layer],
    activation: str,
    shape: tuple[int, ...],
    dtype: str,
    front: Patches | None,
) -> tuple[Recipe, list[str]]:
    """What rebuilds the layers, and where each of them is in it.

    A perceptron has one activation, so runs of linear layers, and of those with the activation, are
    the fronts of perceptrons in a row; the last is a whole one.
    """
    *hidden, head = layers
    network, filters = "mlp", {}
    if front is not None:
        network, filters = (
            "patch-mlp",
            {
                "filters": front.filters.out_channels,
                "patch": front.size,
                "pool": front.pool,
                "contrast": front.contrast,
            },
        )
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
            **filters,
        }
        whole = Build(network, to_plain(find_builder(network).arguments(args)))
        recipes.append(whole if last else Cut(whole, f"hidden{len(run)}", "front"))
        names += [f"{before}hidden{i}" for i in range(1, len(run) + 1)]
        names += [f"{before}head"] * last
        shape = (run[-1].weights.shape[1],) if run else shape
        network, filters = "mlp", {}
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
