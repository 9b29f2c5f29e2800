"""Messages between two processes, in their order, on ``torch.distributed``'s sends and receives.

A sender has a bounded number of messages under way, a receiver fetches a bounded number ahead of
its turn.  Waiting for a process that is gone, or that gives no sign of life, ends with an error.
All messages of a :class:`Transport` go through one group of the gloo backend, from main memory.
"""

from __future__ import annotations

import json
import queue as queues
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dovetail.core.errors import TrainingError
from dovetail.dist.wire import HALVES, Packing, decoded, encoded, halved, size_of

PIECE = 4 << 20
"""Bytes that are sent at a time: on a slow link a piece, not a message, must arrive in time."""

_HEAD = 512
_FACTS = 1 << 24  # bytes of facts that anybody believes
_TENSORS = 1 << 40

DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
    )
}


@dataclass(frozen=True, eq=False)
class Message:
    """A word, facts that JSON can write, and tensors by name.

    >>> Message("batch", {"z": torch.zeros(2, 3)}).size
    24
    """

    kind: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Any = None

    @property
    def size(self) -> int:
        """Bytes of the tensors."""
        return size_of(self.tensors)


def written(message: Message, packing: str | Packing = None) -> tuple[dict[str, Any], list[Tensor]]:
    """A message as facts that describe it and as bytes ``uint8 [n]``, one after the other.

    >>> head, (data,) = written(Message("batch", {"z": torch.zeros(2, 3)}), "float16")
    >>> head["tensors"], len(data)
    ([['z', 'float16', [2, 3], 'float32']], 12)
    """
    tensors = {name: _plain(each) for name, each in message.tensors.items()}
    own = {name: str(each.dtype).removeprefix("torch.") for name, each in tensors.items()}
    head: dict[str, Any] = {"kind": message.kind, "facts": message.facts}
    if packing is not None and not isinstance(packing, str):
        data = encoded(tensors, packing)
        head |= {"packed": len(data), "size": message.size}
        return head, [torch.frombuffer(bytearray(data), dtype=torch.uint8)]
    if packing == HALVES:
        tensors = {name: halved(each) for name, each in tensors.items()}
    head["tensors"] = [
        [name, str(each.dtype).removeprefix("torch."), list(each.shape), own[name]]
        for name, each in tensors.items()
    ]
    return head, [each.reshape(-1).view(torch.uint8) for each in tensors.values() if each.numel()]


def lengths(head: Mapping[str, Any]) -> Iterator[int]:
    """How many bytes follow what describes them."""
    if "packed" in head:
        yield int(head["packed"])
        return
    for _, dtype, shape, _ in head["tensors"]:
        length = DTYPES[dtype].itemsize
        for axis in shape:
            length *= int(axis)
        if length:
            yield length


def read(head: Mapping[str, Any], data: list[Tensor]) -> Message:
    """What :func:`written` was given, as far as the packing keeps it.

    >>> read(*written(Message("batch", {"z": torch.ones(2)}))).tensors["z"]
    tensor([1., 1.])
    """
    kind, facts = str(head["kind"]), head["facts"]
    if "packed" in head:
        tensors = decoded(bytes(data[0].numpy()), {}, int(head["size"]))
        return Message(kind, tensors, facts)
    found, rest = {}, iter(data)
    for name, dtype, shape, own in head["tensors"]:
        empty = 0 in shape
        raw = torch.empty(0, dtype=torch.uint8) if empty else next(rest)
        found[str(name)] = raw.view(DTYPES[dtype]).reshape(shape).to(DTYPES[own])
    return Message(kind, found, facts)


def _plain(tensor: Tensor) -> Tensor:
    """In main memory, one number after the other."""
    return tensor.detach().cpu().contiguous()


class Transport:
    """The group that messages go through, and what is to be said when one does not arrive.

    Every process must make it.

    Args:
        names: What each process is called in errors.
        timeout: Seconds to wait for a sign of life.
    """

    def __init__(self, names: list[str], timeout: float) -> None:
        self.names, self.timeout = names, timeout
        self.group = dist.new_group(backend="gloo", timeout=timedelta(seconds=timeout))
        self._threads: list[Receiver] = []
        self.sent = 0
        self.waited = 0.0
        self.broken = False

    def receiver(self, peer: int, tag: int, ahead: int = 0) -> Receiver:
        """Of the messages of a process, ``ahead`` of them fetched before their turn."""
        made = Receiver(self, peer, tag, ahead)
        self._threads.append(made)
        return made

    def lost(self, peer: int, why: BaseException) -> TrainingError:
        """The error of a process that cannot be reached."""
        self.broken = True
        stalled = "timed out" in str(why).lower() or "timeout" in str(why).lower()
        what = (
            f"gave no sign for {self.timeout:g} s; it has stalled, or a step takes longer (then "
            "allow for it with a longer timeout)"
            if stalled
            else "cannot be reached any more: it was stopped, or has failed and says itself why"
        )
        return TrainingError(
            f"{self.names[peer]} {what}; the same call goes on from the last checkpoint, if one "
            "was kept"
        )

    def close(self) -> None:
        """Take it down; after an error so that those who wait for this process hear of it."""
        for each in self._threads:
            each.closing.set()
        if self.broken:
            _break(self.group)
        for each in self._threads:
            each.join()
        if not self.broken:
            dist.barrier()  # what one has sent and another not yet read would be lost
            dist.destroy_process_group(self.group)


def _break(group: dist.ProcessGroup) -> None:
    """Close all connections of a group: what waits for nobody in no time does that."""
    nothing = torch.zeros(1, dtype=torch.uint8)
    try:
        others = [rank for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
        work = dist.irecv(nothing, others[0], group=group, tag=_BROKEN)
        if work is not None:
            work.wait(timedelta(milliseconds=1))
    except RuntimeError:
        pass


_BROKEN = 99


class Sender:
    """Sends messages to one process; at most ``queue`` are under way, then it waits.

    >>> Sender.__init__.__defaults__
    (2, None)
    """

    def __init__(
        self,
        transport: Transport,
        peer: int,
        tag: int,
        queue: int = 2,
        packing: str | Packing = None,
    ) -> None:
        self._transport, self._peer, self._tag = transport, peer, tag
        self._queue, self.packing = queue, packing
        self._under_way: deque[list[tuple[Any, Tensor]]] = deque()

    def put(self, message: Message) -> None:
        """Send, soon; numbers may not be changed any more.  Batches alone are packed."""
        head, data = written(message, self.packing if message.kind == "batch" else None)
        while len(self._under_way) >= self._queue:
            self._finish()
        words = json.dumps(head).encode()
        first = torch.zeros(_HEAD, dtype=torch.uint8)
        opening = len(words).to_bytes(4, "little") + words[: _HEAD - 4]
        first[: len(opening)] = torch.frombuffer(bytearray(opening), dtype=torch.uint8)
        pieces = [first]
        if rest := words[_HEAD - 4 :]:
            pieces.append(torch.frombuffer(bytearray(rest), dtype=torch.uint8))
        for each in data:
            pieces += torch.split(each, PIECE)
        works = []
        for piece in pieces:
            try:
                work = dist.isend(piece, self._peer, group=self._transport.group, tag=self._tag)
            except RuntimeError as error:
                raise self._transport.lost(self._peer, error) from None
            works.append((work, piece))  # the bytes must live until they are sent
            self._transport.sent += len(piece)
        self._under_way.append(works)

    def flush(self) -> None:
        """Wait until all is sent."""
        while self._under_way:
            self._finish()

    def answered(self) -> None:
        """All has arrived, as an answer says."""
        self._under_way.clear()

    def _finish(self) -> None:
        began = time.perf_counter()
        works = self._under_way.popleft()
        try:
            for work, _ in works:
                work.wait()
        except RuntimeError as error:
            raise self._transport.lost(self._peer, error) from None
        finally:
            self._transport.waited += time.perf_counter() - began


class Receiver:
    """Receives the messages of one process; batches are fetched ahead by a thread of its own.

    Only batches follow each other without a pause: after any other message the next is fetched when
    it is asked for, since it may be long in coming.
    """

    def __init__(self, transport: Transport, peer: int, tag: int, ahead: int) -> None:
        self._transport, self._peer, self._tag = transport, peer, tag
        self.closing = threading.Event()
        self._turn, self._asked = threading.Condition(), 0
        self._fetched: queues.Queue[Message | BaseException] = queues.Queue(max(1, ahead))
        self._ahead = ahead
        self._thread: threading.Thread | None = None

    def get(self) -> Message:
        """The next message."""
        began = time.perf_counter()
        try:
            if self._ahead == 0:
                try:
                    return self._receive()
                except RuntimeError as error:
                    raise self._transport.lost(self._peer, error) from None
            if self._thread is None:
                self._thread = threading.Thread(target=self._fetch, daemon=True)
                self._thread.start()
            with self._turn:
                self._asked += 1
                self._turn.notify()
            found = self._fetched.get()
            if isinstance(found, BaseException):
                raise self._transport.lost(self._peer, found)
            return found
        finally:
            self._transport.waited += time.perf_counter() - began

    def _fetch(self) -> None:
        """In the thread: batches as they come, all else when it is asked for."""
        last = ""
        for number in count():
            with self._turn:
                while last != "batch" and self._asked <= number and not self.closing.is_set():
                    self._turn.wait(0.2)
            if self.closing.is_set():
                return
            try:
                found: Message | BaseException = self._receive()
            except Exception as error:  # told where it is waited for
                found = error
            while not self.closing.is_set():
                try:
                    self._fetched.put(found, timeout=0.2)
                    break
                except queues.Full:
                    continue
            if not isinstance(found, Message) or self.closing.is_set():
                return
            last = found.kind

    def _receive(self) -> Message:
        first = self._bytes(_HEAD)
        length = int.from_bytes(bytes(first[:4].numpy()), "little")
        if length > _FACTS:
            raise RuntimeError("a message that is none")
        words = bytes(first[4 : 4 + length].numpy())
        if length > _HEAD - 4:
            words += bytes(self._bytes(length - (_HEAD - 4)).numpy())
        head = json.loads(words)
        data = []
        for size in lengths(head):
            if size > _TENSORS:
                raise RuntimeError("a message that is none")
            whole = torch.empty(size, dtype=torch.uint8)
            for piece in torch.split(whole, PIECE):
                self._into(piece)
            data.append(whole)
        return read(head, data)

    def _bytes(self, size: int) -> Tensor:
        made = torch.empty(size, dtype=torch.uint8)
        self._into(made)
        return made

    def _into(self, piece: Tensor) -> None:
        work = dist.irecv(piece, self._peer, group=self._transport.group, tag=self._tag)
        if work is not None:
            work.wait()

    def join(self) -> None:
        """Wait for the thread to end, not for ever."""
        if self._thread is not None:
            self._thread.join(5.0)
