"""A network with a head for a task: its own, if it knows the classes, else one fitted to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from dovetail.adapt.networks import Front, with_head
from dovetail.adapt.probe import MOST_CELLS, ProbeRegressor, fit_head
from dovetail.core.errors import ContractError
from dovetail.core.words import counted
from dovetail.lens.curvature import HessianSpectrum, hessian_spectrum
from dovetail.lens.profile import OUTPUT
from dovetail.measure.features import pooled
from dovetail.measure.forward import outputs_of, prepare
from dovetail.parts.cutting import cut
from dovetail.parts.facts import Origin
from dovetail.parts.heads import before_the_head, output_layer
from dovetail.parts.part import Part
from dovetail.ranking.scores import score
from dovetail.tasks.task import Task

_WIDTH = 1000
"""Features of a network of which that is not known, to plan by."""


@dataclass(frozen=True)
class Headed:
    """The network with a head, and what its head alone takes and is to give.

    ``back`` is that head and ``features`` what it takes for each example; ``accuracy`` is what the
    network gets right of them, ``left_out`` what a linear head on the same features gets right of
    examples that were left out of its fit, one after the other.
    """

    whole: Part
    back: nn.Module
    features: Tensor
    targets: Tensor
    own: bool
    name: str
    accuracy: float | None = None
    left_out: float | None = None

    def curvature(self, k: int, seed: int) -> HessianSpectrum:
        """Of the loss in the weights of the head, for which nothing before it has to run."""
        found = hessian_spectrum(
            self.back, (self.features, self.targets), k, limit=None, density=0, seed=seed
        )
        whose = self.name if self.own else f"a linear head on {self.name}"
        return replace(found, module=whose)


def headed(
    part: Part, sample: Task, *, seed: int, rows: Mapping[str, Tensor] | None = None
) -> Headed:
    """The part with a head for the task, whose training split is the examples to look at.

    ``rows`` are pooled features by cut point, where a pass has been made already.
    """
    inputs, targets = sample.subset("train")
    where = before_the_head(part)
    own = _knows(part, sample)
    if sample.kind == "regression" and not own:
        whole = ProbeRegressor(part).fit(inputs, targets.numpy()).to_part()
        where = before_the_head(whole)
        own, part = True, whole
    if own:
        return _with_its_own(part, where, sample, rows or {})
    front = part if where is None else cut(part, where)[0]
    taken = (rows or {}).get(where or OUTPUT)
    if taken is None:
        taken = outputs_of(front, inputs, each=lambda output: pooled(output, "average"))
    _refuse_not_finite(front, taken)
    head = Front(front)
    count = len(sample.classes)
    small = taken.numel() * count <= MOST_CELLS
    fitted = fit_head(taken.double(), targets, count, "logistic" if small else "ridge", seed=seed)
    weights, intercept = (
        values / fitted.temperature for values in (fitted.head.weights, fitted.head.intercept)
    )
    shape = head.shape(inputs)
    whole = with_head(head, shape, weights, intercept, Origin("probe"), sample.classes)
    back = nn.Linear(*weights.shape).to(taken.dtype)
    back.load_state_dict({"weight": weights.T, "bias": intercept})
    return Headed(
        whole=whole,
        back=back,
        features=taken,
        targets=targets,
        own=False,
        name=where or "its output",
        left_out=_left_out(taken, targets),
    )


def weights_of_the_head(part: Part, sample: Task) -> int:
    """How many weights the head has, and those of one that is to be fitted count twice.

    Fitting takes about as long as the curvature of what was fitted.
    """
    where = before_the_head(part)
    if _knows(part, sample):
        back = part.module if where is None else cut(part, where)[1].module
        return sum(p.numel() for p in back.parameters())
    front = part if where is None else cut(part, where)[0]
    gives = front.contract.gives[0].shape or (None,)
    return 2 * (gives[0] or _WIDTH) * sample.outputs


def _with_its_own(
    part: Part, where: str | None, sample: Task, rows: Mapping[str, Tensor]
) -> Headed:
    inputs, targets = sample.subset("train")
    if where is None:
        front, back = None, part.module
        taken = prepare(inputs, part.contract)
    else:
        front, behind = cut(part, where)
        back = behind.module
        whole = len(front.contract.gives[0].shape or ()) == 1  # pooling took nothing away
        taken = rows[where] if whole and where in rows else outputs_of(front, inputs)
        _refuse_not_finite(front, taken)
    accuracy = left_out = None
    if sample.kind == "classes":
        known = part.contract.classes or sample.classes
        targets = torch.tensor([known.index(name) for name in sample.classes])[targets]
        outputs = outputs_of(part, inputs) if front is None else outputs_of(Part(back), taken)
        accuracy = float((outputs.argmax(1) == targets).double().mean())
        left_out = _left_out(pooled(taken, "average"), sample.subset("train")[1])
    return Headed(
        whole=part,
        back=back,
        features=taken,
        targets=targets,
        own=True,
        name=_last_layer(part),
        accuracy=accuracy,
        left_out=left_out,
    )


def _knows(part: Part, task: Task) -> bool:
    known = part.contract.classes
    if task.kind == "classes":
        return known is not None and set(task.classes) <= set(known)
    gives = part.contract.gives[0].shape
    return part.contract.kind == task.kind and gives == (task.outputs,)


def _last_layer(part: Part) -> str:
    try:
        return output_layer(part) or "the last layer"
    except ContractError:  # neither dense nor a convolution
        return "the last layer"


def _left_out(rows: Tensor, targets: Tensor) -> float | None:
    if len(torch.unique(targets)) < 2 or rows.flatten(1).shape[1] > 20_000:
        return None
    return float(score(rows.flatten(1), targets, by="ridge-loo"))


def _refuse_not_finite(front: Part, features: Tensor) -> None:
    wrong = ~features.flatten(1).isfinite().all(1)
    if bool(wrong.any()):
        many = counted(int(wrong.sum()), "example")
        raise ContractError(
            f"{front.described!r} gives NaN or infinite features for {many} of {len(features)}; "
            "look at its weights, and at the scale of the inputs"
        )
