r"""Conjugate gradients for symmetric positive operators that are given as functions.

Solves :math:`A X = B` for several right-hand sides at once, each with steps of its own, by products
with :math:`A` alone.  The number of products grows with the square root of the condition number,
and tangent kernels have one of 1e6 and more: without a preconditioner expect no answer.  What does
not converge is an error here, never a quiet half-solution; and the residual is measured, not the
one that the recursion believes in.

A preconditioner comes from a few columns of a kernel.  Of a positive semi-definite :math:`K` take
:math:`r` columns :math:`C = K_{\cdot S}` and the block :math:`W = K_{SS}` among them.  Then
:math:`K \approx C W^{+} C^\top = U \operatorname{diag}(s) U^\top`, and for
:math:`A = K + \sigma^2 I`

.. math::
    P^{-1} = U \operatorname{diag}\Big(\frac{1}{s_i + \sigma^2}\Big) U^\top
           + \frac{1}{s_r + \sigma^2} (I - U U^\top) .

The large eigenvalues, which make a kernel ill-conditioned, become ones; what the columns do not
reach is scaled like the least of what they do (Frangella, Tropp and Udell, 2023).  Any rank gives
the right answer; a higher one in fewer iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from dovetail.core.errors import DovetailError, SettingsError, TaskError, shown
from dovetail.core.seeds import generator

Operator: TypeAlias = Callable[[Tensor], Tensor]
"""A linear map of columns ``[m, k]`` to columns ``[m, k]``."""

_MOST_PASSES = 5
"""How often the recursion starts again from the measured residual before it is given up."""

_COARSE = 0.05
"""How far one round of :func:`refined` goes in float32."""

_MOST_ROUNDS = 12


@dataclass(frozen=True)
class Solution:
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
) -> Solution:
    r"""Solve :math:`A X = B`.

    Args:
        operator: Multiplies float64 columns ``[m, k]`` by a symmetric positive definite
            :math:`A`; see :func:`columnwise` for a product with one vector.  It may answer in less
            than float64, but then a tolerance below its rounding times the condition is refused.
        right: :math:`B`, ``[m]`` or ``[m, k]``.
        preconditioner: Multiplies columns by something like :math:`A^{-1}`, symmetric and
            positive; see :class:`Nystrom`.
        tolerance: The relative residual to reach in every column.
        max_iterations: Products allowed in all; :math:`10 m`, but at most 1000, unless said.

    Raises:
        ConvergenceError: Where the tolerance was not reached, or the operator is not positive.

    >>> matrix = torch.tensor([[4.0, 1.0], [1.0, 3.0]], dtype=torch.float64)
    >>> found = conjugate_gradients(lambda columns: matrix @ columns, torch.tensor([1.0, 2.0]))
    >>> found.solution.round(decimals=4), found.iterations
    (tensor([0.0909, 0.6364], dtype=torch.float64), 2)
    """
    columns = _as_columns(right, tolerance, max_iterations)
    if preconditioner is None:
        preconditioner = torch.clone
    most = min(10 * len(columns), 1000) if max_iterations is None else max_iterations
    lengths = columns.norm(dim=0)
    scale = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    columns = columns / scale
    solution, residual, used = torch.zeros_like(columns), columns, 0
    worst = _worst(residual)
    for _ in range(_MOST_PASSES):
        if worst <= tolerance or used >= most:
            break
        step, steps = _pass(operator, preconditioner, residual, tolerance, most - used)
        used += steps
        solution = solution + step
        # Rounding lets the recursion drift from the truth, so the truth is measured.
        residual = columns - applied(operator, solution)
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
    return Solution((solution * scale).reshape(right.shape), worst, used)


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
    r"""Solve :math:`B V = C` for columns ``[m, k]`` by products in float32, residuals in float64.

    Products in float32 are twice as fast, but they are off by
    :math:`\varepsilon_{32} \lVert B \rVert` and with a badly conditioned :math:`B` no iteration
    gets below that.  So it is stopped early, what is left, :math:`R = C - B V`, is measured in
    float64, and solved for in turn.  Each round takes off a factor; where one does not, products
    become float64 too.

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
    >>> result = refined(
    ...     system, right, preconditioner=lambda columns: columns, tolerance=1e-12,
    ...     max_iterations=50,
    ... )
    >>> result.solution.flatten(), result.residual < 1e-12
    (tensor([0.0909, 0.6364], dtype=torch.float64), True)
    """
    exact = system(torch.float64)
    solution = torch.zeros_like(right) if begun is None else begun
    image = torch.zeros_like(right) if begun is None else exact(begun)
    lengths = right.norm(dim=0)
    lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    used, before = 0, float("inf")
    for _ in range(_MOST_ROUNDS):
        residual = right - image
        shares = residual.norm(dim=0) / lengths
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
            step = conjugate_gradients(
                system(dtype),
                residual * (shares > tolerance),
                preconditioner=preconditioner,
                tolerance=wanted if dtype == torch.float64 else max(wanted, _COARSE),
                max_iterations=max_iterations - used,
            )
        except ConvergenceError:
            if dtype == torch.float64:
                raise
            dtype = torch.float64
            continue
        used += step.iterations
        solution = solution + step.solution
        image = exact(solution)
    raise ConvergenceError(
        f"conjugate gradients reached a relative residual of {before:.2g} in {used} iterations, "
        f"not {tolerance:.2g}.\nUse a preconditioner of higher rank, more noise, or more "
        "iterations."
    )


def _pass(
    operator: Operator,
    preconditioner: Operator,
    right: Tensor,
    tolerance: float,
    most: int,
) -> tuple[Tensor, int]:
    """One run of the recursion from zero, and the products it took."""
    solution, residual = torch.zeros_like(right), right.clone()
    # Those that are done rest: a step along a direction of zero length is none.
    active = residual.norm(dim=0) > tolerance
    better = applied(preconditioner, residual, "preconditioner")
    direction = better * active
    energy = (residual * better).sum(0)
    _must_be_positive(energy[active], "preconditioner")
    steps = 0
    while steps < most and bool(active.any()):
        image = applied(operator, direction)
        steps += 1
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
        better = applied(preconditioner, residual, "preconditioner")
        after = (residual * better).sum(0)
        _must_be_positive(after[active], "preconditioner")
        turned = torch.where(active, after / energy, torch.zeros_like(energy))
        direction = (better + turned * direction) * active
        energy = after
    return solution, steps


def applied(operator: Operator, columns: Tensor, name: str = "operator") -> Tensor:
    """The image of columns (or of one vector), of their type; an error where it cannot be one."""
    image = operator(columns)
    if not isinstance(image, Tensor) or image.shape != columns.shape:
        made = list(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise SettingsError(
            f"the {name} made {made} of columns {list(columns.shape)}; it must keep the shape: "
            "wrap a product with one vector in columnwise()"
        )
    if not bool(image.isfinite().all()):
        raise ConvergenceError(f"the {name} gave nan or inf; look for it in the network or data")
    return image.detach().to(columns)


def _must_be_positive(values: Tensor, name: str) -> None:
    if not bool((values > 0).all()):
        raise ConvergenceError(
            f"the {name} is not positive definite: a vector times its image is "
            f"{float(values.min()):.2g}.\nAdd noise to the diagonal, or compute the products in "
            "float64: rounding alone can make a nearly singular matrix so."
        )


def _worst(residual: Tensor) -> float:
    return float(residual.norm(dim=0).max()) if residual.shape[1] else 0.0


def _as_columns(right: Tensor, tolerance: float, most: int | None) -> Tensor:
    """The right-hand side, float64 ``[m, k]``, if it and the settings are those of a system."""
    if not (isinstance(tolerance, float) and 0 < tolerance < 1):
        raise SettingsError(f"tolerance lies between 0 and 1, got {shown(tolerance)}")
    if most is not None and not (isinstance(most, int) and most >= 1):
        raise SettingsError(f"max_iterations is a whole number from 1, got {shown(most)}")
    if not isinstance(right, Tensor) or right.ndim not in (1, 2) or not len(right):
        what = list(right.shape) if isinstance(right, Tensor) else type(right).__name__
        raise SettingsError(f"the right-hand side is [m] or [m, k], not {what}")
    columns = right.detach().double().reshape(len(right), -1 if right.numel() else 0)
    if not math.isfinite(float(columns.abs().sum())):
        raise TaskError("the right-hand side holds nan or inf")
    return columns


class Nystrom:
    r"""The preconditioner :math:`P^{-1}` made of columns of :math:`K`.

    Args:
        columns: :math:`C`, ``[m, r]``, without the noise; in the type they were computed in, as
            what counts as rounding in them follows from it.
        rows: Which rows of :math:`K` they are, ``[r]``, all different.
        noise: :math:`\sigma^2 > 0`.

    >>> kernel = torch.diag(torch.tensor([100.0, 10.0, 1.0], dtype=torch.float64))
    >>> half = Nystrom(kernel[:, :2], torch.tensor([0, 1]), noise=1.0)
    >>> half((kernel + torch.eye(3))).diagonal().round(decimals=4)
    tensor([1.0000, 1.0000, 0.1818], dtype=torch.float64)
    """

    def __init__(self, columns: Tensor, rows: Tensor, noise: float) -> None:
        if not (isinstance(noise, float | int) and math.isfinite(noise) and noise > 0):
            raise SettingsError(f"noise is a variance, a number above 0, got {shown(noise)}")
        if columns.ndim != 2 or rows.shape != columns.shape[1:] or not columns.numel():
            raise SettingsError(
                f"columns {list(columns.shape)} and rows {list(rows.shape)} do not belong "
                "together: give [m, r] and the r rows of the kernel that they are"
            )
        if not bool(columns.isfinite().all()):
            raise TaskError("the kernel's columns hold nan or inf")
        if len(set(rows.tolist())) != len(rows):
            raise SettingsError("a row is given twice: choose each at most once")
        eps = torch.finfo(columns.dtype).eps
        columns = columns.detach().double()
        block = columns[rows]
        sizes, directions = torch.linalg.eigh((block + block.T) / 2)
        # What is left of the smallest eigenvalues is rounding, and would be divided by.
        sure = sizes > 10 * len(rows) * eps * sizes.abs().max()
        root = columns @ (directions[:, sure] / sizes[sure].sqrt())
        self._basis, lengths, _ = torch.linalg.svd(root, full_matrices=False)
        self._gains, self._noise = 1 / (lengths.square() + noise), noise
        # With nothing sure left (a kernel of zeros) all of it is noise.
        self._rest = float(self._gains[-1]) if len(self._gains) else 1 / noise

    @property
    def rank(self) -> int:
        """How many directions are known; fewer than columns where those repeat each other."""
        return len(self._gains)

    @property
    def log_determinant(self) -> float:
        r"""Of :math:`P`, nearly that of :math:`A`.

        >>> made = Nystrom(torch.diag(torch.tensor([3.0, 1.0])), torch.arange(2), 1.0)
        >>> round(made.log_determinant, 4)  # log 4 and log 2
        2.0794
        """
        beyond = len(self._basis) - self.rank
        return -float(self._gains.log().sum()) - beyond * math.log(self._rest)

    def __call__(self, columns: Tensor) -> Tensor:
        """Multiply columns ``[m, k]`` by the approximate inverse."""
        return self._times(columns, self._gains, self._rest)

    def half(self, columns: Tensor) -> Tensor:
        r"""Multiply columns ``[m, k]`` by :math:`P^{-1/2}`, the symmetric root."""
        return self._times(columns, self._gains.sqrt(), math.sqrt(self._rest))

    def bound(self, columns: Tensor) -> Tensor:
        r"""At least :math:`b^\top A^{-1} b` of each column ``[m, k]``: ``[k]``.

        The columns of a kernel make less than the kernel, so that
        :math:`A^{-1} \preceq (U \operatorname{diag}(s) U^\top + \sigma^2 I)^{-1}`.
        """
        known = (1 / self._noise - self._gains)[:, None] * (self._basis.T @ columns).square()
        squares: Tensor = columns.square().sum(0) / self._noise - known.sum(0)
        return squares

    def _times(self, columns: Tensor, gains: Tensor, rest: float) -> Tensor:
        inside = self._basis.T @ columns
        known: Tensor = self._basis @ ((gains - rest)[:, None] * inside)
        return known + rest * columns


def nystrom_preconditioner(
    kernel: Operator, size: int, rank: int, noise: float, *, seed: int = 0
) -> Nystrom:
    r"""Draw :math:`r` columns of an operator and make a preconditioner of them.

    Args:
        kernel: Multiplies float64 columns ``[m, k]`` by :math:`K`, **without** the noise.  It is
            asked for ``rank`` products; where columns come cheaper, give them to :class:`Nystrom`.
        size: The number of rows :math:`m`.
        rank: How many columns; no more than ``size`` are taken.
        noise: :math:`\sigma^2`, as it is in the system.
        seed: Of the choice of columns.

    >>> kernel = torch.diag(torch.tensor([100.0, 10.0, 1.0], dtype=torch.float64))
    >>> nystrom_preconditioner(lambda columns: kernel @ columns, 3, rank=2, noise=0.1).rank
    2
    """
    if not (isinstance(rank, int) and rank >= 1) or not (isinstance(size, int) and size >= 1):
        raise SettingsError(
            f"rank and size are whole numbers from 1, got {shown(rank)} and {shown(size)}"
        )
    rows = torch.randperm(size, generator=generator(seed, "nystrom"))[: min(rank, size)]
    chosen = torch.zeros(size, len(rows), dtype=torch.float64)
    chosen[rows, torch.arange(len(rows))] = 1
    return Nystrom(kernel(chosen), rows, noise)
