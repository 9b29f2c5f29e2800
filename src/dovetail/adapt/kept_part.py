"""The mean of a linearised estimator as a part."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from dovetail.adapt.readout import OFFSET
from dovetail.measure.estimator_inputs import class_names
from dovetail.parts.contract import Contract, Port
from dovetail.parts.linearised import Linearised
from dovetail.parts.origin import Origin
from dovetail.parts.part import Part
from dovetail.parts.recipe import Linearise

if TYPE_CHECKING:
    from dovetail.adapt.linearized import Linearized

__all__ = ["part_of"]


def part_of(estimator: Linearized) -> Part:
    """A part that gives what the estimator's mean is; logits are divided by its temperature."""
    body, outputs = estimator.body_, len(estimator.constant_)
    projection = estimator.network_.projection
    moves = tuple(name.removeprefix("body.") for name in estimator.linear_.names if name != OFFSET)
    everything = len(moves) == sum(1 for _ in body.module.parameters())
    settings: dict[str, Any] = {
        "moves": None if everything else moves,
        "projected": None if projection is None else len(projection),
        "follows_network": estimator.follows_network_,
    }
    module = Linearised(copy.deepcopy(body.module), outputs, **settings)
    _fill(module, estimator)
    recipe = None if body.recipe is None else Linearise(body.recipe, outputs, **settings)
    return Part(module.eval(), _contract(estimator, outputs), recipe, _origin(estimator))


def _fill(module: Linearised, estimator: Linearized) -> None:
    """Put in what was found.  The offset moves by as much for any input: it is a constant."""
    pieces = torch.split(estimator.direction_, list(estimator.linear_.sizes.values()))
    found = dict(zip(estimator.linear_.names, pieces, strict=True))
    constant = estimator.constant_
    if OFFSET in found:
        constant = constant + found.pop(OFFSET)
    for name, tensor in module.direction.named_buffers():
        tensor.copy_(found[f"body.{name}"].reshape(tensor.shape))
    module.constant.copy_(constant)
    module.temperature.fill_(getattr(estimator, "mean_temperature_", 1.0))
    projection = estimator.network_.projection
    if module.projection is not None and projection is not None:
        module.projection.copy_(projection)


def _contract(estimator: Linearized, outputs: int) -> Contract:
    given = estimator.body_.contract
    takes = given.takes[0]
    if takes.shape is None:
        takes = replace(takes, shape=tuple(estimator._example.shape[1:]))
    classes = getattr(estimator, "classes_", None)
    return Contract(
        (takes,),
        (Port((outputs,)),),
        given.preprocess,
        None if classes is None else class_names(classes),
        "regression" if classes is None else "classes",
        given.inputs,
    )


def _origin(estimator: Linearized) -> Origin:
    body = estimator.body_
    settings = {
        "method": estimator.diagnostics_.get("method"),
        "mean": getattr(estimator, "mean_", estimator.mean),
        "parameters": estimator.linear_.size,
        "prior": {name: float(scale) for name, scale in estimator.scales_.items()},
    }
    if hasattr(estimator, "classes_"):
        settings |= {"temperature": estimator.mean_temperature_, "link": "mean"}
    else:
        settings["noise"] = estimator.noise_
    if estimator.rows_:
        settings["labels"] = estimator.rows_ // len(estimator.constant_)
    # What a front was cut from is on the shelf more often than the front is.
    before = body.origin.parents if body.origin.how == "cut" else ()
    return Origin(
        how="linearized",
        parents=tuple(dict.fromkeys((body.digest, *before))),
        settings=settings,
        measured=_evidence(estimator),
    )


def _evidence(estimator: Linearized) -> dict[str, float]:
    """What is known of the evidence: itself, a bound of it, or nothing."""
    method = estimator.diagnostics_.get("method")
    if estimator.log_evidence_ is None or method == "map":
        return {}
    name = "evidence bound" if method == "svi" else "log evidence"
    return {name: float(estimator.log_evidence_)}
