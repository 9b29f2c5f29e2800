r"""A linear system solved by products in float32 and residuals in float64.

Products in float32 are twice as fast, but they are off by :math:`\varepsilon_{32} \lVert B \rVert`
and with a badly conditioned :math:`B` no iteration gets below that.  So it is stopped early, what
is left, :math:`R = C - B V`, is measured in float64, and solved for in turn.  Each round takes off
a factor; where one does not, products become float64 too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.linalg.cg import ConvergenceError, Operator, conjugate_gradients

__all__ = ["Refined", "refined"]

COARSE = 0.05  # how far one round in float32 goes
MOST_ROUNDS = 12


@dataclass(frozen=True)
class Refined:
    """A solution ``[m, k]``, what the operator makes of it, and how good it is.

    ``residual`` is the worst column's, relative and measured in float64; ``iterations`` counts
    the products of the iteration, in either type.
    """

    solution: Tensor
    image: Tensor
    residual: float
    iterations: int


def refined(
    system: Callable[[torch.dtype], Operator],
    right: Tensor,
    *,
    preconditioner: Operator,
    tolerance: float,
    max_iterations: int,
    dtype: torch.dtype = torch.float32,
    begun: Tensor | None = None,
) -> Refined:
    r"""Solve :math:`B V = C` for columns ``[m, k]``.

    Args:
        system: Gives multiplication by :math:`B` in float32 or in float64.
        right: :math:`C`, float64.
        preconditioner: Nearly the inverse.
        tolerance: The relative residual to reach in every column.
        max_iterations: Products allowed, not counting those that measure.
        dtype: In which to begin.
        begun: A solution to begin at.

    Raises:
        ConvergenceError: Where the tolerance was not reached.

    >>> matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    >>> def system(dtype):
    ...     return lambda columns: (matrix.to(dtype) @ columns.to(dtype)).double()
    >>> right = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    >>> found = refined(
    ...     system, right, preconditioner=lambda columns: columns, tolerance=1e-12,
    ...     max_iterations=50,
    ... )
    >>> found.solution.flatten(), found.residual < 1e-12
    (tensor([0.0909, 0.6364], dtype=torch.float64), True)
    """
    exact = system(torch.float64)
    solution = torch.zeros_like(right) if begun is None else begun
    image = torch.zeros_like(right) if begun is None else exact(begun)
    lengths = right.norm(dim=0)
    lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    used, before = 0, float("inf")
    for _ in range(MOST_ROUNDS):
        left = right - image
        shares = left.norm(dim=0) / lengths
        worst = float(shares.max())
        if worst <= tolerance:
            return Refined(solution, image, worst, used)
        if used >= max_iterations:
            break
        if worst > 0.5 * before:
            dtype = torch.float64
        before = worst
        wanted = min(tolerance / worst, 0.5)
        try:
            found = conjugate_gradients(
                system(dtype),
                left * (shares > tolerance),
                preconditioner=preconditioner,
                tolerance=wanted if dtype == torch.float64 else max(wanted, COARSE),
                max_iterations=max_iterations - used,
            )
        except ConvergenceError:
            if dtype == torch.float64:
                raise
            dtype = torch.float64
            continue
        used += found.iterations
        solution = solution + found.solution
        image = exact(solution)
    raise ConvergenceError(
        f"conjugate gradients reached a relative residual of {before:.2g} in {used} iterations, "
        f"not {tolerance:.2g}.\nUse a preconditioner of higher rank, more noise, or more "
        "iterations."
    )
