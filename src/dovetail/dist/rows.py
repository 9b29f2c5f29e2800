"""Rows dealt to the processes of a group, and brought together again."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from dovetail.dist.group import rank_and_size

__all__ = ["gathered", "my_share"]


def my_share(rows: Tensor) -> Tensor:
    """Every so-manieth of the rows, beginning at this process's place in the group.

    >>> my_share(torch.arange(3))
    tensor([0, 1, 2])
    """
    rank, size = rank_and_size()
    return rows[rank::size]


def gathered(mine: Tensor, count: int) -> Tensor:
    """All ``count`` rows in their order, in every process, from the share that each has.

    Args:
        mine: What this process made of :func:`my_share` ``[about count / size, ...]``.
        count: How many rows there are in all.

    >>> gathered(torch.arange(3), 3)
    tensor([0, 1, 2])
    """
    _, size = rank_and_size()
    if size == 1:
        return mine
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    most = -(-count // size)
    padded = torch.zeros(most, *mine.shape[1:], dtype=mine.dtype, device=device)
    padded[: len(mine)] = mine.to(device)
    parts = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(parts, padded)
    return torch.stack(parts, dim=1).flatten(0, 1)[:count].to(mine.device)
