r"""Which segments of a chain to run again: the cheapest choice whose peak stays within a budget.

Of each link :math:`i` is known which storages :math:`M_i` it saves for the backward pass, what its
forward and its backward take beside, :math:`f_i` and :math:`b_i`, and the gradients :math:`G_i` of
the parameters behind it.  Where the links before keep :math:`K` bytes, a segment from :math:`a` to
:math:`z` that is run again holds, beside them and its input :math:`x_a`, in turn

- :math:`|x_i| + f_i` when it is run first,
- :math:`|M_a \cup \dots \cup M_{i-1} \cup \{x_i\}| + f_i + |x_{z+1}| + G_z` when it is run again,
- :math:`|M_a \cup \dots \cup M_i| + b_i + G_i` on the way back,

and :math:`|x_a|` is all that it adds to :math:`K`; a link that is run once holds and adds
:math:`|M_i|`.  So a choice is a path along the chain, its cost the seconds of the links that run
twice; and of two paths to the same place, one that keeps more and costs more can be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dovetail.train.checkpointing import Span

MOST_PATHS = 400
"""To one place that are remembered; where there are more, the choice may not be the cheapest."""


@dataclass(frozen=True)
class Block:
    """One link of a chain, as a step of plain backpropagation has shown it.

    Attributes:
        name: In the network.
        saved: Bytes of each storage that it saves for the backward pass, but for parameters.
        takes, gives: The storages of its input and its output, by number.
        taken, given: Their bytes; none of what is held in any case, as the batch is.
        forward: Bytes that its forward takes beside its input and what the links before saved.
        backward: Bytes that its backward takes beside what is saved and the gradients behind it.
        gradients: Bytes of the gradients of its own parameters.
        seconds: Of its forward.
    """

    name: str
    saved: dict[int, int]
    takes: int
    gives: int
    taken: int = 0
    given: int = 0
    forward: int = 0
    backward: int = 0
    gradients: int = 0
    seconds: float = 1.0

    @property
    def overwrites(self) -> bool:
        """Whether its output is its input, changed or seen anew: no segment can begin with it."""
        return self.takes == self.gives


@dataclass(frozen=True)
class _Path:
    """A choice for the first links: what it costs, what it keeps, also of what comes next."""

    seconds: float
    kept: int
    keeps_input: bool
    spans: tuple[Span, ...] = ()


def cheapest(blocks: Sequence[Block], room: float) -> tuple[Span, ...] | None:
    """The segments to run again that cost least and stay within ``room`` bytes, if any do.

    >>> blocks = [Block(n, {i + 1: 8}, i, i + 1, 8 * (i > 0), 8, 8) for i, n in enumerate("abcd")]
    >>> cheapest(blocks, 32), cheapest(blocks, 31), cheapest(blocks, 8)
    ((), ((0, 1),), None)
    """
    behind = [sum(block.gradients for block in blocks[i + 1 :]) for i in range(len(blocks))]
    to: list[list[_Path]] = [[_Path(0.0, 0, True)], *([] for _ in blocks)]
    for here, block in enumerate(blocks):
        again = [] if block.overwrites else list(_spans_from(blocks, behind, here))
        for path in _worth(to[here]):
            fresh = 0 if path.keeps_input else block.taken
            adds = sum(block.saved.values())
            if path.keeps_input:
                adds -= block.saved.get(block.takes, 0)
            needs = max(fresh + block.forward, adds + block.backward + behind[here])
            if path.kept + needs <= room:
                keeps = block.gives in block.saved or (block.overwrites and path.keeps_input)
                to[here + 1].append(_Path(path.seconds, path.kept + adds, keeps, path.spans))
            for stop, needs, seconds in again:
                if path.kept + fresh + needs <= room:
                    spans = (*path.spans, (here, stop))
                    longer = _Path(path.seconds + seconds, path.kept + fresh, False, spans)
                    to[stop].append(longer)
    finished = _worth(to[-1])
    return min(finished, key=lambda path: path.seconds).spans if finished else None


def _spans_from(
    blocks: Sequence[Block], behind: Sequence[int], start: int
) -> Iterator[tuple[int, int, float]]:
    """Every segment from a link on: where it ends, what it needs beside its input, its seconds."""
    own, saved = blocks[start].takes, dict[int, int]()
    first = running = back = 0  # run first; run again, but for what depends on the end; way back
    seconds = 0.0
    for i, block in enumerate(blocks[start:], start):
        fed = 0 if block.takes == own else block.taken
        first = max(first, fed + block.forward)
        there = sum(saved.values()) + (0 if block.takes in saved else fed)
        running = max(running, there + block.forward)
        saved |= {number: size for number, size in block.saved.items() if number != own}
        back = max(back, sum(saved.values()) + block.backward + behind[i])
        seconds += block.seconds
        yield i + 1, max(first, running + block.given + behind[i], back), seconds


def _worth(paths: Sequence[_Path]) -> list[_Path]:
    """Those to go on with: none that costs and keeps at least as much as another."""
    worth: list[_Path] = []
    for keeps in (True, False):
        best = float("inf")
        front = []
        alike = (path for path in paths if path.keeps_input == keeps)
        for path in sorted(alike, key=lambda path: (path.kept, path.seconds)):
            if path.seconds < best:
                best = path.seconds
                front.append(path)
        worth += front[:: len(front) // MOST_PATHS + 1]
    return worth


def lowest(blocks: Sequence[Block]) -> int:
    """About the least room that any choice of segments can do with, to a thousandth.

    >>> blocks = [Block(n, {i + 1: 8}, i, i + 1, 8 * (i > 0), 8, 8) for i, n in enumerate("abcd")]
    >>> lowest(blocks)
    24
    """
    every = sum(b.gradients + b.taken + b.given + sum(b.saved.values()) for b in blocks)
    low, high = 0, 2 * every + max(b.forward + b.backward for b in blocks)
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        low, high = (middle, high) if cheapest(blocks, middle) is None else (low, middle)
    return high
