"""Which images meet in a batch, where a batch's own statistics decide the outcome."""

from __future__ import annotations

import torch
from torch import Tensor

from dovetail.core.seeds import generator

__all__ = ["mixed_batches"]


def mixed_batches(rows: Tensor, batch_size: int, seed: int) -> list[Tensor]:
    """The rows ``[n]`` in a fixed random order, in batches.

    Data sets often lie on disk class by class, and the statistics of a batch of one class are
    not those of the data: an unshuffled order would measure that instead of the parts.  A last
    batch of less than half the size joins the one before it, because few values have a poor
    variance, and one value has none.

    >>> [len(batch) for batch in mixed_batches(torch.arange(9), 4, seed=0)]
    [4, 5]
    >>> [len(batch) for batch in mixed_batches(torch.arange(10), 4, seed=0)]
    [4, 4, 2]
    """
    order = rows[torch.randperm(len(rows), generator=generator(seed, "recombination"))]
    batches = list(torch.split(order, batch_size))
    if len(batches) > 1 and 2 * len(batches[-1]) < batch_size:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches
