"""Several processes that each saw a share of the rows, as one.

Thin on ``torch.distributed``: start the processes with ``torchrun`` and call
``torch.distributed.init_process_group`` as always; without a group everything here is a no-op.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Protocol, Self, TypeVar

import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from dovetail.core.errors import SettingsError

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

_groups = count()


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


@contextmanager
def under_torchrun() -> Iterator[None]:
    """A process group for the time of a block, if ``torchrun`` started several processes.

    Without ``torchrun``, or inside a group that is there already, nothing happens.

    >>> with under_torchrun():
    ...     rank_and_size()
    (0, 1)
    """
    if is_distributed() or _started() == 1:
        yield
        return
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    store, rank, size = next(rendezvous("env://"))
    # A name of its own: under that of a group taken down before, processes would find where its
    # members were, and wait for them for ever.
    store = PrefixStore(f"dovetail {next(_groups)}", store)
    dist.init_process_group("nccl" if on_gpu else "gloo", store=store, rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


def check_group() -> None:
    """Refuse to go on alone in one of several processes that nobody made a group of.

    >>> check_group()
    """
    if not is_distributed() and (started := _started()) > 1:
        raise SettingsError(
            f"torchrun started {started} processes, but each would work alone: call "
            "torch.distributed.init_process_group() first"
        )


def _started() -> int:
    """How many processes ``torchrun`` started; one without it."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


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
    kind = type(stats)
    mine = save({name: value.contiguous() for name, value in stats.state().items()})
    merged: _M | None = None
    for data in from_each(mine):
        part = kind.from_state(load(data))
        merged = part if merged is None else merged.merge(part)
    assert merged is not None
    return merged


def from_each(mine: bytes) -> Iterator[bytes]:
    """What every process gives, one after the other in their order, the same in all of them.

    Every process must call it and go through all of it.

    >>> list(from_each(b"alone"))
    [b'alone']
    """
    rank, size = rank_and_size()
    for source in range(size):
        yield mine if size == 1 else _sent(mine, source, is_source=source == rank)


def told_by_each(mine: Any) -> list[Any]:
    """A value of every process that JSON can write, in their order.

    >>> told_by_each({"loss": 0.5})
    [{'loss': 0.5}]
    """
    return [json.loads(data) for data in from_each(json.dumps(mine).encode())]


def _sent(mine: bytes, source: int, *, is_source: bool) -> bytes:
    """The bytes of one process, in all of them: their number first, then they themselves."""
    device = _device()
    length = torch.tensor([len(mine)], device=device)
    dist.broadcast(length, src=source)
    if int(length) == 0:
        return b""
    if is_source:
        data = torch.frombuffer(bytearray(mine), dtype=torch.uint8).to(device)
    else:
        data = torch.empty(int(length), dtype=torch.uint8, device=device)
    dist.broadcast(data, src=source)
    return bytes(data.cpu().numpy())


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
    device = _device()
    most = -(-count // size)
    padded = torch.zeros(most, *mine.shape[1:], dtype=mine.dtype, device=device)
    padded[: len(mine)] = mine.to(device)
    parts = [torch.empty_like(padded) for _ in range(size)]
    dist.all_gather(parts, padded)
    return torch.stack(parts, dim=1).flatten(0, 1)[:count].to(mine.device)


def _device() -> torch.device:
    """Where tensors must be for the group's backend to send them."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
