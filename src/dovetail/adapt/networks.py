"""The network an estimator works with: a copy of what people hand it, or one made for the rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from dovetail.core.seeds import seeded
from dovetail.linalg.parameters import refuse_lazy
from dovetail.measure.preprocess import prepare
from dovetail.parts.contract import Contract, Preprocess
from dovetail.parts.part import Part, as_part, build
from dovetail.tasks.arrays import as_float

__all__ = ["copied", "default_network", "network_of", "standardising"]


def network_of(
    model: Part | nn.Module,
) -> tuple[nn.Module, Callable[[Tensor], Tensor], Contract | None]:
    """A network of one's own, in evaluation mode; how it wants raw inputs; its contract, if known.

    The copy leaves the caller's network as it is.  A part prepares inputs as its contract says; a
    plain module gets them as they are (uint8 divided by 255, as a task would).  Both get the type
    of their weights, see :func:`copied`.  All of it pickles.

    >>> module, ready, contract = network_of(nn.Linear(2, 1))
    >>> module.training, ready(torch.tensor([[0, 255]], dtype=torch.uint8)), contract
    (False, tensor([[0., 1.]]), None)
    """
    refuse_lazy(model.module if isinstance(model, Part) else model)
    part = as_part(model)
    module = copied(part.module)
    dtype = _type_of(module)
    if not isinstance(model, Part):
        return module, partial(_as_type, dtype=dtype), None
    return module, partial(_prepared, contract=part.contract, dtype=dtype), part.contract


def copied(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode; of half precision in float32.

    Half precision has too few digits for derivatives, and not every processor computes in it.

    >>> copied(nn.Linear(2, 1).half()).weight.dtype, copied(nn.Linear(2, 1).double()).weight.dtype
    (torch.float32, torch.float64)
    """
    own = copy.deepcopy(module).eval()
    return own.float() if _type_of(own) in (torch.float16, torch.bfloat16) else own


def default_network(
    inputs: Tensor, outputs: int, hidden: Sequence[int] = (128, 128), *, seed: int = 0
) -> Part:
    r"""The network that an estimator without a model makes: a tanh MLP with random weights.

    Its preprocessing standardises each feature (or channel) by the mean and deviation of the rows
    given here.  Weights are drawn from :math:`\mathcal N(0, \sigma_w^2 / d)` for a layer of
    :math:`d` inputs, biases from :math:`\mathcal N(0, \sigma_b^2)` with :math:`\sigma_w = 1.5` and
    :math:`\sigma_b = 0.5`: activations neither die out nor saturate with depth, so every layer
    has its share in the tangent kernel, and units are not all alike at the centre of the data.

    >>> default_network(torch.rand(20, 3), outputs=2)
    Part(mlp: 3 -> 2, 17,282 weights)
    """
    shape = tuple(inputs.shape[1:])
    part = build(
        "mlp",
        seed=seed,
        shape=shape,
        classes=outputs,
        hidden=tuple(hidden),
        activation="tanh",
    )
    with seeded(seed, "default network"), torch.no_grad():
        for layer in part.module.modules():
            if isinstance(layer, nn.Linear):
                layer.weight.normal_(0.0, 1.5 / layer.in_features**0.5)
                layer.bias.normal_(0.0, 0.5)
    contract = part.contract
    return part.changed(
        contract=Contract(contract.takes, contract.gives, preprocess=standardising(inputs))
    )


def standardising(inputs: Tensor) -> Preprocess:
    """The preprocessing that gives every feature (or channel) of these inputs mean 0, deviation 1.

    >>> standardising(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))
    Preprocess(size=None, channels=None, scale=1.0, mean=(1.0, 5.0), std=(1.0, 1.0))
    """
    columns = as_float(inputs).double().movedim(1, -1).reshape(-1, inputs.shape[1])
    mean, std = columns.mean(0), columns.std(0, correction=0)
    std[std <= 1e-8 * mean.abs()] = 1.0  # a constant feature carries nothing; leave it at zero
    return Preprocess(mean=tuple(mean.tolist()), std=tuple(std.tolist()))


def _type_of(module: nn.Module) -> torch.dtype:
    floating = (each.dtype for each in module.parameters() if each.is_floating_point())
    return next(floating, torch.float32)


def _as_type(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    return as_float(inputs).to(dtype)


def _prepared(inputs: Tensor, contract: Contract, dtype: torch.dtype) -> Tensor:
    return prepare(inputs, contract).to(dtype)
