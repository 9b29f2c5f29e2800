"""What all processes must know of each other before they go on, through process 0.

Whoever waits does so as long as signs of life come, and no longer than the transport's timeout
without one: an epoch may take hours, a process that has died is noticed at once.
"""

from __future__ import annotations

import time
from typing import Any

from dovetail.dist.group import rank_and_size
from dovetail.dist.transport import Message, Sender, Transport

_TAG, _BEAT, _MANY = 7, "alive", 1 << 30


class Council:
    """Rounds in which every process says something.

    Args:
        transport: What messages go through.
    """

    def __init__(self, transport: Transport) -> None:
        self.rank, self.size = rank_and_size()
        others = range(1, self.size) if self.rank == 0 else (0,)
        self._to = {peer: Sender(transport, peer, _TAG, _MANY) for peer in others}
        self._from = {peer: transport.receiver(peer, _TAG) for peer in others}
        self._often, self._last = transport.timeout / 4, time.monotonic()

    def beat(self) -> None:
        """Give a sign of life, now and then."""
        if time.monotonic() - self._last < self._often:
            return
        self._last = time.monotonic()
        for sender in self._to.values():
            sender.put(Message(_BEAT))

    def told(self, mine: Any) -> list[Any]:
        """What every process says, in their order."""
        said = [message.facts for message in self.gather(mine)]
        every: list[Any] = self.share(Message("said", facts=said)).facts
        return every

    def gather(self, mine: Any) -> list[Message]:
        """What every process says, in process 0; facts, or a message."""
        message = mine if isinstance(mine, Message) else Message("says", facts=mine)
        if self.rank > 0:
            self._to[0].put(message)
            return []
        return [message, *(self._next(peer) for peer in range(1, self.size))]

    def share(self, message: Message) -> Message:
        """The message of process 0, in all of them."""
        if self.rank > 0:
            found = self._next(0)
            self._to[0].answered()
            return found
        for sender in self._to.values():
            sender.put(message)
        for sender in self._to.values():
            sender.flush()
        return message

    def _next(self, peer: int) -> Message:
        while (message := self._from[peer].get()).kind == _BEAT:
            self.beat()  # those who wait for us wait for this one
        return message
