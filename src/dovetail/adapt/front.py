"""What stands before a fitted head: a frozen network cut where its features are, or nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, get_args

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from dovetail.adapt.networks import copied
from dovetail.core.errors import ContractError, SettingsError
from dovetail.linalg.parameters import refuse_lazy
from dovetail.measure.estimator_inputs import as_inputs
from dovetail.measure.features import Pooling, pooled
from dovetail.measure.forward import outputs_of
from dovetail.parts.contract import Contract, Port
from dovetail.parts.cutting import CutPoint, cut
from dovetail.parts.heads import before_the_head
from dovetail.parts.joining import join
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part, as_part, build
from dovetail.tasks.arrays import as_float

__all__ = ["Front", "front_of", "with_head"]


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
        found = outputs_of(self.part, raw, each=lambda output: pooled(output, self.pooling))
        if not bool(found.isfinite().all()):
            raise ContractError(
                f"{self.part.described!r} gives NaN or infinite features for these inputs; "
                "look at its weights and at the scale of the inputs"
            )
        return found.double()

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
            raise SettingsError("at= names a cut point of a model; there is no model to cut")
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
        origin: What the part is to say of itself; its parent is filled in.
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
    return join(before, fitted).changed(
        origin=replace(origin, parents=(front.part.digest, fitted.digest))
    )
