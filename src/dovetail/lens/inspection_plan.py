"""What each look into a part would take, from the time that a few examples take here."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dovetail.core.errors import DovetailError
from dovetail.lens.subject import inside
from dovetail.lens.transfer_study import BATCH, EPOCHS, MOST_EPOCHS, STEPS
from dovetail.linalg.curvature import LossHessian
from dovetail.parts.modules import evaluating

_TIMED, _LONGEST = 1 << 17, 2.0
"""Numbers in the examples that are timed, and seconds after which no further run is made."""

_FLOPS = 1e10
"""Float64 operations a second, to plan dense algebra by."""

_LOOKED_AT = 1 << 22
"""Numbers in the examples of a look that runs a network many times."""

GRADIENTS, PRODUCTS = 64, 150
GRID, SEEDS = 21, 3

_RANKS, _STEP = 1.2e-6, 1e-3
"""Seconds a weight for stable rank and entropy, and of a training step beside the network."""

_FEW = 5
"""Runs of which the quickest counts: what else the machine does makes the others slower."""

_HEAD = 4
"""Operations an example and weight of a product with the last layer's Hessian, as measured."""

_DOUBLE_BACKWARD = 5.0
"""A product with the Hessian in units of both ways, where it cannot be timed."""


def examples_for(inputs: Tensor, most: int = 256) -> int:
    """How many inputs ``[n, ...]`` a look takes that runs the network many times.

    At most 256, and of large images fewer, but 32 at least: 27 of 224 by 224 pixels hold as many
    numbers as 1365 of 32 by 32, and take as long.

    >>> examples_for(torch.empty(500, 1, 8, 8)), examples_for(torch.empty(500, 3, 224, 224))
    (256, 32)
    """
    fit = _LOOKED_AT // max(1, math.prod(inputs.shape[1:]))
    return min(len(inputs), most, max(32, fit))


@dataclass(frozen=True)
class Pace:
    """Seconds of one example: forwards, both ways, a product with the Hessian; weights, points."""

    forward: float
    both: float
    product: float
    weights: int
    points: int = 8


def pace_of(module: nn.Module, x: Tensor, points: int = 8) -> Pace:
    """Time a few examples ``[n, ...]``, as the module takes them; it is left as it was.

    >>> 0 < pace_of(nn.Linear(3, 2), torch.rand(20, 3)).forward < 1
    True
    """
    some = x[: max(2, _TIMED // max(1, x[0].numel()))]
    weights = [p for p in module.parameters() if p.is_floating_point()]
    size = sum(p.numel() for p in weights)

    def ahead() -> None:
        with evaluating(module):
            module(some).sum().item()  # waits for devices that work meanwhile

    def back() -> None:
        with evaluating(module), torch.enable_grad():
            flags = [p.requires_grad for p in weights]
            try:
                for weight in weights:
                    weight.requires_grad_(True)
                out = module(some)
                torch.autograd.grad(_of_size(out), weights, allow_unused=True)
            finally:
                for weight, flag in zip(weights, flags, strict=True):
                    weight.requires_grad_(flag)

    def twice() -> None:
        hessian = LossHessian(module, some, _of_size, inside(module, None))
        hessian.product(torch.ones_like(hessian.gradient))

    forward = _timed(ahead, x) / len(some)
    both = _timed(back, x) / len(some) if size else 3 * forward
    try:
        product = _timed(twice, x) / len(some)
    except (RuntimeError, DovetailError):  # no weights, or a layer that cannot
        product = _DOUBLE_BACKWARD * both
    return Pace(forward, both, product, size, points)


def _of_size(outputs: Tensor) -> Tensor:
    return outputs.float().square().mean()


def _timed(work: Callable[[], None], x: Tensor) -> float:
    """The least of some runs; the first has to warm up, and may be all that there is time for.

    On a processor this is the time that it works for this thread, which has its share of all the
    work: what others do on the machine at the moment says nothing of the next hour.
    """
    clock = time.thread_time if x.device.type == "cpu" else time.perf_counter
    seconds: list[float] = []
    while len(seconds) < _FEW and sum(seconds) < _LONGEST:
        began = clock()
        work()
        seconds.append(clock() - began)
    return min(seconds)


def expected_seconds(
    look: str,
    pace: Pace,
    n: int,
    many: int = 256,
    *,
    module: bool = False,
    shared: bool = True,
    last: int = 10_000,
) -> float:
    """How long a look at ``n`` examples would take, about.

    Args:
        look: Its name.
        pace: What one example takes.
        n: How many are looked at.
        many: How many where the network runs many times, see :func:`examples_for`.
        module: Curvature is that of a module inside, for which the network has to run.
        shared: Another look lets the examples through the network.
        last: Weights of the last layer, whose curvature needs no more than its inputs.

    >>> pace = Pace(forward=0.01, both=0.04, product=0.1, weights=1000)
    >>> round(expected_seconds("profile", pace, 500)), round(expected_seconds("study", pace, 500))
    (6, 4864)
    """
    once = 0.0 if shared else n * pace.forward
    hessian = many * pace.product * PRODUCTS
    return {
        "deviation": pace.weights / 1e8,
        "profile": n * pace.forward
        + pace.points * (0.05 + 1000 * n * n / _FLOPS)
        + pace.weights * _RANKS,
        "curvature": hessian if module else once + 0.1 + PRODUCTS * _HEAD * n * last / _FLOPS,
        "gradients": once + min(many, GRADIENTS) * pace.both,
        "hessian": hessian,
        "landscape": GRID * GRID * many * pace.forward,
        "study": SEEDS * _study(pace, n),
        "theory": 10 * n**3 / _FLOPS + 0.1,
    }[look]


def _study(pace: Pace, n: int) -> float:
    """One seed: from scratch, frozen and fine-tuned, each measured after every epoch."""
    epochs = min(MOST_EPOCHS, max(EPOCHS, math.ceil(STEPS / max(1, n // BATCH))))
    steps = 3 * epochs * math.ceil(n / BATCH)
    return epochs * n * (2 * pace.both + 4 * pace.forward) + steps * _STEP
