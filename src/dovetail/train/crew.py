"""Partitions in processes of their own: who is who, what they agree upon, what one ends with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dovetail.core.errors import SettingsError, TrainingError, argument, first_line
from dovetail.dist.council import Council
from dovetail.dist.group import check_group, is_distributed, rank_and_size
from dovetail.dist.transport import Message, Sender, Transport
from dovetail.dist.wire import Packing
from dovetail.train.pipeline import Link, Partition
from dovetail.train.together import newest_of

_UP = 1


@dataclass(frozen=True)
class Place:
    """Which partition a process has, and as which of its replicas.

    >>> [(place.partition, place.replica) for place in (Place(rank, 2, 2) for rank in range(4))]
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """

    rank: int
    partitions: int
    replicas: int

    @property
    def partition(self) -> int:
        """From 0."""
        return self.rank // self.replicas

    @property
    def replica(self) -> int:
        """From 0."""
        return self.rank % self.replicas

    @property
    def names(self) -> list[str]:
        """What each process is called in errors."""
        alike = self.replicas > 1
        return [
            f"partition {rank // self.replicas + 1}"
            + (f", replica {rank % self.replicas + 1}" if alike else "")
            + f" (process {rank})"
            for rank in range(self.partitions * self.replicas)
        ]


def place_of(partitions: int, replicas: int, *, parallel: bool) -> Place:
    """This process's, or why there is none."""
    if not parallel:
        if replicas > 1:
            raise SettingsError(
                f"{argument('replicas', replicas)} are processes that share a partition's rows: "
                f"they need {argument('parallel', True)}"
            )
        if is_distributed() and rank_and_size()[1] > 1:
            raise SettingsError(
                f"there are {rank_and_size()[1]} processes, and each would train the whole "
                f"network; say {argument('parallel', True)}, or start one"
            )
        return Place(0, partitions, 1)
    check_group()
    rank, size = rank_and_size()
    wanted = partitions * replicas
    start = f"torchrun --nproc-per-node {wanted} ..."
    if not is_distributed():
        raise SettingsError(
            f"{argument('parallel', True)} needs {wanted} processes in a group: start them with "
            f"{start}, or leave it out and train all partitions in this process"
        )
    if size != wanted:
        each = f" of {replicas} replicas" if replicas > 1 else ""
        raise SettingsError(
            f"there are {size} processes for {partitions} partitions{each}; start {wanted} "
            f"({start}), or change {argument('partitions')} or {argument('replicas')} so that "
            "their product is the number of processes"
        )
    return Place(rank, partitions, replicas)


class Crew:
    """The company of a partition in a process of its own.

    Every process must make it.

    Args:
        place: Of this process.
        timeout: Seconds to wait for a sign of life of another.
    """

    def __init__(self, place: Place, timeout: float) -> None:
        self.place, self.rank = place, place.rank
        self.transport = Transport(place.names, timeout)
        self.council = Council(self.transport)
        self.partition: Partition | None = None
        self._alike: Any = None
        for number in range(place.partitions if place.replicas > 1 else 0):
            first = number * place.replicas
            group = dist.new_group(
                list(range(first, first + place.replicas)), timeout=timedelta(seconds=timeout)
            )
            if number == place.partition:
                self._alike = group

    def links(self, queue: int, packing: str | Packing) -> tuple[Link | None, Link | None]:
        """To the partition below and to the one above, as far as there are any."""
        rank, by = self.rank, self.place.replicas
        below = above = None
        if self.place.partition > 0:
            below = _From(self.transport, rank - by, queue)
        if self.place.partition < self.place.partitions - 1:
            above = _To(self.transport, rank + by, queue, packing)
        return below, above

    def called(self, network: nn.Module, device: torch.device) -> nn.Module:
        """What is called for ``network``: with replicas, what also shares its gradients."""
        if self._alike is None:
            return network
        ids = [device] if device.type == "cuda" else None
        return DistributedDataParallel(network, device_ids=ids, process_group=self._alike)

    # What the loop asks ---------------------------------------------------------------------------

    alone = False

    def stepped(self) -> None:
        """Give a sign of life."""
        self.council.beat()

    def closed(self, loss: float) -> dict[str, float]:
        """Tell the partition above; replicas go on from the mean loss and the first's buffers."""
        assert self.partition is not None
        told = self.partition.closed()
        if self._alike is None:
            return {"loss": loss, **told}
        device = self.partition.device if dist.get_backend(self._alike) == "nccl" else "cpu"
        mean = torch.tensor(loss, dtype=torch.float64, device=device)
        dist.all_reduce(mean, group=self._alike)
        for buffer in self.partition.network.buffers():
            dist.broadcast(buffer, self._first, group=self._alike)
        return {"loss": float(mean) / self.place.replicas, **told}

    def agreed(self, measures: dict[str, float]) -> dict[str, float]:
        """The first replica's: where a last bit differs, a schedule might go another way."""
        if self._alike is None:
            return measures
        names = sorted(measures)
        assert self.partition is not None
        device = self.partition.device if dist.get_backend(self._alike) == "nccl" else "cpu"
        values = torch.tensor([measures[n] for n in names], dtype=torch.float64, device=device)
        dist.broadcast(values, self._first, group=self._alike)
        return dict(zip(names, values.tolist(), strict=True))

    def either(self, *flags: bool) -> list[bool]:
        """Each flag, raised if any process raised it."""
        return [any(said) for said in zip(*self.council.told(flags), strict=True)]

    def newest(self, epochs: Sequence[int]) -> int | None:
        """The latest of these that every process has."""
        return newest_of(self.council.told(list(epochs)))

    def file(self, path: Path) -> Path:
        """The partition's own, and the replica's."""
        number = self.place.replica
        return path if number == 0 else path.with_suffix(f".replica{number + 1}{path.suffix}")

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Nothing beside the loop's."""
        return {}, {}

    def restore(self, facts: dict[str, Any], residuals: dict[str, Tensor]) -> None:
        """Nothing beside the loop's."""

    @property
    def _first(self) -> int:
        return self.place.partition * self.place.replicas

    # What comes of it -----------------------------------------------------------------------------

    def gathered(self, own: Mapping[str, Tensor], facts: Any) -> list[Message]:
        """In process 0 each partition's weights and facts; in the others nothing."""
        tensors = dict(own) if self.place.replica == 0 else {}
        mine = Message("trained", tensors, facts)
        return self.council.gather(mine)[:: self.place.replicas]


class _To:
    """The link to the partition above."""

    def __init__(self, transport: Transport, peer: int, queue: int, packing: str | Packing) -> None:
        self.put = Sender(transport, peer, _UP, queue, packing).put

    def get(self) -> Message:
        """Nothing comes down."""
        raise NotImplementedError


class _From:
    """The link from the partition below."""

    def __init__(self, transport: Transport, peer: int, queue: int) -> None:
        self.get = transport.receiver(peer, _UP, queue).get

    def put(self, message: Message) -> None:
        """Nothing goes down."""
        raise NotImplementedError


@contextmanager
def crew_of(place: Place, timeout: float, *, parallel: bool) -> Iterator[Crew | None]:
    """The company of this process, taken down at the end; none where all are in one process."""
    if not parallel:
        yield None
        return
    crew = Crew(place, timeout)
    try:
        yield crew
    except TrainingError as error:
        crew.transport.broken = True
        cause = error.__cause__
        if place.replicas > 1 and isinstance(cause, RuntimeError) and "gloo" in str(cause):
            raise TrainingError(
                f"another replica of partition {place.partition + 1} cannot be reached "
                f"({first_line(cause)}); the same call goes on from the last checkpoint, if one "
                "was kept"
            ) from None
        raise
    except BaseException:
        crew.transport.broken = True
        raise
    finally:
        crew.transport.close()
