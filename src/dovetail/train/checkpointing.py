"""Activations that are computed twice instead of kept: segments of a chain, with exact gradients.

A segment keeps its input alone.  When the backward pass comes to it, it is run again from there,
with the random numbers and the buffers that it had, and what it does to its buffers the second time
is thrown away: batch norms count each batch once, and gradients are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

from dovetail.core.errors import CutError
from dovetail.parts.splitting import points, split

Link = tuple[str, nn.Module]
"""A layer of a chain, or what is not opened, by its name in the network."""

Span = tuple[int, int]
"""From the first link of a segment to behind its last."""


def recomputed(run: Callable[[Tensor], Tensor], x: Tensor, *modules: nn.Module) -> Tensor:
    """``run(x)``, of which nothing is kept but ``x``: the backward pass runs it again.

    Args:
        run: A function of ``modules``.
        x: Its input.
        modules: Those whose buffers the function may change.

    >>> norm = nn.BatchNorm1d(2)
    >>> recomputed(norm, torch.rand(4, 2), norm).sum().backward()
    >>> norm.num_batches_tracked
    tensor(1)
    """
    before = [
        (module, name, buffer.clone())
        for root in modules
        for module in root.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]

    @contextmanager
    def as_before() -> Iterator[None]:
        now = [module._buffers[name] for module, name, _ in before]
        for module, name, buffer in before:
            module._buffers[name] = buffer.clone()
        try:
            yield
        finally:
            for (module, name, _), its in zip(before, now, strict=True):
                module._buffers[name] = its

    def contexts() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        return nullcontext(), as_before()

    result: Tensor = checkpoint(run, x, use_reentrant=False, context_fn=contexts)
    return result


class Checkpointed:
    """A network of which some segments are run again in the backward pass.

    Args:
        module: The network; its layers are run as they are.
        spans: The segments to run again, of :func:`links_of` the network.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))
    >>> x = torch.rand(4, 3)
    >>> bool((Checkpointed(net, [(0, 2)])(x) == net(x)).all())
    True
    """

    def __init__(self, module: nn.Module, spans: Sequence[Span]) -> None:
        self._module, self._links, self.spans = module, links_of(module), tuple(spans)
        self._opened = [
            inner
            for _, link in self._links
            for inner in link.modules()
            if isinstance(inner, fx.GraphModule)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        """What the network gives for ``x``."""
        if not (self.spans and torch.is_grad_enabled()):
            whole: Tensor = self._module(x)
            return whole
        for piece in self._opened:  # a piece of an opened module is none of the network's children
            piece.training = self._module.training
        done = 0
        for start, stop in self.spans:
            x = self._plainly(x, done, start)
            layers = [link for _, link in self._links[start:stop]]
            x = recomputed(nn.Sequential(*layers), x, *layers)
            done = stop
        return self._plainly(x, done, len(self._links))

    def _plainly(self, x: Tensor, start: int, stop: int) -> Tensor:
        for _, link in self._links[start:stop]:
            x = link(x)
        return x


def links_of(module: nn.Module) -> list[Link]:
    """The layers of a network in the order in which they run, each fed by the one before.

    Chains in chains are opened.  A network that is no chain is cut at its cut points; what has
    none is one link.

    >>> net = nn.Sequential(nn.Sequential(nn.Linear(3, 5), nn.Tanh()), nn.Linear(5, 1))
    >>> [name for name, _ in links_of(net)]
    ['0.0', '0.1', '1']
    """
    if _is_chain(module):
        return [
            (f"{name}.{inner}" if inner else name, link)
            for name, child in module._modules.items()
            if child is not None
            for inner, link in (links_of(child) if _is_chain(child) else [("", child)])
        ]
    cut, rest = [], module
    try:
        for place in [name for name in points(module) if _outside(module, name)]:
            halves = split(rest, place)
            if halves.crossing == 1:
                cut.append((place, halves.front))
                rest = halves.back
    except CutError:  # shared tensors: as far as it went
        pass
    return [*cut, ("output" if cut else "", rest)]


def _is_chain(module: nn.Module) -> bool:
    return type(module).forward is nn.Sequential.forward and len(module._modules) > 0


def _outside(module: nn.Module, place: str) -> bool:
    """Whether a place lies in the network itself or in a chain of it, not inside of a block."""
    owners = place.split(".")[:-1]
    paths = (".".join(owners[: i + 1]) for i in range(len(owners)))
    return all(_is_chain(module.get_submodule(path)) for path in paths)


def a_block_at_a_time(links: Sequence[Link]) -> list[Span]:
    """Segments of one layer with weights each, and what follows it: norm, activation, pooling.

    >>> a_block_at_a_time(links_of(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1))))
    [(0, 2), (2, 3)]
    """
    starts = [i for i, (_, link) in enumerate(links) if any(p.ndim > 1 for p in link.parameters())]
    edges = [0, *(i for i in starts if i > 0), len(links)]
    return list(pairwise(edges))
