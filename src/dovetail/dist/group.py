"""Several processes that each saw a share of the rows, as one.

Thin on ``torch.distributed``: start the processes with ``torchrun`` and call
``torch.distributed.init_process_group`` as always; without a group everything here is a no-op.
"""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

__all__ = ["Mergeable", "is_distributed", "merge_across", "rank_and_size"]


class Mergeable(Protocol):
    """What adds up and can be written down as tensors."""

    def state(self) -> dict[str, Tensor]:
        """All of it as tensors by name."""
        ...

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> Self:
        """What :meth:`state` gave."""
        ...

    def merge(self, other: Self) -> Self:
        """Add another."""
        ...


_M = TypeVar("_M", bound=Mergeable)


def is_distributed() -> bool:
    """Whether this process is one of a group.

    >>> is_distributed()
    False
    """
    return dist.is_available() and dist.is_initialized()


def rank_and_size() -> tuple[int, int]:
    """This process's place in the group, and how many there are.

    >>> rank_and_size()
    (0, 1)
    """
    return (dist.get_rank(), dist.get_world_size()) if is_distributed() else (0, 1)


def merge_across(stats: _M) -> _M:
    """The sum of what all processes hold, the same to the last bit in each of them.

    Every process must call it, also one that has seen nothing.  One after the other sends its
    tensors to all (as safetensors, never as pickled code), so that no process holds more than one
    state of others at a time.  What is given stays as it is.

    >>> class Count:
    ...     def __init__(self, n): self.n = n
    ...     def state(self): return {"n": torch.tensor(self.n)}
    ...     @classmethod
    ...     def from_state(cls, state): return cls(int(state["n"]))
    ...     def merge(self, other): return Count(self.n + other.n)
    >>> merge_across(Count(3)).n
    3
    """
    rank, size = rank_and_size()
    kind = type(stats)
    mine = save({name: value.contiguous() for name, value in stats.state().items()})
    merged: _M | None = None
    for source in range(size):
        data = mine if size == 1 else _sent(mine, source, is_source=source == rank)
        part = kind.from_state(load(data))
        merged = part if merged is None else merged.merge(part)
    assert merged is not None
    return merged


def _sent(mine: bytes, source: int, *, is_source: bool) -> bytes:
    """The bytes of one process, in all of them: their number first, then they themselves."""
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    length = torch.tensor([len(mine)], device=device)
    dist.broadcast(length, src=source)
    if is_source:
        data = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
    else:
        data = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(data, src=source)
    return bytes(data.cpu().numpy())
