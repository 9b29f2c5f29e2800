"""One batch of each network in turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

from dovetail.train.loop import EpochSource

__all__ = ["Alternating"]


class Alternating:
    """Batches of several sources by turns, ``(place, batch)``; a short source starts over.

    An epoch is over when the longest source has been seen once.  A source that is shorter goes
    through its own epochs meanwhile, and continues in the next where it stopped.

    >>> class Letters:
    ...     def __init__(self, letters):
    ...         self.letters = letters
    ...     def __len__(self):
    ...         return len(self.letters)
    ...     def epoch(self, number, start=0):
    ...         yield from (f"{letter}{number}" for letter in self.letters[start:])
    >>> source = Alternating([Letters("abc"), Letters("xy")])
    >>> [batch for _, batch in source.epoch(0)]
    ['a0', 'x0', 'b0', 'y0', 'c0', 'x1']
    >>> [batch for _, batch in source.epoch(1, start=1)]
    ['y1', 'b1', 'x2', 'c1', 'y2']
    """

    def __init__(self, sources: Sequence[EpochSource]) -> None:
        self._sources = tuple(sources)
        self._rounds = max(len(source) for source in self._sources)

    def __len__(self) -> int:
        return self._rounds * len(self._sources)

    def epoch(self, number: int, start: int = 0) -> Iterator[tuple[int, Any]]:
        """The turns of an epoch, from turn ``start`` on."""
        turns = len(self._sources)
        first = number * self._rounds
        streams = [
            # Sources whose turn in the first round is over begin with the next one.
            _endless(source, first + start // turns + (place < start % turns))
            for place, source in enumerate(self._sources)
        ]
        for turn in range(start, len(self)):
            place = turn % turns
            yield place, next(streams[place])


def _endless(source: EpochSource, start: int) -> Iterator[Any]:
    """The batches of all epochs one after the other, from batch ``start`` on."""
    epoch, batch = divmod(start, len(source))
    yield from source.epoch(epoch, batch)
    for number in count(epoch + 1):
        yield from islice(source.epoch(number), len(source))
