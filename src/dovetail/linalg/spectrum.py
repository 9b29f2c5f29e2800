r"""Eigenvalues of symmetric operators that are given as functions, by Lanczos.

After :math:`t` products an orthonormal basis :math:`Q` of the Krylov space of a random vector
carries :math:`A` to a tridiagonal :math:`T = Q^\top A Q`, whose extreme eigenvalues approach those
of :math:`A`.  Every new vector is made orthogonal to all before it, twice: without that, rounding
brings back copies of eigenvalues already found.  Memory: :math:`t` vectors; all in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, shown
from dovetail.core.seeds import generator
from dovetail.linalg.conjugate_gradients import ConvergenceError, applied

Product = Callable[[Tensor], Tensor]

_EPS = torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Eigenpairs:
    r"""Eigenvalues ``[k]``, in the order asked for, and their vectors ``[p, k]``, float64.

    ``residuals`` are :math:`\lVert A v - \lambda v\rVert`: some eigenvalue lies that near each.
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    products: int


def top_eigenpairs(
    product: Product,
    size: int,
    k: int = 1,
    *,
    by: Literal["value", "magnitude"] = "value",
    tolerance: float = 1e-6,
    max_products: int | None = None,
    seed: int = 0,
) -> Eigenpairs:
    r"""The ``k`` largest eigenvalues of a symmetric operator and their vectors.

    One random vector sees one direction of each eigenspace, so a repeated eigenvalue would be
    counted once.  What was found is therefore locked, and the rest searched anew until it holds
    nothing larger: about twice the products, and multiplicities are right.

    Args:
        product: Multiplies a float64 vector ``[p]`` by the operator; it may answer in less.
        size: :math:`p`.
        k: How many.
        by: Largest ``"value"``, or largest ``"magnitude"`` for operators with negative ones.
        tolerance: Residuals to reach, relative to the largest eigenvalue found.
        max_products: The most products of one search; ``20 k + 200``, at most ``size``.
        seed: Of the random vectors.

    Raises:
        ConvergenceError: Where the residuals stayed above the tolerance.

    >>> diagonal = torch.tensor([5.0, -7.0, 5.0, 1.0, 2.0])
    >>> top_eigenpairs(lambda v: diagonal * v, 5, 3).values.round(decimals=6)
    tensor([5., 5., 2.], dtype=torch.float64)
    >>> top_eigenpairs(lambda v: diagonal * v, 5, by="magnitude").values.round(decimals=6)
    tensor([-7.], dtype=torch.float64)
    """
    _check(size, k, by, tolerance, max_products)
    most = min(size, max_products or 20 * k + 200)
    nothing = torch.zeros(size, 0, dtype=torch.float64)
    run = _Run(product, size, nothing, generator(seed, "lanczos", 0))
    pairs = _converged(run, k, by, tolerance, most)
    first, products = run.steps, run.steps
    values, vectors, residuals = pairs
    for search in range(1, size - k + 1):
        run = _Run(product, size, vectors, generator(seed, "lanczos", search))
        # As many products as found the first ones would show another like them.
        enough = _key(values[k - 1], by) + tolerance * values.abs().max()
        pairs = _converged(run, 1, by, tolerance, most, first, float(enough), float(values[0]))
        products += run.steps
        if not bool(_key(pairs[0][0], by) > enough):
            break
        values, residuals = torch.cat([values, pairs[0]]), torch.cat([residuals, pairs[2]])
        vectors = torch.cat([vectors, pairs[1]], dim=1)
        order = _key(values, by).argsort(descending=True, stable=True)
        values, vectors, residuals = values[order], vectors[:, order], residuals[order]
    return Eigenpairs(values[:k], vectors[:, :k], residuals[:k], products)


@dataclass(frozen=True)
class SpectralDensity:
    """A spectrum as weighted points: ``nodes`` and ``weights`` ``[t]``, which sum to one."""

    nodes: Tensor
    weights: Tensor

    def mean(self, function: Callable[[Tensor], Tensor]) -> float:
        r"""The estimate of :math:`\operatorname{tr} g(A) / p`.

        >>> density = SpectralDensity(torch.tensor([1.0, 3.0]), torch.tensor([0.5, 0.5]))
        >>> density.mean(torch.square)
        5.0
        """
        return float((function(self.nodes) * self.weights).sum())

    def smoothed(self, at: Tensor, width: float) -> Tensor:
        """The density at some values, every node a normal curve of this standard deviation.

        >>> density = SpectralDensity(torch.zeros(1), torch.ones(1))
        >>> density.smoothed(torch.tensor([0.0]), width=1.0)
        tensor([0.3989])
        """
        if not (isinstance(width, float | int) and math.isfinite(width) and width > 0):
            raise SettingsError(f"width must be a number above 0, got {shown(width)}")
        away = (at[:, None] - self.nodes) / width
        curves = (-away.square() / 2).exp() / (width * math.sqrt(2 * math.pi))
        return (curves * self.weights).sum(-1)


def spectral_density(
    product: Product, size: int, *, steps: int = 50, draws: int = 8, seed: int = 0
) -> SpectralDensity:
    r"""All of the spectrum, roughly, by stochastic Lanczos quadrature.

    For a random unit vector the Ritz values, weighted by the squared first entries of their
    vectors, integrate polynomials up to degree :math:`2t - 1` as the spectrum seen from that vector
    does; over random vectors that averages to the spectrum itself.

    Args:
        product: Multiplies a float64 vector ``[p]`` by a symmetric operator.
        size: :math:`p`.
        steps: Products a random vector, :math:`t`: how finely the spectrum is resolved.
        draws: Random vectors: how well the weights are known.
        seed: Of the vectors.

    >>> diagonal = torch.tensor([1.0, 1.0, 1.0, 3.0])
    >>> density = spectral_density(lambda v: diagonal * v, 4, draws=200)
    >>> abs(density.mean(lambda values: values) - 1.5) < 0.1
    True
    """
    nodes, weights = zip(*_seen(product, size, steps, draws, seed), strict=True)
    return SpectralDensity(torch.cat(nodes), torch.cat(weights) / draws)


@dataclass(frozen=True)
class Estimate:
    """A number from random draws, and its standard error; infinite for a single draw."""

    value: float
    error: float


def trace_of(
    function: Callable[[Tensor], Tensor],
    product: Product,
    size: int,
    *,
    steps: int = 30,
    draws: int = 8,
    seed: int = 0,
) -> Estimate:
    r"""The trace :math:`\operatorname{tr} g(A)`, such as the log of a determinant.

    By stochastic Lanczos quadrature, see :func:`spectral_density`.  The error is that of the draws;
    what too few steps leave out is not in it, and falls with them exponentially.

    Args:
        function: :math:`g`, of a vector of eigenvalues.
        product: Multiplies a float64 vector ``[p]`` by a symmetric operator.
        size: :math:`p`.
        steps: Products a random vector.
        draws: Random vectors.
        seed: Of the vectors.

    >>> found = trace_of(torch.log, lambda v: 3.0 * v, 4)
    >>> round(found.value, 6), found.error < 1e-9  # 4 log 3: all vectors see the same
    (4.394449, True)
    """
    means = torch.stack([function(v) @ w for v, w in _seen(product, size, steps, draws, seed)])
    error = float(means.std()) / math.sqrt(draws) if draws > 1 else math.inf
    return Estimate(size * float(means.mean()), size * error)


def _seen(
    product: Product, size: int, steps: int, draws: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The spectrum as each of some random vectors sees it: nodes and weights that sum to one."""
    if not all(isinstance(n, int) and n >= 1 for n in (size, steps, draws)):
        raise SettingsError(
            f"size, steps and draws are whole numbers from 1, got {size}, {steps}, {draws}"
        )
    for draw in range(draws):
        nothing = torch.zeros(size, 0, dtype=torch.float64)
        run = _Run(product, size, nothing, generator(seed, "density", draw), restart=False)
        while run.steps < min(steps, size) and run.grow():
            pass
        values, vectors = run.ritz()
        yield values, vectors[0].square()


class _Run:
    """A Krylov basis that grows by one vector at a time, orthogonal to some locked vectors.

    Where the space closes, it goes on from a fresh random vector, or says so without ``restart``.
    """

    def __init__(
        self,
        product: Product,
        size: int,
        locked: Tensor,
        source: torch.Generator,
        *,
        restart: bool = True,
    ) -> None:
        self._product, self._locked, self._source, self._restart = product, locked, source, restart
        self._basis = torch.zeros(size, 16, dtype=torch.float64)
        self._diagonal: list[float] = []
        self._beside: list[float] = []
        self._scale = 0.0
        self.steps = 0
        self._next = self._fresh()

    def grow(self) -> bool:
        """One product more; False where the space has closed and there is nothing beyond."""
        if self._next is None:
            return False
        if self.steps == self._basis.shape[1]:
            self._basis = torch.cat([self._basis, torch.zeros_like(self._basis)], dim=1)
        here = self._next
        self._basis[:, self.steps] = here
        self.steps += 1
        image = applied(self._product, here)
        self._diagonal.append(float(here @ image))
        self._scale = max(self._scale, float(image.norm()))
        rest = self._orthogonal(image)
        length = float(rest.norm())
        # A remainder of rounding has no direction of its own.
        full = self.steps + self._locked.shape[1] >= len(image)
        closed = full or length <= 10 * math.sqrt(len(image)) * _EPS * self._scale
        self._beside.append(0.0 if closed else length)
        if not closed:
            self._next = rest / length
        else:
            self._next = self._fresh() if self._restart else None
        return True

    def ritz(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues ``[t]`` and vectors ``[t, t]`` of the tridiagonal matrix."""
        tri = torch.diag(torch.tensor(self._diagonal, dtype=torch.float64))
        off = torch.tensor(self._beside[:-1], dtype=torch.float64)
        tri = tri + torch.diag(off, 1) + torch.diag(off, -1)
        values, vectors = torch.linalg.eigh(tri)
        return values, vectors

    def lifted(self, vectors: Tensor) -> Tensor:
        """Vectors ``[t, k]`` in the basis, back in the space ``[p, k]``."""
        return self._basis[:, : self.steps] @ vectors

    @property
    def last(self) -> float:
        """The length of what the basis does not hold yet."""
        return self._beside[-1]

    def _orthogonal(self, vector: Tensor) -> Tensor:
        basis = self._basis[:, : self.steps]
        for _ in range(2):
            vector = vector - self._locked @ (self._locked.T @ vector)
            vector = vector - basis @ (basis.T @ vector)
        return vector

    def _fresh(self) -> Tensor | None:
        size = len(self._basis)
        if self.steps + self._locked.shape[1] >= size:
            return None
        drawn = torch.randn(size, generator=self._source, dtype=torch.float64)
        direction = self._orthogonal(drawn / drawn.norm())
        direction = self._orthogonal(direction / direction.norm())
        unit: Tensor = direction / direction.norm()
        return unit


def _converged(
    run: _Run,
    k: int,
    by: str,
    tolerance: float,
    most: int,
    first: int = 0,
    enough: float = -math.inf,
    scale: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Grow a run until its ``k`` best Ritz pairs are accurate: values, vectors and residuals.

    Or, after ``first`` products, until they are seen to be not above ``enough``.
    """
    check = k
    while True:
        grown = run.grow()
        # The small eigenproblem is cheap, but not if it is solved at every step.
        if grown and run.steps < min(check, most):
            continue
        check = run.steps + max(1, run.steps // 10)
        values, vectors = run.ritz()
        order = _key(values, by).argsort(descending=True)[:k]
        residuals = run.last * vectors[-1, order].abs()
        size = max(abs(scale), float(values.abs().max()))
        below = run.steps >= first and float(_key(values[order[0]], by)) <= enough
        if below or (len(order) == k and bool((residuals <= tolerance * size).all())):
            return values[order], run.lifted(vectors[:, order]), residuals
        if not grown or run.steps >= most:
            raise ConvergenceError(
                f"after {run.steps} products the residuals of the top {k} eigenvalues are up to "
                f"{float(residuals.max()) / (size or 1):.2g} of the largest, not {tolerance:.2g}; "
                "allow more products, ask for fewer eigenvalues or for a coarser tolerance"
            )


def _key(values: Tensor, by: str) -> Tensor:
    return values.abs() if by == "magnitude" else values


def _check(size: int, k: int, by: str, tolerance: float, most: int | None) -> None:
    if not (isinstance(size, int) and isinstance(k, int) and 1 <= k <= size):
        raise SettingsError(f"k lies between 1 and the size {shown(size)}, got {shown(k)}")
    if by not in ("value", "magnitude"):
        raise SettingsError(f"by is 'value' or 'magnitude', not {shown(by)}")
    if not (isinstance(tolerance, float) and 0 < tolerance < 1):
        raise SettingsError(f"tolerance lies between 0 and 1, got {shown(tolerance)}")
    if most is not None and not (isinstance(most, int) and most >= k):
        raise SettingsError(f"max_products is a whole number of at least k, got {shown(most)}")
