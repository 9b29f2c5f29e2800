"""Batches of the rows that a filter chooses before each epoch, and what choosing them took.

The rows are looked at as they are, without augmentation, by the network as it is when the epoch
begins, in evaluation mode.  A row that was dropped is looked at again before the next epoch, and
comes back when it says something again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dovetail.core.seeds import generator
from dovetail.parts.modules import evaluating
from dovetail.tasks.arrays import as_float
from dovetail.tasks.splits import SPLITS
from dovetail.tasks.task import Task
from dovetail.train.filtering import Filter, losses_of
from dovetail.train.supervision import Batches, Loss, Prepared

if TYPE_CHECKING:
    from dovetail.train.loop import EpochSource


@dataclass(frozen=True)
class Sight:
    """How rows are looked at.

    Attributes:
        network: What is trained: from what enters to outputs.
        loss: Of outputs and targets.
        front: What makes features of what enters; nothing if they are what enters.
        flat: Whether what enters are raw inputs, which are never averaged over positions.
    """

    network: nn.Module
    loss: Loss
    front: nn.Module | None = None
    flat: bool = False

    def of(self, x: Tensor, targets: Tensor, filter: Filter) -> Tensor:
        """What a filter asks about a few rows that enter: features, or losses."""
        if filter.compares:
            features = x if self.front is None else self.front(x)
            return features.flatten(1) if self.flat else features
        return losses_of(self.loss, self.network(x), targets)


def kept_inputs(filter: Filter, task: Task, seed: int, least: int) -> Task:
    """The task with those rows of its training split that a filter on inputs keeps.

    Images are compared pixel by pixel; the columns of tables are first brought to one scale.

    >>> lines = Task([[0.0], [1.0], [2.0], [3.0]] * 6, [0, 0, 1, 1] * 6)
    >>> kept_inputs(Filter.parse("inputs:1"), lines, 0, least=4).size("train") < lines.size("train")
    True
    """
    rows = task.indices("train")
    order = torch.randperm(len(rows), generator=generator(seed, "filter"))
    pools = order.tensor_split(math.ceil(len(rows) / filter.pool))
    keep = torch.ones(len(rows), dtype=torch.bool)
    scale = None
    if len(task.input_shape) == 1:
        columns = as_float(task.inputs.index_select(0, rows)).double()
        std = columns.std(0, correction=0)
        scale = torch.where(std > 1e-12, std, torch.inf)
    for pool in pools:
        inputs = as_float(task.inputs.index_select(0, rows[pool]))
        inputs = inputs if scale is None else inputs.double() / scale
        targets = task.targets.index_select(0, rows[pool])
        keep[pool] = filter.keep(inputs, targets, least=math.ceil(least / len(pools)))
    splits = {split: task.indices(split) for split in SPLITS}
    return task.derived(task.name, indices={**splits, "train": rows[keep]})


class Sifted:
    """Batches of those rows that a filter keeps, chosen anew before each epoch.

    Args:
        batches: Of all rows.
        filter: Which to keep.
        targets: Of all rows, ``[n, ...]``.
        size: Examples a batch: at least so many rows are kept.
        sight: How rows are looked at.
        device: Where the network is.
        source: The batches, where something else is done with them on the way.

    >>> from dovetail.train.supervision import Batches
    >>> x, y = torch.arange(8.0)[:, None], torch.arange(8) // 4
    >>> sight = Sight(nn.Linear(1, 2), nn.functional.cross_entropy)
    >>> sifted = Sifted(Batches(x, y, 2), Filter.parse("features:1,cap:1,after:1"), y, 2, sight)
    >>> for number in (0, 1):
    ...     sifted.choose(number)
    ...     sorted(y for x, _ in sifted.epoch(number) for y in x[:, 0].tolist())
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    [3.0, 4.0]
    """

    def __init__(
        self,
        batches: Batches | Prepared,
        filter: Filter,
        targets: Tensor,
        size: int,
        sight: Sight,
        *,
        device: torch.device | None = None,
        source: EpochSource | None = None,
    ) -> None:
        self._batches, self._source = batches, source or batches
        self._raw = batches.raw if isinstance(batches, Prepared) else batches
        self._filter, self._targets, self._size, self._sight = filter, targets, size, sight
        self._device, self.seconds = device or torch.device("cpu"), 0.0

    def __len__(self) -> int:
        """Batches of an epoch of all rows."""
        return len(self._source)

    @property
    def steps(self) -> int:
        """Batches of the epoch that was chosen for."""
        return self._raw.steps

    @property
    def mask(self) -> Tensor:
        """Which rows were chosen, bool ``[n]``."""
        chosen = self._raw.chosen
        return torch.ones(self._raw.count, dtype=torch.bool) if chosen is None else chosen

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of the chosen rows, from batch ``start`` on."""
        return self._source.epoch(number, start)

    def choose(self, number: int) -> None:
        """Look at all rows, and choose those of an epoch."""
        self._raw.chosen, sight = None, self._sight
        if not self._filter.active(number):
            return
        began = time.perf_counter()
        keep = torch.ones(self._raw.count, dtype=torch.bool)
        pools = self._raw.order(number).tensor_split(math.ceil(len(keep) / self._filter.pool))
        with evaluating(sight.network), evaluating(sight.front or sight.network):
            for pool in pools:
                seen = torch.cat(
                    [self._look(sight, some) for some in torch.split(pool, self._size)]
                )
                keep[pool] = self._filter.keep(
                    seen, self._targets[pool], seen, least=math.ceil(self._size / len(pools))
                )
        self._raw.chosen = keep
        self.seconds += time.perf_counter() - began

    def _look(self, sight: Sight, places: Tensor) -> Tensor:
        x = self._batches.take(places).to(self._device)
        return sight.of(x, self._targets[places].to(self._device), self._filter).cpu()

    def told(self) -> dict[str, float]:
        """For the row of an epoch: how many samples it has seen, and what choosing them took."""
        seconds, self.seconds = self.seconds, 0.0
        return {"samples": int(self.mask.sum()), "filter seconds": seconds}

    def restore(self, mask: Tensor) -> None:
        """Go on with the rows that were chosen before an interruption."""
        if mask.shape != (self._raw.count,) or mask.dtype != torch.bool or not mask.any():
            raise ValueError(f"chosen rows of {list(mask.shape)}")
        self._raw.chosen = mask
