"""Which stages a training layer by layer has: one definition for trainer, plan and measurements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.core.errors import CutError
from dovetail.core.seeds import derived_seed
from dovetail.parts.cutting import CutPoint, cut_all
from dovetail.parts.part import Part
from dovetail.parts.splitting import Chain
from dovetail.train.decision import Decision
from dovetail.train.frame import chosen_points
from dovetail.train.layers import layer_points, windows, with_weights
from dovetail.train.stages import Stage
from dovetail.train.supervision import below

Sizes = Mapping[str, int | None]

Dropouts = tuple[float, float, float]
"""Forward, its fading, and backward."""


def stage_points(
    whole: Part, at: str | CutPoint | Sequence[str | CutPoint] | None = None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where the layers of a network end, and the points at which none does, for want of weights.

    >>> from dovetail.parts.part import build
    >>> stage_points(build("mlp"), ["flatten", "hidden1"])
    (('hidden1',), ('flatten',))
    """
    if at is None:
        return layer_points(whole), ()
    return with_weights(whole, chosen_points(whole, at))


def stages_of(
    whole: Part,
    outputs: int,
    points: Sequence[str] | None = None,
    *,
    modules: Sequence[Part] | None = None,
    segment: int = 1,
    overlap: int = 0,
    sizes: Sizes | None = None,
    dropouts: Dropouts = (0.0, 1.0, 0.0),
    seed: int = 0,
) -> list[Stage]:
    """The stages, from the input up; the last has the network's own head.

    Args:
        whole: The network.
        outputs: How many numbers its decision is.
        points: Where its layers end.
        modules: What lies between them, if it was cut already.
        segment: How many layers a stage trains.
        overlap: How many of them were in the stage before.
        sizes: What is said of the decision blocks.
        dropouts: Of all stages.
        seed: Of the training.

    >>> from dovetail.parts.part import build
    >>> [stage.name for stage in stages_of(build("lenet5", size=8), 10)]
    ['layer1', 'layer2', 'layer3', 'layer4']
    """
    points = stage_points(whole)[0] if points is None else points
    modules = cut_all(whole, at=points) if modules is None else modules
    made = []
    for first, end in windows(len(points), segment, overlap):
        name = f"layer{end}" if end - first == 1 else f"layers{first + 1}-{end}"
        last = end == len(points)
        shape = _shape(modules[end - 1], points[end - 1])
        decision = None if last else Decision.for_shape(shape, **(sizes or {}))
        made.append(
            Stage(
                name,
                Chain(*(module.module for module in modules[first:end])),
                below(whole, points[first - 1] if first else None),
                shape,
                outputs,
                decision,
                modules[-1].module if last else None,
                *dropouts,
                seed=derived_seed(seed, "stage", name),
            )
        )
    return made


def _shape(module: Part, point: str) -> tuple[int, ...]:
    """What a layer gives for an example."""
    shape = module.contract.gives[0].shape
    if shape is None or None in shape:
        raise CutError(
            f"the shape of what {point!r} gives is not known; give the network a contract, as "
            "dt.adopt(module, example=x)"
        )
    return tuple(axis for axis in shape if axis is not None)
