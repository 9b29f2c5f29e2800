"""Where to cut a network that is to be trained in modules."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from dovetail.core.errors import CutError, TrainingError
from dovetail.parts.cutting import CutPoint, output_point
from dovetail.parts.part import Part

__all__ = ["chosen_points", "refuse_unfit", "trainable"]

At = str | CutPoint | Sequence[str | CutPoint]


def chosen_points(whole: Part, at: At | None) -> tuple[str, ...]:
    """The names of the points to cut at; without any said, the one before the output layer.

    >>> from dovetail.parts.part import build
    >>> chosen_points(build("lenet5"), None), chosen_points(build("lenet5"), ["conv2", "fc2"])
    (('fc2',), ('conv2', 'fc2'))
    """
    if at is None:
        return (output_point(whole.module),)
    named = (at,) if isinstance(at, str | CutPoint) else tuple(at)
    if not named:
        raise CutError("at= names no point; leave it out to cut before the output layer")
    return tuple(str(place) for place in named)


def trainable(module: nn.Module) -> bool:
    """Whether there is a weight to train.

    >>> trainable(nn.Linear(1, 1)), trainable(nn.ReLU())
    (True, False)
    """
    return any(p.requires_grad for p in module.parameters())


def refuse_unfit(modules: Sequence[Part], at: Sequence[str]) -> None:
    """Refuse modules that hand over several tensors, or that leave nothing to train."""
    for module, place in zip(modules, at, strict=False):
        if len(module.contract.gives) > 1:
            raise CutError(
                f"{len(module.contract.gives)} tensors cross at {place!r}, and a kernel is of one; "
                "take a point that dt.cut_points lists"
            )
    if not trainable(modules[-1].module):
        raise TrainingError(
            f"behind {at[-1]!r} there is no weight to train; the output module needs one"
        )
