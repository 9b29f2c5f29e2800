r"""Where to cut a network so that its partitions take equally long.

A step of the pipeline takes as long as its slowest partition, so the cuts are those of least

.. math::
    \max_k \max \Bigl( \sum_{i \in k} t_i + h_k,\ \frac{b_k}{v} \Bigr),

:math:`t_i` the seconds of layer :math:`i`, forward, backward and the optimiser's step, :math:`h_k`
those of what partition :math:`k` is trained under, and :math:`b_k` the bytes that it hands on over
a link of :math:`v` bytes a second.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor, nn

from dovetail.core.errors import CutError, argument
from dovetail.parts.cutting import cut_all
from dovetail.parts.part import Part
from dovetail.train.decision import Decision
from dovetail.train.layers import layer_points
from dovetail.train.loop import train_mode
from dovetail.train.options import Options, make_optimiser
from dovetail.train.supervision import Loss

TWO = 2
"""Partitions, unless it is said how many."""

REPEATS = 3
"""The quickest of so many steps counts: on a busy machine the others say more of the machine."""


@dataclass(frozen=True)
class Costs:
    """What the layers of a network take in a step of a batch.

    Attributes:
        points: Where each layer but the last ends.
        layers: Seconds of each.
        firsts: Seconds of each where it is a partition's lowest, and sends no gradient down.
        heads: Seconds of a decision block on each, zero on the last, which needs none.
        handed: Bytes that each gives for a batch.
        weights: Bytes of the weights of each that are trained.
        batch: Examples.
    """

    points: tuple[str, ...]
    layers: tuple[float, ...]
    firsts: tuple[float, ...]
    heads: tuple[float, ...]
    handed: tuple[int, ...]
    weights: tuple[int, ...]
    batch: int

    def cut(self, partitions: int, link: float | None = None) -> tuple[int, ...]:
        """How many layers lie below each cut, best on a link of so many bytes a second."""
        sent = [0.0 if link is None else each / link for each in self.handed[:-1]]
        return balanced(self.layers, self.heads, partitions, (*sent, 0.0), self.firsts)

    def seconds(self, cuts: Sequence[int]) -> list[float]:
        """Of a step of each partition."""
        return list(loads(self.layers, self.heads, cuts, self.firsts))

    @property
    def whole(self) -> float:
        """Of a step of the whole network."""
        return self.firsts[0] + sum(self.layers[1:])


def balanced(
    layers: Sequence[float],
    heads: Sequence[float],
    partitions: int,
    sent: Sequence[float] | None = None,
    firsts: Sequence[float] | None = None,
) -> tuple[int, ...]:
    """The cuts with the least slowest partition, each the number of layers below it.

    Of cuts that are as good, those further down.  ``sent`` are the seconds that what a layer gives
    is on its way while the partition below computes on; ``firsts`` what a layer takes as the lowest
    of a partition.

    >>> balanced((3.0, 1.0, 1.0, 1.0), (0.0, 0.5, 0.5, 0.0), 2)
    (1,)
    >>> balanced((3.0, 1.0, 1.0, 1.0), (0.0, 0.5, 0.5, 0.0), 2, (9.0, 9.0, 0.0, 0.0))
    (3,)
    """
    n = len(layers)
    sums, sent, firsts = [0.0, *accumulate(layers)], sent or [0.0] * n, firsts or layers

    def slowest(a: int, b: int) -> float:
        return max(firsts[a] + sums[b] - sums[a + 1] + heads[b - 1], sent[b - 1])

    # best[j]: of the first j layers in so many partitions, the slowest, and the cuts
    best: dict[int, tuple[float, tuple[int, ...]]] = {
        j: (slowest(0, j), ()) for j in range(1, n + 1)
    }
    for number in range(2, partitions + 1):
        best = {
            j: min((max(best[i][0], slowest(i, j)), (*best[i][1], i)) for i in range(number - 1, j))
            for j in range(number, n + 1)
        }
    return best[n][1]


def loads(
    layers: Sequence[float],
    heads: Sequence[float],
    cuts: Sequence[int],
    firsts: Sequence[float] | None = None,
) -> tuple[float, ...]:
    """What each partition takes, cut so.

    >>> loads((3.0, 1.0, 1.0), (0.5, 0.5, 0.0), (1,))
    (3.5, 2.0)
    """
    edges, firsts = [0, *cuts, len(layers)], firsts or layers
    return tuple(firsts[a] + sum(layers[a + 1 : b]) + heads[b - 1] for a, b in pairwise(edges))


def enough_layers(whole: Part, partitions: int) -> tuple[str, ...]:
    """The points where partitions may end, if there are as many as it takes.

    >>> from dovetail.parts.part import build
    >>> enough_layers(build("mlp", hidden=(8, 8)), 3)
    ('hidden1', 'hidden2')
    """
    ends = layer_points(whole)
    if len(ends) + 1 < partitions:
        raise CutError(
            f"the network has {len(ends) + 1} layers with weights that can be cut apart (after "
            f"{', '.join(ends)}), too few for {argument('partitions', partitions)}; take fewer, or "
            f"say {argument('at', ...)}"
        )
    return ends


def layer_costs(
    whole: Part,
    ends: Sequence[str],
    batch: tuple[Tensor, Tensor],
    outputs: int,
    loss: Loss,
    options: Options,
    sizes: dict[str, int | None],
) -> Costs:
    """Time every layer, and a decision block on each, on a batch that is ready for the network.

    Args:
        whole: The network; it is left as it is.
        ends: Where its layers end.
        batch: Inputs and targets.
        outputs: How many numbers a decision is.
        loss: Of a decision.
        options: The optimiser's.
        sizes: Of decision blocks, as :meth:`Decision.for_shape` takes them.
    """
    x, targets = batch
    modules = [part.module for part in cut_all(whole, at=list(ends))]
    layers, firsts, heads, handed, weights = [], [], [], [], []
    devices = [x.device] if x.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        for number, module in enumerate(modules):
            last = number == len(modules) - 1
            under = (lambda z: loss(z, targets)) if last else (lambda z: z.sum())
            alone, z = _step_of(module, x, under, options, inner=False)
            firsts.append(alone)
            layers.append(_step_of(module, x, under, options, inner=True)[0] if number else alone)
            handed.append(z.nbytes)
            weights.append(sum(p.nbytes for p in module.parameters() if p.requires_grad))
            if last:
                heads.append(0.0)
                break
            decision = Decision.for_shape(tuple(z.shape[1:]), **sizes)
            block = decision.part(tuple(z.shape[1:]), outputs).module.to(z.device, z.dtype)
            seconds, _ = _step_of(block, z, lambda y: loss(y, targets), options, inner=True)
            heads.append(seconds)
            x = z
    return Costs(
        points=tuple(ends),
        layers=tuple(layers),
        firsts=tuple(firsts),
        heads=tuple(heads),
        handed=tuple(handed),
        weights=tuple(weights),
        batch=len(targets),
    )


def _step_of(
    module: nn.Module,
    x: Tensor,
    under: Callable[[Tensor], Tensor],
    options: Options,
    *,
    inner: bool,
) -> tuple[float, Tensor]:
    """The seconds of a step of a copy, and what it gives; ``inner``: with a gradient to ``x``."""
    module = copy.deepcopy(module)
    train_mode(module)
    trained = [p for p in module.parameters() if p.requires_grad]
    optimiser = make_optimiser(options, trained) if trained else None
    x = x.detach().requires_grad_(inner and x.is_floating_point())
    taken, given = [], x
    for _ in range(REPEATS + 1):
        began = time.perf_counter()
        given = module(x if not inner else x.clone())
        value = under(given)
        if value.requires_grad:
            value.backward()  # type: ignore[no-untyped-call]
        if optimiser is not None:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        if x.device.type == "cuda":
            torch.cuda.synchronize(x.device)
        taken.append(time.perf_counter() - began)
        x.grad = None
    return min(taken[1:]), given.detach()
