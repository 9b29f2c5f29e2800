"""What each look into a part would take, from the time that a few examples take here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dovetail.parts.modules import evaluating

_FEW, _LONGEST = 8, 3.0
"""Examples that are timed, and seconds after which one of them is enough."""

_FLOPS = 1e10
"""Float64 operations a second, to plan dense algebra by."""

HESSIAN_EXAMPLES, PRODUCTS = 256, 80
LANDSCAPE_EXAMPLES, GRID = 256, 21
STUDY_STEPS, STUDY_BATCH, STUDY_SEEDS = 400, 32, 3


@dataclass(frozen=True)
class Pace:
    """Seconds that one example takes forwards, and forwards and backwards; weights, cut points."""

    forward: float
    both: float
    weights: int
    points: int = 8


def pace_of(module: nn.Module, x: Tensor, points: int = 8) -> Pace:
    """Time a few examples ``[n, ...]``, as the module takes them; it is left as it was.

    >>> 0 < pace_of(nn.Linear(3, 2), torch.rand(20, 3)).forward < 1
    True
    """
    some = x[:_FEW]

    def ahead() -> None:
        with evaluating(module):
            module(some)

    def back() -> None:
        with evaluating(module), torch.enable_grad():
            weights = [p for p in module.parameters() if p.is_floating_point()]
            flags = [p.requires_grad for p in weights]
            try:
                for weight in weights:
                    weight.requires_grad_(True)
                out = module(some)
                torch.autograd.grad(out.float().square().mean(), weights, allow_unused=True)
            finally:
                for weight, flag in zip(weights, flags, strict=True):
                    weight.requires_grad_(flag)

    size = sum(p.numel() for p in module.parameters())
    forward = _timed(ahead) / len(some)
    both = _timed(back) / len(some) if size else 3 * forward
    return Pace(forward, both, size, points)


def _timed(work: Callable[[], None]) -> float:
    """The lesser of two runs; the first has to warm up, and may be all that there is time for."""
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
        if seconds[-1] > _LONGEST:
            break
    return min(seconds)


def expected_seconds(look: str, pace: Pace, n: int, *, own_module: bool = False) -> float:
    """How long a look at ``n`` examples would take, about.

    >>> pace = Pace(forward=0.01, both=0.04, weights=1000)
    >>> round(expected_seconds("profile", pace, 500)), round(expected_seconds("study", pace, 500))
    (9, 3072)
    """
    hessian = 2 * pace.both * min(n, HESSIAN_EXAMPLES) * PRODUCTS
    return {
        "deviation": pace.weights / 2e8,
        "profile": 1.1 * n * pace.forward + pace.points * (0.2 + 1000 * n * n / _FLOPS * 10),
        "curvature": hessian if own_module else n * pace.forward + 0.5,
        "hessian": hessian,
        "landscape": GRID * GRID * min(n, LANDSCAPE_EXAMPLES) * pace.forward,
        "study": STUDY_SEEDS * STUDY_STEPS * STUDY_BATCH * (2 * pace.both),
        "theory": 10 * n**3 / _FLOPS + 0.1,
    }[look]
