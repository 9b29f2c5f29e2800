"""Feature rows of a candidate at its points, from one pass, shared between processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError
from dovetail.dist.group import gathered, my_share, rank_and_size
from dovetail.measure.features import Pooling, features, features_along
from dovetail.parts.cutting import cut
from dovetail.parts.part import Part
from dovetail.ranking.candidates import Candidate, only
from dovetail.tasks.task import Task


def fronts_of(chosen: Candidate) -> dict[str | None, Part]:
    """The candidate's part up to each of its points; ``None`` is its very output."""
    part = chosen.part
    spaces = [port.space for port in part.contract.takes if port.space is not None]
    if spaces or len(part.contract.takes) != 1:
        taken = f"features in {spaces[0]!r}" if spaces else "several tensors"
        raise SettingsError(f"it takes {taken}, not a task's inputs; rank the front of its network")
    if chosen.at is None:
        return {None: part}
    return {at: cut(part, at=at)[0] for at in chosen.at}


def rows_at(
    part: Part,
    fronts: dict[str | None, Part],
    task: Task,
    *,
    pooling: Pooling,
    batch_size: int,
    cache: Any,
) -> dict[str | None, Tensor]:
    """Rows ``[n, d]`` of a task's training examples at each point, in the order of the network.

    Every process runs its share of them, and all get all rows.
    """
    mine, n = share_of(task), task.size("train")
    if len(fronts) > 1:
        points = [str(at) for at in fronts]
        along = features_along(part, points, mine, pooling=pooling, batch_size=batch_size)
        return {at: gathered(along[at].values, n) for at in points}
    (at, front), *_ = fronts.items()
    taken = features(front, mine, pooling=pooling, batch_size=batch_size, cache=cache)
    return {at: gathered(taken.values, n)}


def without_repeats(taken: dict[str | None, Tensor]) -> dict[str | None, Tensor]:
    """Without points that add nothing to the one before, such as pooling before an average.

    >>> list(without_repeats({"conv": torch.ones(2, 3), "pool": torch.ones(2, 3)}))
    ['conv']
    """
    first: dict[str | None, Tensor] = {}
    before: Tensor | None = None
    for at, rows in taken.items():
        if before is None or rows.shape != before.shape or not torch.equal(rows, before):
            first[at] = before = rows
    return first


def share_of(task: Task) -> Task:
    """The examples that this process runs; all of them, if it is the only one."""
    rows = task.indices("train")
    if len(rows) < rank_and_size()[1]:
        raise SettingsError("there are more processes than examples to rank on")
    return only(task, my_share(rows))
