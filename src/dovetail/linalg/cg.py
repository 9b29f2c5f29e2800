r"""Conjugate gradients for symmetric positive operators that are given as functions.

Solves :math:`A X = B` for several right-hand sides at once, each with steps of its own, by products
with :math:`A` alone.  The number of products grows with the square root of the condition number,
and tangent kernels have one of 1e6 and more: without a preconditioner
(:mod:`dovetail.linalg.nystrom`) expect no answer.  What does not converge is an error here, never a
quiet half-solution; and the residual is measured, not the one that the recursion believes in.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from dovetail.core.errors import DovetailError, SettingsError, TaskError, shown

__all__ = ["ConvergenceError", "Operator", "Solved", "columnwise", "conjugate_gradients"]

Operator: TypeAlias = Callable[[Tensor], Tensor]
"""A linear map of columns ``[m, k]`` to columns ``[m, k]``."""

_MOST_PASSES = 5
"""How often the recursion starts again from the measured residual before it is given up."""


@dataclass(frozen=True)
class Solved:
    """What conjugate gradients found.

    Attributes:
        solution: Of the right-hand side's shape, float64.
        residual: :math:`\\lVert AX - B\\rVert / \\lVert B\\rVert`, measured, the worst column's.
        iterations: Products with the operator, but for those that measured the residual.
    """

    solution: Tensor
    residual: float
    iterations: int


class ConvergenceError(DovetailError, ArithmeticError):
    """An iteration ended before it was accurate, or cannot get there.

    >>> issubclass(ConvergenceError, ArithmeticError)
    True
    """


def columnwise(product: Callable[[Tensor], Tensor]) -> Operator:
    """Make a product with one vector ``[m]`` one with columns ``[m, k]``.

    >>> columnwise(lambda vector: vector.cumsum(0))(torch.ones(3, 2)).T
    tensor([[1., 2., 3.],
            [1., 2., 3.]])
    """

    def products(columns: Tensor) -> Tensor:
        if not columns.shape[1]:
            return columns.clone()
        return torch.stack([product(column) for column in columns.T.contiguous()], dim=1)

    return products


def conjugate_gradients(
    operator: Operator,
    right: Tensor,
    *,
    preconditioner: Operator | None = None,
    tolerance: float = 1e-6,
    max_iterations: int | None = None,
) -> Solved:
    r"""Solve :math:`A X = B`.

    Args:
        operator: Multiplies float64 columns ``[m, k]`` by a symmetric positive definite
            :math:`A`; see :func:`columnwise` for a product with one vector.  It may answer in less
            than float64, but then a tolerance below its rounding times the condition is refused.
        right: :math:`B`, ``[m]`` or ``[m, k]``.
        preconditioner: Multiplies columns by something like :math:`A^{-1}`, symmetric and
            positive; see :class:`dovetail.linalg.nystrom.Nystrom`.
        tolerance: The relative residual to reach in every column.
        max_iterations: Products allowed in all; :math:`10 m`, but at most 1000, unless said.

    Raises:
        ConvergenceError: Where the tolerance was not reached, or the operator is not positive.

    >>> matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    >>> found = conjugate_gradients(lambda columns: matrix @ columns, torch.tensor([1.0, 2.0]))
    >>> found.solution.round(decimals=4), found.iterations
    (tensor([0.0909, 0.6364], dtype=torch.float64), 2)
    """
    columns = _checked(right, tolerance, max_iterations)
    most = min(10 * len(columns), 1000) if max_iterations is None else max_iterations
    lengths = columns.norm(dim=0)
    scale = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    columns = columns / scale
    solution, residual, used = torch.zeros_like(columns), columns, 0
    worst = _worst(residual)
    for _ in range(_MOST_PASSES):
        if worst <= tolerance or used >= most:
            break
        step, taken = _pass(operator, preconditioner, residual, tolerance, most - used)
        used += taken
        solution = solution + step
        # Rounding lets the recursion drift from the truth, so the truth is measured.
        residual = columns - _applied(operator, solution)
        before, worst = worst, _worst(residual)
        if not worst < before:
            break
    if not worst <= tolerance:
        raise ConvergenceError(
            f"conjugate gradients reached a relative residual of {worst:.2g} in {used} iterations, "
            f"not {tolerance:.2g}.\nThe system is too ill-conditioned for this: use a "
            "preconditioner of higher rank, more noise on the diagonal, an operator in float64, or "
            "more iterations; up to some 20 000 rows a Gram matrix and its Cholesky factor are "
            "quicker anyway."
        )
    return Solved((solution * scale).reshape(right.shape), worst, used)


def _pass(
    operator: Operator,
    preconditioner: Operator | None,
    right: Tensor,
    tolerance: float,
    most: int,
) -> tuple[Tensor, int]:
    """One run of the recursion from zero, and the products it took."""
    solution, residual = torch.zeros_like(right), right.clone()
    # Those that are done rest: a step along a direction of zero length is none.
    active = residual.norm(dim=0) > tolerance
    better = _preconditioned(preconditioner, residual)
    direction = better * active
    energy = (residual * better).sum(0)
    _must_be_positive(energy[active], "preconditioner")
    taken = 0
    while taken < most and bool(active.any()):
        image = _applied(operator, direction)
        taken += 1
        curvature = (direction * image).sum(0)
        _must_be_positive(curvature[active], "operator")
        along = torch.where(active, energy / curvature, torch.zeros_like(energy))
        solution = solution + along * direction
        residual = residual - along * image
        if not bool((solution.isfinite() & residual.isfinite()).all()):
            raise ConvergenceError(
                "the steps grew beyond all bounds: the operator is singular. Add noise to its "
                "diagonal."
            )
        # A little below the tolerance, so that the measured residual is below it too.
        active = active & (residual.norm(dim=0) > 0.5 * tolerance)
        if not bool(active.any()):
            break
        better = _preconditioned(preconditioner, residual)
        after = (residual * better).sum(0)
        _must_be_positive(after[active], "preconditioner")
        turned = torch.where(active, after / energy, torch.zeros_like(energy))
        direction = (better + turned * direction) * active
        energy = after
    return solution, taken


def _applied(operator: Operator, columns: Tensor, name: str = "operator") -> Tensor:
    image = operator(columns)
    if not isinstance(image, Tensor) or image.shape != columns.shape:
        given = list(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise SettingsError(
            f"the {name} made {given} of columns {list(columns.shape)}; it must keep the shape: "
            "wrap a product with one vector in columnwise()"
        )
    if not bool(image.isfinite().all()):
        raise ConvergenceError(f"the {name} gave nan or inf; look for it in the network or data")
    return image.detach().to(columns)


def _preconditioned(preconditioner: Operator | None, residual: Tensor) -> Tensor:
    if preconditioner is None:
        return residual
    return _applied(preconditioner, residual, "preconditioner")


def _must_be_positive(values: Tensor, name: str) -> None:
    if not bool((values > 0).all()):
        raise ConvergenceError(
            f"the {name} is not positive definite: a vector times its image is "
            f"{float(values.min()):.2g}.\nAdd noise to the diagonal, or compute the products in "
            "float64: rounding alone can make a nearly singular matrix so."
        )


def _worst(residual: Tensor) -> float:
    return float(residual.norm(dim=0).max()) if residual.shape[1] else 0.0


def _checked(right: Tensor, tolerance: float, most: int | None) -> Tensor:
    if not (isinstance(tolerance, float) and 0 < tolerance < 1):
        raise SettingsError(f"tolerance lies between 0 and 1, got {shown(tolerance)}")
    if most is not None and not (isinstance(most, int) and most >= 1):
        raise SettingsError(f"max_iterations is a whole number from 1, got {shown(most)}")
    if not isinstance(right, Tensor) or right.ndim not in (1, 2) or not len(right):
        given = list(right.shape) if isinstance(right, Tensor) else type(right).__name__
        raise SettingsError(f"the right-hand side is [m] or [m, k], not {given}")
    columns = right.detach().double().reshape(len(right), -1 if right.numel() else 0)
    if not math.isfinite(float(columns.abs().sum())):
        raise TaskError("the right-hand side holds nan or inf")
    return columns
