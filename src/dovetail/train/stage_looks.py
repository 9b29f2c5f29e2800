r"""What a trained stage looks like: stable rank, and how far its features separate the classes.

On up to 1000 examples of the validation split, drawn by the seed, the same for every stage; feature
maps are averaged over positions.  Measured are the least-squares distance
:func:`~dovetail.measure.separation.least_squares_distance` and the share of examples whose ten
nearest neighbours are of their class, :func:`~dovetail.measure.neighbours.k_redundancy`.  Both
depend on how many examples there are; the record says how many.  A budget holds here too: where
there is no room, fewer examples are taken, or nothing is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import nn

from dovetail.core.seeds import generator
from dovetail.measure.features import pooled
from dovetail.measure.forward import outputs_of
from dovetail.measure.neighbours import k_redundancy
from dovetail.measure.separation import least_squares_distance
from dovetail.measure.weights import stable_rank
from dovetail.tasks.task import Task
from dovetail.train.stages import Stage

EXAMPLES = (1000, 500, 250)
"""How many are looked at, where there is room for them."""

NEIGHBOURS = 10


@dataclass(frozen=True)
class Looks:
    """What was measured; nothing where it could not be."""

    stable_rank: float | None = None
    distance: float | None = None
    redundancy: float | None = None
    examples: int = 0

    @property
    def facts(self) -> dict[str, Any]:
        """For a row of a record."""
        return dict(vars(self))


def examples_for(stages: Sequence[Stage], rooms: Sequence[int | None], task: Task) -> int:
    """How many examples all stages can be looked at with; none without classes to tell apart.

    Args:
        stages: As they are trained.
        rooms: Bytes that are free once each is trained; nothing where they do not matter.
        task: Whose validation split is looked at.
    """
    there = task.size("validation")
    if task.kind != "classes" or there <= NEIGHBOURS:
        return 0
    for wanted in EXAMPLES:
        examples = min(wanted, there)
        needs = [_bytes(examples, stage.shape[0], task.outputs) for stage in stages]
        if all(room is None or need <= room for need, room in zip(needs, rooms, strict=True)):
            return examples
        if examples == there:
            break
    return 0


def _bytes(examples: int, width: int, classes: int) -> int:
    """Of the features, six times in float64; distances; differences to the nearest."""
    near = (NEIGHBOURS + 6) * examples * width
    return 8 * (6 * examples * (width + classes) + near) + 12 * examples**2


def looked_at(
    stage: Stage, task: Task, seed: int, examples: int, at_once: int, room: int | None
) -> Looks:
    """Measure a stage that is trained."""
    rank = _mean_rank(stage.layers, room)
    if examples == 0:
        return Looks(rank)
    rows = task.indices("validation")
    rows = rows[torch.randperm(len(rows), generator=generator(seed, "looks"))[:examples]]
    network = nn.Sequential(stage.below.module, stage.layers)
    features = outputs_of(
        stage.below.changed(module=network),
        task.inputs,
        rows=rows,
        batch_size=at_once,
        each=lambda output: pooled(output, "average"),
    )
    labels = task.targets.index_select(0, rows)
    if not bool(features.isfinite().all()):
        return Looks(rank)
    distance = least_squares_distance(features, labels)
    redundancy = k_redundancy(features, labels, NEIGHBOURS, by="torch")
    return Looks(rank, distance, redundancy, examples)


def _mean_rank(layers: nn.Module, room: int | None) -> float | None:
    """Of the weight matrices, if there is room to multiply the largest with itself."""
    matrices = [p.detach() for p in layers.parameters() if p.ndim > 1]
    if not matrices:
        return None
    need = max(24 * p.numel() + 24 * min(len(p), math.prod(p.shape[1:])) ** 2 for p in matrices)
    if room is not None and need > room:
        return None
    return fmean(map(stable_rank, matrices))
