"""A two-layer ReLU network under plain gradient descent, and the theory's matrices by loops."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def gram_by_loops(a: Tensor, b: Tensor) -> Tensor:
    """Every entry from its formula."""
    gram = torch.empty(len(a), len(b), dtype=torch.float64)
    for i, x in enumerate(a.double()):
        for j, z in enumerate(b.double()):
            cosine = max(-1.0, min(1.0, math.fsum(float(u * v) for u, v in zip(x, z, strict=True))))
            gram[i, j] = cosine * (math.pi - math.acos(cosine)) / (2 * math.pi)
    return gram


class TwoLayer:
    r""":math:`f(x) = m^{-1/2} a^\top \sigma(W x)`, of which only :math:`W` learns.

    Units come in pairs of equal weights and opposite signs, so that the output begins at zero.
    """

    def __init__(self, width: int, inputs: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        half = torch.randn(width // 2, inputs, generator=draw, dtype=torch.float64)
        self.weights = torch.cat([half, half])
        self.signs = torch.ones(width, dtype=torch.float64)
        self.signs[width // 2 :] = -1

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs ``[n]``."""
        return (x @ self.weights.T).relu() @ self.signs / math.sqrt(len(self.signs))

    def gradient_to_outputs(self, x: Tensor) -> Tensor:
        """The derivative of each output with respect to the weights, ``[n, m·d]``."""
        active = (x @ self.weights.T > 0) * self.signs / math.sqrt(len(self.signs))
        return (active[:, :, None] * x[:, None, :]).flatten(1)

    def fit(self, x: Tensor, y: Tensor, steps: int) -> None:
        """Full-batch gradient descent on half the squared error, at a rate that is safe."""
        rate = 1.0 / float(torch.linalg.eigvalsh(gram_by_loops(x, x))[-1])
        root = math.sqrt(len(self.signs))
        for _ in range(steps):
            hidden = x @ self.weights.T
            wrong = hidden.relu() @ self.signs / root - y
            back = (hidden > 0) * self.signs / root * wrong[:, None]
            self.weights = self.weights - rate * back.T @ x
