"""A posterior as tensors and a few facts, and back: what of it a file holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from dovetail.adapt.iterative import IterativePosterior, condition_iteratively
from dovetail.adapt.linear_model import LinearModel
from dovetail.adapt.parameter_space import ParameterPosterior
from dovetail.adapt.posterior import FunctionPosterior
from dovetail.adapt.variational import Centre, VariationalPosterior
from dovetail.core.errors import FormatError
from dovetail.linalg.tangent import TangentFeatures

Posterior: TypeAlias = (
    FunctionPosterior | ParameterPosterior | IterativePosterior | VariationalPosterior
)
Tensors: TypeAlias = Mapping[str, Tensor]
Kind: TypeAlias = Literal[
    "numbers", "labels", "counted labels", "parameter", "cg", "variational", "centred variational"
]

ROOM = 2**33
"""Bytes of features to keep for conjugate gradients, which come back to them in every product."""

LOOSE = 0.999
"""A tolerance that next to nothing has to be done for: the solution is known."""


@dataclass(frozen=True)
class Kept:
    """What a posterior has besides its tensors.

    ``blocks`` counts the times that data came; each has its inputs in a tensor ``inputs.i``.
    """

    kind: Kind
    blocks: int = 0
    numbers: dict[str, float] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors that belong to it."""
        return (*_TENSORS[self.kind], *(f"inputs.{i}" for i in range(self.blocks)))


_CENTRE = ("centre", "constants", "constant_deviations")
_TENSORS = {
    "numbers": ("root", "lower", "dual", "residual"),
    "labels": ("root", "lower", "dual", "kernel"),
    "counted labels": ("root", "lower", "dual", "kernel", "counts"),
    "parameter": ("lower", "pulled", "deviations"),
    "cg": ("residual", "noise", "dual", "weights"),
    "variational": ("weights", "deviations", "elbo"),
    "centred variational": ("weights", "deviations", "elbo", *_CENTRE),
}


def apart(posterior: Posterior) -> tuple[Kept, dict[str, Tensor]]:
    """The facts and the tensors; for a posterior in function space also the data's inputs."""
    numbers: dict[str, float] = {}
    blocks: tuple[TangentFeatures, ...] = ()
    kind: Kind
    match posterior:
        case FunctionPosterior():
            kind = "labels" if posterior.counts is None else "counted labels"
            kind = "numbers" if posterior.kernel is None else kind
            numbers, blocks = {"log_evidence": posterior.log_evidence}, posterior.features
        case ParameterPosterior():
            kind, numbers = "parameter", {"constants": posterior.constants}
        case IterativePosterior():
            how = posterior.how
            kind, numbers = "cg", {"tolerance": how.tolerance, "seed": float(how.seed)}
            blocks = posterior.features
        case VariationalPosterior():
            kind, numbers = "variational", {"kl": posterior.kl}
            kind = kind if posterior.centre is None else "centred variational"
    inputs = {f"inputs.{i}": block.x for i, block in enumerate(blocks)}
    if isinstance(posterior, VariationalPosterior):
        elbo = torch.tensor(posterior.elbo, dtype=torch.float64)
        held = {"weights": posterior.weights, "deviations": posterior.deviations, "elbo": elbo}
        if (centre := posterior.centre) is not None:
            each = (centre.features, centre.mean, centre.deviations)
            held |= dict(zip(_CENTRE, each, strict=True))
    else:
        held = {name: getattr(posterior, name) for name in _TENSORS[kind]}
    return Kept(kind, len(blocks), numbers, dict(posterior.diagnostics)), held | inputs


def together(
    kept: Kept, tensors: Tensors, model: LinearModel, scales: Mapping[str, float]
) -> Posterior:
    """The posterior of these facts and tensors, which are checked to belong together."""
    blocks = [tensors[f"inputs.{i}"] for i in range(kept.blocks)]
    count = sum(len(block) if block.ndim else 0 for block in blocks)
    for name, wrong in _misshapen(kept, tensors, model, count):
        raise FormatError(f"tensor {name!r} of the posterior {wrong}")
    facts = kept.diagnostics
    match kept.kind:
        case "numbers" | "labels" | "counted labels":
            return FunctionPosterior(
                tuple(model.features(block) for block in blocks),
                scales,
                tensors["root"],
                tensors["lower"],
                tensors["dual"],
                _number(kept, "log_evidence"),
                tensors.get("residual"),
                tensors.get("kernel"),
                centred=kept.kind != "numbers",
                counts=tensors.get("counts"),
                diagnostics=facts,
            )
        case "parameter":
            lower, pulled, deviations = (tensors[name] for name in _TENSORS["parameter"])
            constants = _number(kept, "constants")
            return ParameterPosterior(lower, pulled, deviations, scales, constants, facts)
        case "cg":
            return _iterative(kept, tensors, model, blocks, scales)
        case "variational" | "centred variational":
            elbo = tuple(tensors["elbo"].tolist())
            weights, deviations = tensors["weights"], tensors["deviations"]
            kl = _number(kept, "kl")
            centre = Centre(*(tensors[name] for name in _CENTRE)) if "centre" in tensors else None
            return VariationalPosterior(model, weights, deviations, kl, None, elbo, facts, centre)


def _iterative(
    facts: Kept,
    tensors: Tensors,
    model: LinearModel,
    blocks: list[Tensor],
    scales: Mapping[str, float],
) -> IterativePosterior:
    """The preconditioner is made anew, from the same landmarks; the solution is not sought."""
    seed, tolerance = int(_number(facts, "seed")), _number(facts, "tolerance")
    begun = condition_iteratively(
        model.features(torch.cat(blocks), memory=ROOM),
        tensors["residual"],
        tensors["noise"],
        scales,
        tolerance=LOOSE,
        seed=seed,
    )
    features = begun.features
    if len(blocks) > 1:  # sums are then taken in the same order as before
        features = tuple(model.features(block, memory=ROOM) for block in blocks)
    return replace(
        begun,
        features=features,
        dual=tensors["dual"],
        weights=tensors["weights"],
        how=replace(begun.how, tolerance=tolerance),
        diagnostics=facts.diagnostics,
    )


def _misshapen(
    facts: Kept, tensors: Tensors, model: LinearModel, count: int
) -> Iterator[tuple[str, str]]:
    """Tensors of another type or shape than ``count`` inputs have."""
    o, p = _outputs(model), model.size
    rows = count * o
    known: dict[str, tuple[tuple[int, ...], ...]] = {
        "root": ((count, o), (count, o, o)),
        "lower": ((p, p),) if facts.kind == "parameter" else ((rows, rows),),
        "kernel": ((rows, rows),),
        "counts": ((count,),),
        "centre": ((o, p),),
        **dict.fromkeys(("constants", "constant_deviations"), ((o,),)),
        **dict.fromkeys(("dual", "residual", "noise"), ((count, o),)),
        **dict.fromkeys(("pulled", "deviations", "weights"), ((p,),)),
    }
    for name in facts.names:
        tensor = tensors[name]
        if name.startswith("inputs."):
            if tensor.ndim == 0 or len(tensor) == 0:
                yield name, "holds no inputs"
        elif tensor.dtype != torch.float64:
            yield name, f"is of {tensor.dtype}, not float64"
        elif name in known and tuple(tensor.shape) not in known[name]:
            yield name, f"is {list(tensor.shape)}, not {list(known[name][0])}"


def _outputs(model: LinearModel) -> int:
    return dict(model.module.named_parameters())["offset"].numel()


def _number(facts: Kept, name: str) -> float:
    if name not in facts.numbers:
        raise FormatError(f"the posterior does not say its {name}")
    return facts.numbers[name]
