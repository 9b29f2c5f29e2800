"""The three toy problems of "Efficient deep learning", chapter 7; 5000 points each, float64.

The source names a sine of two periods on (-1, 1), two spirals, and an 8 x 8 board of points that
are uniform on [-0.5, 0.5]; how the spirals are drawn it does not say.  Here a point has the angle
and the radius t = 3 pi sqrt(u) with uniform u, the second arm is turned by pi, and coordinates are
divided by ten.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dovetail.core.seeds import generator

POINTS = 5000


def sinusoid(points: int = POINTS) -> tuple[Tensor, Tensor]:
    """Evenly spaced x ``[n, 1]`` inside (-1, 1) and two periods of a sine ``[n, 1]``."""
    x = torch.linspace(-1, 1, points + 2, dtype=torch.float64)[1:-1, None]
    return x, torch.sin(2 * math.pi * x)


def spirals(seed: int, points: int = POINTS) -> tuple[Tensor, Tensor]:
    """Points ``[n, 2]`` of two arms in turn, and which arm it is, -1 or +1 ``[n, 1]``."""
    draw = generator(seed, "spirals")
    t = 3 * math.pi * torch.rand(points, generator=draw, dtype=torch.float64).sqrt()
    arm = 1.0 - 2.0 * (torch.arange(points) % 2).double()
    x = torch.stack([t * t.cos(), t * t.sin()], 1) * arm[:, None] / 10
    return x, arm[:, None]


def checkerboard(seed: int, points: int = POINTS) -> tuple[Tensor, Tensor]:
    """Uniform points ``[n, 2]`` on [-0.5, 0.5] and the colour of their square, -1 or +1."""
    draw = generator(seed, "checkerboard")
    x = torch.rand(points, 2, generator=draw, dtype=torch.float64) - 0.5
    square = ((x + 0.5) * 8).floor().clamp(max=7).sum(1)
    return x, (1 - 2 * (square % 2))[:, None]


def accuracy(said: Tensor, y: Tensor) -> float:
    """The percentage of outputs ``[n, 1]`` on the right side of zero."""
    return 100 * float((said.sign() == y.sign()).double().mean())
