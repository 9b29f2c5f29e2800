"""What each link of a network takes: a step of plain backpropagation, watched link by link."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.parts.modules import evaluating
from dovetail.train.checkpointing import Link, links_of
from dovetail.train.memory import Live, Work, by_operations, optimiser_needs, tried
from dovetail.train.segments import Block

Network = Callable[[Tensor], Tensor]


def link_costs(
    work: Work,
    step_with: Callable[[Network], Callable[[Any], Tensor]],
    seconds: Sequence[float] | None = None,
) -> tuple[tuple[Block, ...], int]:
    """The links of a network, and the bytes that are held all through a step.

    Args:
        work: The module, the batch and the options.
        step_with: Makes a step of a network, which is called in the module's place.
        seconds: Of each link's forward, from :func:`link_seconds`; else one each.

    >>> net = nn.Sequential(nn.Linear(3, 5, bias=False), nn.ReLU())
    >>> step_with = lambda network: lambda x: network(x).sum()
    >>> blocks, held = link_costs(Work(net, step_with, torch.zeros(10, 3)), step_with)
    >>> [sum(block.saved.values()) for block in blocks], held
    ([0, 200], 240)
    """
    watched: list[_Watched] = []

    @contextmanager
    def discovery(module: nn.Module, live: Live) -> Iterator[None]:
        watched[:] = [_Watched(live, links_of(module))]
        with by_operations(module, live):
            yield

    state, _ = optimiser_needs(work.options, work.weights)
    trial = replace(work, step_of=lambda _: step_with(lambda x: watched[0](x)))
    _, parameters, batch = tried(trial, discovery, state=state)
    held = parameters + state + batch
    return watched[0].blocks(held, seconds), held


def link_seconds(module: nn.Module, x: Tensor) -> list[float]:
    """The seconds of each link's forward for a batch ``x``; the network is left as it was.

    >>> len(link_seconds(nn.Sequential(nn.Linear(3, 5), nn.ReLU()), torch.zeros(10, 3)))
    2
    """
    links = links_of(module)
    with evaluating(module):
        _forward(links, x[:2])  # the first call has costs of its own
        return _forward(links, x)


def _forward(links: Sequence[Link], x: Tensor) -> list[float]:
    taken = []
    for _, link in links:
        began = time.perf_counter()
        x = link(x)
        taken.append(time.perf_counter() - began)
    return taken


class _Watched:
    """A chain that notes, link by link, what it saves and how much is alive."""

    def __init__(self, live: Live, links: Sequence[Link]) -> None:
        self._live, self._links = live, links
        self._saved: list[dict[int, int]] = [{} for _ in links]
        self._crossing: list[tuple[int, int]] = []
        self._forward: list[int] = []
        self._backward: dict[int, int] = {}
        self._begun: int | None = None
        own = (t for _, link in links for t in (*link.parameters(), *link.buffers()))
        self._held = {live.number(tensor) for tensor in own}

    def __call__(self, x: Tensor) -> Tensor:
        self._held.add(self._live.number(x))
        self._crossing = [(self._live.number(x), 0)]
        for i, (_, link) in enumerate(self._links):
            self._live.lap()
            with torch.autograd.graph.saved_tensors_hooks(self._notes(i), lambda tensor: tensor):
                x = link(x)
            self._forward.append(self._live.lap())
            number = self._live.number(x)
            size = 0 if number in self._held else x.untyped_storage().nbytes()
            self._crossing.append((number, size))
            if x.requires_grad:
                x.register_hook(self._begins(i))  # type: ignore[no-untyped-call]
        return x

    def _notes(self, i: int) -> Callable[[Tensor], Tensor]:
        def note(tensor: Tensor) -> Tensor:
            number = self._live.number(tensor)
            if number not in self._held:
                self._saved[i][number] = tensor.untyped_storage().nbytes()
            return tensor.detach()

        return note

    def _begins(self, i: int) -> Callable[[Tensor], None]:
        def note(gradient: Tensor) -> None:
            self._ends()
            self._begun = i

        return note

    def _ends(self) -> None:
        """The way back through the link that was begun is over."""
        high = self._live.lap()
        if self._begun is not None:
            self._backward[self._begun] = high

    def blocks(self, held: int, seconds: Sequence[float] | None) -> tuple[Block, ...]:
        """The links, once the step is over; ``held`` is there all the time."""
        self._ends()
        own = [sum(p.nbytes for p in _trained(link)) for _, link in self._links]
        made: list[Block] = []
        kept: dict[int, int] = {}
        for i, (name, _) in enumerate(self._links):
            (takes, taken), (gives, given) = self._crossing[i : i + 2]
            before = held + sum(kept.values()) + (0 if takes in kept else taken)
            kept |= self._saved[i]
            after = held + sum(kept.values()) + sum(own[i + 1 :])
            made.append(
                Block(
                    name,
                    self._saved[i],
                    takes,
                    gives,
                    taken,
                    given,
                    forward=max(0, self._forward[i] - before),
                    backward=max(0, self._backward.get(i, 0) - after),
                    gradients=own[i],
                    seconds=1.0 if seconds is None else seconds[i],
                )
            )
        return tuple(made)


def _trained(link: nn.Module) -> list[nn.Parameter]:
    return [p for p in link.parameters() if p.requires_grad]
