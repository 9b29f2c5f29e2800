r"""A stitch by least squares: what one front gives, turned into what another gives.

Two fronts see the same images.  At every position :math:`i` (of every image, for maps; once an
image, for vectors) one gives :math:`x_i \in \mathbb{R}^d` and the other
:math:`y_i \in \mathbb{R}^k`; the stitch is the affine map that is nearest,

.. math::
    \min_{W, b} \sum_i \lVert x_i W + b - y_i\rVert^2 + \lambda \lVert W\rVert_F^2 ,

solved in float64 (:mod:`dovetail.linalg.least_squares`) and cast to float32 at the end.  A head
that takes what the other front gives can then follow the first one.  No label is looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.linalg.least_squares import LeastSquares
from dovetail.linalg.ridge_sums import Linear
from dovetail.measure.forward import outputs_of, refuse_other_inputs
from dovetail.parts.facts import Origin
from dovetail.parts.joining import Seam, seam, stitch_part, with_shape
from dovetail.parts.part import Part, as_part, ports_of
from dovetail.tasks.splits import Split
from dovetail.tasks.task import Task

HELD_OUT = 5
"""One image in so many is not fitted: the stitch is judged on it."""

PENALTIES = (1e-3, 1e-2, 0.1, 1.0, 10.0)
"""Tried besides none, in units of the mean squared singular value of the centred rows.

Vectors of 1280 numbers from 800 images can be mapped onto any others without an error, and without
a penalty that is what happens: of what was held out nothing is explained.
"""

BATCH = 256
"""Images a pass; what both fronts make of them is in memory at once."""


def stitch(
    front: Part | nn.Module,
    onto: Part | nn.Module,
    inputs: Task | Tensor,
    *,
    ridge: float | Literal["auto"] = "auto",
    split: Split = "train",
    limit: int | None = 2000,
    seed: int = 0,
) -> Part:
    """The linear map from what ``front`` gives to what ``onto`` gives, for the same inputs.

    Args:
        front: What the stitch will follow.
        onto: A front of the space that the head takes, such as the head's own other half.
        inputs: A task, or raw inputs ``[n, ...]``; each front prepares them in its own way.  The
            targets of a task are never looked at.
        ridge: The penalty on the weights (not on the bias), in units of the summed squares;
            ``"auto"`` takes the one, of none and :data:`PENALTIES`, that explains most of what is
            held out.
        split: Of a task.
        limit: At most so many of the inputs, drawn at random; ``None`` for all.
        seed: For the draw, and for the fifth that is held out.

    Returns:
        A part that takes the front's space and gives the other's: a 1×1 convolution on maps, a
        dense layer on vectors.  ``origin.measured`` has ``"r2"``, the share of the variance it
        explains on the images it was fitted to, and ``"held-out r2"``, on those it was not.

    >>> from dovetail.parts.cutting import cut
    >>> from dovetail.parts.joining import join
    >>> from dovetail.parts.part import build
    >>> front, _ = cut(build("mlp", shape=(4,), hidden=(32,)), at="hidden1")
    >>> onto, head = cut(build("mlp", shape=(4,), hidden=(8,), seed=1), at="hidden1")
    >>> between = stitch(front, onto, torch.rand(400, 4, generator=generator(0)))
    >>> between.origin.measured["held-out r2"] > 0.9
    True
    >>> join(front, between, head)(torch.rand(2, 4)).shape
    torch.Size([2, 10])
    """
    front, onto = as_part(front), as_part(onto)
    raw, rows = _chosen(inputs, split, limit, seed)
    if isinstance(inputs, Task):
        for part in (front, onto):
            refuse_other_inputs(inputs, part.contract)
    held_out = max(1, len(rows) // HELD_OUT)
    fitted, judged = LeastSquares(), LeastSquares()
    between = _seam(front, onto, raw[rows[:2]])
    for x, y in _features(front, onto, raw, rows[held_out:]):
        fitted.update(x, y)
    for x, y in _features(front, onto, raw, rows[:held_out]):
        judged.update(x, y)
    unit = fitted.mean_square
    tried = [0.0, *(share * unit for share in PENALTIES)] if ridge == "auto" else [ridge]
    best = max(map(fitted.solve, tried), key=judged.r2)  # the first of equals has no penalty
    as_stored = Linear(best.weights.float(), best.intercept.float(), best.penalty)
    origin = Origin(
        how="stitch",
        parents=(front.digest, onto.digest),
        # Its fingerprint would be a look at the targets.
        task=inputs.name if isinstance(inputs, Task) else None,
        settings={
            "by": "least-squares",
            "ridge": best.penalty,
            "ridge_by": "held-out r2" if ridge == "auto" else "given",
            "split": split if isinstance(inputs, Task) else None,
            "images": len(rows),
            "held_out": held_out,
            "rank": fitted.rank,
            "seed": seed,
        },
        measured={"r2": fitted.r2(as_stored), "held-out r2": judged.r2(as_stored)},
    )
    return stitch_part(between, best.weights.T, best.intercept, origin)


def _chosen(
    inputs: Task | Tensor, split: Split, limit: int | None, seed: int
) -> tuple[Tensor, Tensor]:
    """All raw inputs, and the rows of them to use in the order they were drawn."""
    if limit is not None and (not isinstance(limit, int) or limit < 2):
        raise SettingsError(f"limit must be a whole number of at least 2, or None; got {limit!r}")
    if isinstance(inputs, Task):
        raw, among = inputs.inputs, inputs.indices(split)
    elif isinstance(inputs, Tensor):
        raw, among = inputs, torch.arange(len(inputs) if inputs.ndim else 0)
    else:
        raise SettingsError(
            f"inputs must be a Task or a tensor of inputs, got {type(inputs).__name__}"
        )
    if len(among) < 2:
        raise TaskError(
            f"a stitch needs at least two inputs, one of them to judge it, got {len(among)}"
        )
    drawn = torch.randperm(len(among), generator=generator(seed, "stitch"))
    return raw, among[drawn[:limit]]


def _seam(front: Part, onto: Part, few: Tensor) -> Seam:
    """The two ports, with the shapes that some inputs show where a contract leaves them open."""
    ports = []
    for part in (front, onto):
        gives = part.contract.gives
        if len(gives) == 1 and (gives[0].shape is None or None in gives[0].shape):
            seen = ports_of(outputs_of(part, few))[0].shape or ()
            gives = (with_shape(gives[0], seen),)
        ports.append(gives)
    return seam(ports[0], ports[1])


def _features(
    front: Part, onto: Part, raw: Tensor, rows: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """What both give, as rows: an image each, or a position of an image each.

    Batches are of like size: a front that normalises by the batch can do nothing with one image.
    """
    for some in rows.tensor_split(math.ceil(len(rows) / BATCH)):
        inputs = raw.index_select(0, some)
        yield _as_rows(outputs_of(front, inputs)), _as_rows(outputs_of(onto, inputs))


def _as_rows(output: Tensor) -> Tensor:
    return output.movedim(1, -1).reshape(-1, output.shape[1])
