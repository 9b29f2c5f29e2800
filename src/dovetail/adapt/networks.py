"""The network an estimator works with: a copy of what people hand it, or one made for the rows.

A :class:`Front` is such a network cut where its features are, frozen, before a fitted head.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from dovetail.adapt.posterior import mean_over
from dovetail.core.errors import ContractError, SettingsError, argument
from dovetail.core.seeds import seeded
from dovetail.linalg.parameters import refuse_lazy
from dovetail.measure.estimator_inputs import as_inputs
from dovetail.measure.features import Pooling, feature_rows
from dovetail.measure.forward import outputs_of, prepare
from dovetail.parts.contract import Contract, Port, Preprocess
from dovetail.parts.cutting import CutPoint, cut
from dovetail.parts.facts import Origin
from dovetail.parts.heads import before_the_head
from dovetail.parts.joining import join
from dovetail.parts.part import Part, as_part, build
from dovetail.tasks.arrays import as_float


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
    if not isinstance(model, Part):
        return module, partial(_as_type, dtype=_type_of(module)), None
    return module, prepared_by(part.changed(module=module)), part.contract


def prepared_by(part: Part) -> Callable[[Tensor], Tensor]:
    """How a part wants raw inputs, in the type of its weights; it pickles."""
    return partial(_prepared, contract=part.contract, dtype=_type_of(part.module))


def copied(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode; of half precision in float32.

    Half precision has too few digits for derivatives, and not every processor computes in it.

    >>> copied(nn.Linear(2, 1).half()).weight.dtype, copied(nn.Linear(2, 1).double()).weight.dtype
    (torch.float32, torch.float64)
    """
    own = copy.deepcopy(module).eval()
    return own.float() if _type_of(own) in (torch.float16, torch.bfloat16) else own


def default_network(
    inputs: Tensor,
    outputs: int,
    hidden: Sequence[int] = (128, 128),
    *,
    seed: int = 0,
    counts: Tensor | None = None,
) -> Part:
    r"""The network that an estimator without a model makes: a tanh MLP with random weights.

    Its preprocessing standardises each feature (or channel) by the mean and deviation of the rows
    given here, each as often as it ``counts [n]``.  Weights are drawn from
    :math:`\mathcal N(0, \sigma_w^2 / d)` for a layer of :math:`d` inputs, biases from
    :math:`\mathcal N(0, \sigma_b^2)` with :math:`\sigma_w = 1.5` and :math:`\sigma_b = 0.5`:
    activations neither die out nor saturate with depth, so every layer has its share in the tangent
    kernel, and units are not all alike at the centre of the data.

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
        contract=Contract(contract.takes, contract.gives, preprocess=standardising(inputs, counts))
    )


def standardising(inputs: Tensor, counts: Tensor | None = None) -> Preprocess:
    """The preprocessing that gives every feature (or channel) of these inputs mean 0, deviation 1.

    Inputs count as often as ``counts [n]`` says, once if it is left out.

    >>> standardising(torch.tensor([[0.0, 5.0], [2.0, 5.0]]))
    Preprocess(size=None, channels=None, scale=1.0, mean=(1.0, 5.0), std=(1.0, 1.0))
    """
    columns = as_float(inputs).double().movedim(1, -1).reshape(-1, inputs.shape[1])
    if counts is not None:
        counts = counts.repeat_interleave(len(columns) // len(inputs))
    mean = mean_over(columns, 0, counts)
    std = mean_over((columns - mean).square(), 0, counts).sqrt()
    std[std <= 1e-8 * mean.abs()] = 1.0  # a constant feature carries nothing; leave it at zero
    return Preprocess(mean=tuple(mean.tolist()), std=tuple(std.tolist()))


@dataclass(frozen=True, eq=False)
class Front:
    """Gives rows of features; without a part, those are the inputs themselves.

    >>> Front(None).rows(torch.ones(2, 1, 2, 2)).shape
    torch.Size([2, 4])
    """

    part: Part | None
    pooling: Pooling = "average"

    def read(self, X: Any, estimator: BaseEstimator, *, reset: bool) -> Tensor:
        """Raw inputs ``[n, ...]`` of an estimator, see :func:`as_inputs`."""
        dtype = torch.float64 if self.part is None else torch.float32
        return as_inputs(X, estimator, reset=reset, dtype=dtype)

    def rows(self, raw: Tensor) -> Tensor:
        """Features ``[n, d]``, float64."""
        if self.part is None:
            return as_float(raw).double().flatten(1)
        rows = feature_rows(self.part, raw, self.pooling)
        if not bool(rows.isfinite().all()):
            raise ContractError(
                f"{self.part.described!r} gives NaN or infinite features for these inputs; "
                "look at its weights and at the scale of the inputs"
            )
        return rows.double()

    def prepared(self, raw: Tensor) -> Tensor:
        """Raw inputs as the network takes them, where it has its weights."""
        assert self.part is not None, "without a network there is nothing to prepare for"
        return prepared_by(self.part)(raw).to(self.part.device)

    def shape(self, raw: Tensor) -> tuple[int, ...]:
        """The shape of one input's features before they become a row."""
        few = raw[:2]
        return tuple((few if self.part is None else outputs_of(self.part, few)).shape[1:])


def front_of(
    model: Part | nn.Module | None, at: str | CutPoint | None = None, pooling: Pooling = "average"
) -> Front:
    """The features to put a head on, from a copy of the model.

    A network that ends in a head is of use for another task without that head: unless ``at`` names
    a cut point, or says ``"output"``, its features are taken before the last layer
    (:func:`~dovetail.parts.heads.before_the_head`).

    >>> front_of(build("lenet5", size=8)).part
    Part(front of lenet5 at fc2: 1×8×8 -> 84 after relu in fc2/..., 20,536 weights)
    """
    if pooling not in get_args(Pooling):
        raise SettingsError(f"pooling must be 'average' or 'flatten', got {pooling!r}")
    if model is None:
        if at is not None:
            raise SettingsError(
                f"{argument('at', ...)} names a cut point of a model; there is no model to cut"
            )
        return Front(None, pooling)
    refuse_lazy(model.module if isinstance(model, Part) else model)
    part = as_part(model)
    part = part.changed(module=copied(part.module))
    where = before_the_head(part) if at is None else str(at)
    if where is not None and where != "output":
        part, _ = cut(part, where)
    if len(part.contract.gives) != 1:
        raise ContractError(
            f"{len(part.contract.gives)} tensors cross at {where!r}, not one; cut elsewhere"
        )
    return Front(part, pooling)


def with_head(
    front: Front,
    shape: tuple[int, ...],
    weights: Tensor,
    intercept: Tensor,
    origin: Origin,
    classes: tuple[str, ...] | None = None,
) -> Part:
    """The front followed by a linear head: ``weights [d, k]`` on its rows, ``intercept [k]``.

    The mean over positions is linear, so a head on averaged maps is one on all positions with the
    weights shared out among them; it then has a recipe, whatever the front.

    Args:
        front: Where the rows come from.
        shape: What :meth:`Front.shape` says.
        weights: Of the head, cast to float32.
        intercept: Of the head.
        origin: What the part is to say of itself; its parents are filled in where it names none.
        classes: The names of the outputs; without any they are numbers.
    """
    if not shape:
        raise ContractError("the model gives one number without an axis; let it give [n, 1]")
    outputs = weights.shape[1]
    positions = math.prod(shape[1:])
    if front.part is not None and front.pooling == "average":
        weights = (weights / positions).repeat_interleave(positions, dim=0)
    head = build("mlp", shape=shape, classes=outputs, hidden=())
    head.module.load_state_dict({"head.weight": weights.T.float(), "head.bias": intercept.float()})
    takes: Port = Port(shape)
    if front.part is not None:
        port = replace(front.part.contract.gives[0], shape=shape)
        takes = replace(port, space=port.space or f"output/{front.part.digest[:12]}")
    contract = Contract(
        (takes,),
        (Port((outputs,)),),
        classes=classes,
        kind="regression" if classes is None else "classes",
    )
    fitted = head.changed(module=head.module.eval(), contract=contract, origin=origin)
    if front.part is None:
        return fitted
    before = front.part.changed(contract=replace(front.part.contract, gives=(takes,)))
    parents = origin.parents or (front.part.digest, fitted.digest)
    return join(before, fitted).changed(origin=replace(origin, parents=parents))


def _type_of(module: nn.Module) -> torch.dtype:
    floating = (each.dtype for each in module.parameters() if each.is_floating_point())
    return next(floating, torch.float32)


def _as_type(inputs: Tensor, dtype: torch.dtype) -> Tensor:
    return as_float(inputs).to(dtype)


def _prepared(inputs: Tensor, contract: Contract, dtype: torch.dtype) -> Tensor:
    return prepare(inputs, contract).to(dtype)
