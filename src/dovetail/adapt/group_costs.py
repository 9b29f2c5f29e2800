r"""What fitting a head costs, and what moving the layers below it adds, before either is done.

One pass of :math:`n` inputs through the network gives the features, and a head is fitted to those.
Layers that move, of a share :math:`\sigma` of the products of a pass, are trained in :math:`f`
folds by :math:`k` steps of :math:`b` labels, forwards and backwards, and looked at with all inputs:

.. math:: 1 + \sigma \Big( \frac{3 f k b}{n} + f + 2 \Big) \text{ passes,}

and where folds are not averaged, as much again as one of them for all labels.  Seconds are that
times a pass measured here; what does not grow with inputs, some tenths, is not in them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection

from torch import Tensor

from dovetail.adapt.around import BATCH, FOLDS, late_point, products, schedule
from dovetail.adapt.guarded import ENOUGH
from dovetail.adapt.networks import Front
from dovetail.adapt.plan import Group
from dovetail.parts.splitting import split

__all__ = ["group_costs"]

TRIAL = 16
COPIES = 6
"""Of the weights that move, in a fold: themselves, slopes, and what AdamW keeps."""


def group_costs(
    front: Front, raw: Tensor, n: int, classes: int, movable: Collection[str]
) -> tuple[Group, ...]:
    """Of the head alone; and with the layers that would move, if there are any.

    Args:
        front: Gives the features.
        raw: An input or more ``[1, ...]``.
        n: How many labels there will be.
        classes: How many of them.
        movable: Which parameters of the front may move.

    >>> import torch
    >>> from dovetail.adapt.networks import front_of
    >>> from dovetail.parts.part import build
    >>> front = front_of(build("lenet5", size=8))
    >>> every = {name for name, _ in front.part.module.named_parameters()}
    >>> [each.layers for each in group_costs(front, torch.zeros(2, 1, 8, 8), 50, 10, every)]
    ['head', 'head and all below it']
    """
    assert front.part is not None, "without a network there is nothing to linearise"
    some = raw[:1].expand(min(n, TRIAL), *raw.shape[1:])
    for _ in range(2):  # the first call has costs of its own
        began = time.perf_counter()
        width = front.rows(some).shape[1]
        each = (time.perf_counter() - began) / len(some)
    head = Group("head", (width + 1) * classes, 1.0, n * each, 24 * n * width)
    module = front.part.module
    size = sum(tensor.numel() for tensor in module.parameters())
    plan = schedule(size, n)
    share, layers, crossing = 1.0, "all below it", 4 * raw[0].numel()
    if not plan.whole:
        at = late_point(front.part, raw)
        if at is None:
            return (head,)
        done, total = products(front.part, raw)
        share, halves = (total - done[at]) / total, split(module, at)
        module = halves.back
        names = dict.fromkeys(name.split(".")[0] for name, _ in module.named_parameters())
        layers = ", ".join(names)
        crossing = 4 * halves.front(front.prepared(raw[:1])).numel()
    weights = sum(t.numel() for name, t in module.named_parameters() if name in movable)
    if not weights:
        return (head,)
    folded, folds = n * (FOLDS - 1) / FOLDS, min(FOLDS, math.ceil(ENOUGH * FOLDS / n))
    trained = folds * plan.moves.steps * folded / math.ceil(folded / BATCH)
    if not plan.averaged or folds < FOLDS:
        trained += plan.moves.steps * n / math.ceil(n / BATCH)
    passes = 1 + share * (3 * trained / n + folds * plan.stops + 2)
    memory = head.memory + n * crossing + 4 * folds * COPIES * weights
    both = Group(f"head and {layers}", head.weights + weights, passes, passes * n * each, memory)
    return head, both
