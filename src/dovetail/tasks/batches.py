"""Batches for training, the same whether or not a run was interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Generator, Tensor

from dovetail.core.errors import SettingsError
from dovetail.core.seeds import generator
from dovetail.core.settings import need_least
from dovetail.tasks.arrays import as_float

__all__ = ["Batches"]


class Batches:
    """Batches of inputs and targets whose order depends on seed, epoch and batch number only.

    One ``index_select`` a batch; uint8 inputs become floats batch by batch, so the data set stays
    a quarter of the size in memory.

    Args:
        inputs: ``[n, ...]``, as a task stores them.
        targets: ``[n, ...]``.
        batch_size: Examples a batch; the last batch of an epoch may be smaller.
        seed: For order and augmentation.
        augment: Called as ``augment(inputs, generator)`` on each batch of floats.
        rows: Use these rows only, such as ``task.indices("train")``, without copying them first.

    >>> batches = Batches(torch.arange(6.0)[:, None], torch.arange(6), 4, seed=1)
    >>> whole = [targets.tolist() for _, targets in batches.epoch(0)]
    >>> sorted(sum(whole, []))
    [0, 1, 2, 3, 4, 5]
    >>> [targets.tolist() for _, targets in batches.epoch(0, start=1)] == whole[1:]
    True
    """

    def __init__(
        self,
        inputs: Tensor,
        targets: Tensor,
        batch_size: int,
        *,
        seed: int = 0,
        augment: Callable[[Tensor, Generator], Tensor] | None = None,
        rows: Tensor | None = None,
    ) -> None:
        need_least("batch_size", batch_size, 1)
        if len(inputs) != len(targets):
            raise SettingsError(f"{len(inputs)} inputs but {len(targets)} targets")
        self._inputs, self._targets, self._rows = inputs, targets, rows
        self._seed, self._augment, self._size = seed, augment, batch_size
        self._count = len(inputs) if rows is None else len(rows)
        if self._count == 0:
            raise SettingsError("there is nothing to make batches of")

    def __len__(self) -> int:
        """The number of batches an epoch."""
        full, rest = divmod(self._count, self._size)
        # Batch norm cannot train on one example: it has no variance, and torch raises.  Leaving a
        # random example out of an epoch costs nothing.
        alone = rest == 1 and full > 0
        return full + (rest > 0 and not alone)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of an epoch, from batch ``start`` on.

        >>> batches = Batches(torch.zeros(6, 2), torch.zeros(6), 4)
        >>> [len(inputs) for inputs, _ in batches.epoch(0)]
        [4, 2]
        """
        order = torch.randperm(self._count, generator=generator(self._seed, "order", number))
        order = order if self._rows is None else self._rows[order]
        for batch in range(start, len(self)):
            index = order[batch * self._size : (batch + 1) * self._size]
            # a copy even where a slice would do: a network may begin with an in-place operation
            inputs = as_float(self._inputs.index_select(0, index))
            if self._augment is not None:
                inputs = self._augment(inputs, generator(self._seed, "augment", number, batch))
            yield inputs, self._targets.index_select(0, index)
