"""Platonic projections exactly as the source writes them, in either precision.

The listing of "Efficient deep learning", section 7.5, with the scaling factors and the tries of the
sections after it: a column of ones before every layer, the target T = alpha [Z | beta Y] P formed,
and each of the source's three solvers called on Z itself.  ``dovetail.closed_form`` differs (no
target is formed, rows are centred, always float64); here the source's numbers are asked for, so the
rounding must be its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.core.seeds import generator

Solve = Callable[[Tensor], Tensor]
PRECISIONS = {32: torch.float32, 64: torch.float64}


@dataclass(frozen=True)
class Recipe:
    """What the source varies; the tolerance and the penalty only where a solver has one."""

    alpha: float = 1.0
    beta: float = 1.0
    solver: str = "pinv"
    bits: int = 64
    tolerance: float | None = None
    tries: int = 1
    ridge: float = 1e-6


@dataclass(frozen=True, eq=False)
class Followed:
    """The least squares distance after each hidden layer, and the outputs after the last.

    ``failed`` says that a solver gave up or a number ceased to be one, before or in the output
    layer; the distances are those of the layers until then.
    """

    outputs: Tensor
    distances: tuple[float, ...]
    failed: bool


def followed(
    x: Tensor,
    y: Tensor,
    widths: Sequence[int],
    activation: Callable[[Tensor], Tensor],
    recipe: Recipe,
    seed: int,
) -> Followed:
    """Fit rows ``[n, d]`` to targets ``[n, k]`` by a network of these hidden widths."""
    dtype = PRECISIONS[recipe.bits]
    x, y = x.to(dtype), y.to(dtype)
    ones = torch.ones(len(x), 1, dtype=dtype)
    draw = generator(seed, "literal")
    z = torch.cat([ones, x], 1)
    distances: list[float] = []
    outputs = torch.zeros_like(y)
    try:
        solve = solver_of(z, recipe)
        for width in widths:
            best = math.inf
            kept = None
            for _ in range(recipe.tries):
                p = torch.randn(z.shape[1] + y.shape[1], width, generator=draw, dtype=torch.float64)
                target = recipe.alpha * torch.cat([z, recipe.beta * y], 1) @ p.to(dtype)
                tried = torch.cat([ones, activation(z @ solve(target))], 1)
                solve_tried = solver_of(tried, recipe)
                said = tried @ solve_tried(y)
                distance = float((y - said).double().square().sum(1).mean())
                if distance < best:  # never true of what is not a number
                    best, kept = distance, (tried, solve_tried, said)
            if kept is None:
                return Followed(outputs, tuple(distances), failed=True)
            z, solve, outputs = kept
            distances.append(best)
    except torch.linalg.LinAlgError:
        return Followed(outputs, tuple(distances), failed=True)
    return Followed(outputs, tuple(distances), failed=False)


def solver_of(z: Tensor, recipe: Recipe) -> Solve:
    """The least squares solution on ``z`` for any target, by one of the source's three calls."""
    if not bool(z.isfinite().all()):
        raise torch.linalg.LinAlgError("the representation is not finite")
    if recipe.solver == "pinv":
        inverse = torch.linalg.pinv(z, atol=recipe.tolerance)
        return lambda target: inverse @ target
    if recipe.solver == "lstsq":
        return lambda target: torch.linalg.lstsq(z, target, rcond=recipe.tolerance).solution
    if recipe.solver == "solve":
        gram = z.T @ z + recipe.ridge * torch.eye(z.shape[1], dtype=z.dtype)
        return lambda target: torch.linalg.solve(gram, z.T @ target)
    raise ValueError(f"the source has no solver {recipe.solver!r}")
