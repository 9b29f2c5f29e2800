r"""The posterior of a linear model by conjugate gradients: for many rows and many parameters.

With :math:`K = J S J^\top` and noise variances :math:`N` the dual weights solve

.. math::
    (K + N)\, a = r
    \quad\Longleftrightarrow\quad
    B\, N^{1/2} a = N^{-1/2} r, \qquad B = I + N^{-1/2} K N^{-1/2} ,

and :math:`\bar w = S J^\top a`.  A product with :math:`K` is one with :math:`J^\top` and one with
:math:`J`, :math:`4 n o p` operations; neither matrix is formed.  Exact columns of :math:`K` at some
random landmarks make the preconditioner, without which nothing converges
(:mod:`dovetail.linalg.conjugate_gradients`).  The residual is measured in the norm of the second
form; what does not reach the tolerance is an error, never an answer.

Variances, :math:`K_{**} - C^\top B^{-1} C` with :math:`C = N^{-1/2} K_{x*}`, need solutions of
:math:`B V = C`.  Those found are kept (:mod:`dovetail.linalg.recycled`): what they do not hold of
new columns is measured, and another system solved only where it is above the tolerance.  An inexact
solution never claims too much certainty, and its error is the square of the residual's.  Much
cheaper, and an upper bound as well, is to condition on the landmarks alone: more data never raise
the variance of a Gaussian.

The evidence needs :math:`\log |B| = \log |P| + \operatorname{tr} \log P^{-1/2} B P^{-1/2}` with the
preconditioner :math:`P`, whose determinant is known; the trace is small, and estimated by
stochastic Lanczos quadrature (:func:`dovetail.linalg.spectrum.trace_of`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from dovetail.adapt.posterior import (
    FunctionPosterior,
    as_observations,
    condition_on_functions,
    scaled,
    without_negatives,
)
from dovetail.core.errors import ContractError, SettingsError, shown
from dovetail.core.seeds import generator
from dovetail.linalg.conjugate_gradients import Nystrom, Operator, Refined, columnwise, refined
from dovetail.linalg.recycled import Recycled
from dovetail.linalg.spectrum import Estimate, trace_of
from dovetail.linalg.tangent import TangentFeatures

Rank: TypeAlias = int | Literal["auto"]
"""How many columns of the kernel the preconditioner is made of."""

STEPS, DRAWS = 30, 8
"""Products for each random vector, and random vectors, that a determinant is estimated by."""


@dataclass(frozen=True)
class _How:
    """The settings of a solution, for the next one."""

    tolerance: float
    rank: Rank
    max_iterations: int
    seed: int
    dtype: torch.dtype
    progress: Callable[[str], None] | None


@dataclass(frozen=True, eq=False)
class IterativePosterior:
    """Where the functions of a linear model are after some data, to a tolerance.

    Attributes:
        features: Of the data, one block for each time that data came.
        scales: The prior's variance by parameter name; one where a name is left out.
        residual: Targets less the prior's mean, ``[n, o]``.
        noise: Variances ``[n, o]``.
        dual: :math:`a`, ``[n, o]``.
        weights: The mean :math:`\\bar w`, flat ``[p]``.
        landmarks: The samples of the preconditioner, ``[k]``.
        preconditioner: Nearly the inverse of :math:`B`.
        diagnostics: ``residual``, as measured, ``iterations``, ``rank`` and what it took.
    """

    features: tuple[TangentFeatures, ...]
    scales: Mapping[str, float]
    residual: Tensor
    noise: Tensor
    dual: Tensor
    weights: Tensor
    landmarks: Tensor
    preconditioner: Nystrom
    how: _How
    diagnostics: Mapping[str, Any]

    @cached_property
    def log_evidence(self) -> float:
        r"""The log density of the data under the prior, estimated: some hundred products.

        The quadratic form is :math:`r^\top v + v^\top \rho + \rho^\top B^{-1} \rho` with whitened
        :math:`r`, their solution :math:`v`, what it leaves, :math:`\rho`, and :math:`P^{-1}` for
        the last inverse.
        """
        root = self.noise.rsqrt()
        right, solution = ((root * self.residual).reshape(-1, 1), (self.dual / root).reshape(-1, 1))
        left = right - self._system(torch.float64)(solution)
        form = (right * solution).sum() + (left * (solution + self.preconditioner(left))).sum()
        constants = self.noise.log().sum() + right.numel() * math.log(2 * math.pi)
        determinant = self.preconditioner.log_determinant + self._determinant.value
        return -0.5 * (float(form + constants) + determinant)

    @property
    def log_evidence_error(self) -> float:
        """The standard error of :attr:`log_evidence`, by its random vectors."""
        return 0.5 * self._determinant.error

    def shift(self, new: TangentFeatures) -> Tensor:
        r"""What the data add to the mean, :math:`J_* \bar w`, ``[m, o]``."""
        return new.push(self.weights)

    def variance(self, new: TangentFeatures, *, exact: bool = True) -> Tensor:
        r"""The covariance among the outputs of each new input, ``[m, o, o]``, without noise.

        Args:
            new: Features of the new inputs.
            exact: To the tolerance and never too small: above the exact one by at most the
                tolerance times itself and the least noise.  Outputs that solutions so far do not
                hold so well are solved for, each of which costs about what the mean did; the
                solutions are kept, so that inputs like those before need products with them only.
                Else an upper bound at once: the variance given only the landmarks.
        """
        if not exact:
            return self.from_landmarks.variance(new)
        own = new.own(self.scales)
        root = self._explained(new, own)
        root = root.reshape(len(root), len(new), new.width).permute(1, 2, 0)
        return without_negatives(own - root @ root.transpose(1, 2))

    def covariance(self, new: TangentFeatures) -> Tensor:
        """The joint covariance of all new inputs, ``[m, o, m, o]``, without noise."""
        m, o = len(new), new.width
        root = self._explained(new, new.own(self.scales))
        joint = new.gram(scales=self.scales).reshape(m * o, m * o) - root.T @ root
        return joint.reshape(m, o, m, o)

    def updated(self, new: TangentFeatures, residual: Tensor, noise: Tensor) -> IterativePosterior:
        """The posterior with more data, to the same tolerance, begun at the solution so far.

        Args:
            new: Features of the new inputs.
            residual: Their targets less the prior's mean, ``[m, o]``.
            noise: Variances ``[m, o]``.
        """
        residual, noise = as_observations(new, residual, noise, self.scales)
        self._refuse_others(new)
        return _conditioned(
            (*self.features, new),
            torch.cat([self.residual, residual]),
            torch.cat([self.noise, noise]),
            self.scales,
            self.how,
            torch.cat([self.dual, torch.zeros_like(residual)]),
        )

    @cached_property
    def from_landmarks(self) -> FunctionPosterior:
        """The posterior of the landmarks alone."""
        features = _some(self.features, self.landmarks)
        residual, noise = self.residual[self.landmarks], self.noise[self.landmarks]
        return condition_on_functions(features, residual, noise, self.scales)

    @cached_property
    def solutions(self) -> Recycled:
        """What was solved for variances so far, as many directions as the preconditioner has."""

        def solve(right: Tensor, near: float) -> Refined:
            how = replace(self.how, tolerance=near)
            return _solution(self._system, right, self.preconditioner, how)

        size, room = self.noise.numel(), max(64, self.preconditioner.rank)
        return Recycled(solve, self.preconditioner.bound, size, self.how.tolerance, room=room)

    @cached_property
    def _determinant(self) -> Estimate:
        r"""What :math:`\log |B|` has beyond the preconditioner's."""
        system = self._system(self.how.dtype)

        def product(vector: Tensor) -> Tensor:
            inside = self.preconditioner.half(vector[:, None])
            return self.preconditioner.half(system(inside))[:, 0]

        size, seed = self.noise.numel(), self.how.seed
        return trace_of(_log, product, size, steps=STEPS, draws=DRAWS, seed=seed)

    def _system(self, dtype: torch.dtype) -> Operator:
        return _system(self.features, self.noise.rsqrt(), self.scales)(dtype)

    def _explained(self, new: TangentFeatures, own: Tensor) -> Tensor:
        r""":math:`E` with :math:`E^\top E` nearly :math:`C^\top B^{-1} C`, ``[k, m o]``."""
        self._refuse_others(new)
        columns = _whitened_columns(self.features, self.noise.rsqrt(), new, self.scales)
        wholes = own.diagonal(dim1=1, dim2=2).flatten() + self.noise.min()
        return self.solutions.root(columns, wholes)

    def _refuse_others(self, new: TangentFeatures) -> None:
        mine = self.features[0]
        if (new.names, new.width) != (mine.names, mine.width):
            raise ContractError(
                f"the features are of {new.size} parameters and {new.width} outputs, the "
                f"posterior of {mine.size} and {mine.width}; take them of the same network with "
                "the same params="
            )


def condition_iteratively(
    features: TangentFeatures,
    residual: Tensor,
    noise: Tensor,
    scales: Mapping[str, float],
    *,
    tolerance: float = 1e-2,
    rank: Rank = "auto",
    max_iterations: int = 200,
    dtype: torch.dtype | None = None,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> IterativePosterior:
    r"""Condition on Gaussian data by preconditioned conjugate gradients.

    Args:
        features: Of the inputs; give them ``memory`` for all, or each product computes them again.
        residual: Targets less the prior's mean, ``[n, o]``.
        noise: Variances ``[n, o]``, above zero.
        scales: The prior's variance by parameter name; one where a name is left out.
        tolerance: The relative residual to reach, between 0 and 1.
        rank: Columns of the preconditioner, see :func:`rank_for`; more need fewer iterations, and
            ``8 n o`` bytes each, four times over while it is made.
        max_iterations: Products allowed.
        dtype: In which products are taken to begin with; the network's own unless said.  Residuals
            are float64 in any case (:func:`dovetail.linalg.conjugate_gradients.refined`).
        seed: Of the choice of landmarks.
        progress: Called with a few words after every product.

    Raises:
        ConvergenceError: Where the tolerance was not reached.

    >>> x = torch.tensor([[1.0], [2.0]])
    >>> features = TangentFeatures(torch.nn.Linear(1, 1, bias=False), x)
    >>> fit = condition_iteratively(features, x, torch.full((2, 1), 0.5), {"weight": 0.1})
    >>> fit.weights.round(decimals=4), fit.diagnostics["residual"] < 0.01
    (tensor([0.5000], dtype=torch.float64), True)
    """
    residual, noise = as_observations(features, residual, noise, scales)
    if not (isinstance(tolerance, float) and 0 < tolerance < 1):
        raise SettingsError(f"tolerance lies between 0 and 1, got {shown(tolerance)}")
    if dtype is None:
        double = all(p.dtype == torch.float64 for p in features.model.parameters())
        dtype = torch.float64 if double else torch.float32
    if dtype not in (torch.float32, torch.float64):
        raise SettingsError(f"products are taken in float32 or float64, not {shown(dtype)}")
    how = _How(tolerance, rank, max_iterations, seed, dtype, progress)
    return _conditioned((features,), residual, noise, dict(scales), how, None)


def rank_for(rows: int, parameters: int, rank: Rank = "auto") -> int:
    r"""The rank that is used for a kernel of so many rows.

    ``"auto"`` stops where making the preconditioner, :math:`\propto n o\, r^2`, costs as much as
    a few products, :math:`\propto n o\, p`; and at 512.

    >>> rank_for(100_000, 803_601), rank_for(100_000, 10_000), rank_for(40, 10_000)
    (512, 160, 40)
    """
    if rank == "auto":
        rank = min(512, max(128, round(1.6 * parameters**0.5)))
    if isinstance(rank, bool) or not isinstance(rank, int) or rank < 1:
        raise SettingsError(f'rank is "auto" or a number of columns from 1, got {shown(rank)}')
    return min(rank, rows)


def _conditioned(
    features: tuple[TangentFeatures, ...],
    residual: Tensor,
    noise: Tensor,
    scales: Mapping[str, float],
    how: _How,
    begun: Tensor | None,
) -> IterativePosterior:
    """Solve for the dual, from the one that was ``begun [n, o]`` if there is one."""
    began = time.perf_counter()
    n, o = residual.shape
    root = noise.rsqrt()
    rank = rank_for(n * o, features[0].size, how.rank)
    samples = -(-rank // o)  # each with all its outputs
    landmarks = torch.randperm(n, generator=generator(how.seed, "landmarks"))[:samples]
    columns = _whitened_columns(features, root, _some(features, landmarks), scales)
    columns *= root[landmarks].flatten()
    rows = (landmarks[:, None] * o + torch.arange(o)).flatten()
    preconditioner = Nystrom(columns, rows, 1.0)
    del columns
    right = (root * residual).reshape(-1, 1)
    start = None if begun is None else (begun / root).reshape(-1, 1)
    system = _system(features, root, scales, how.progress)
    result = _solution(system, right, preconditioner, how, start)
    dual = result.solution.reshape(n, o) * root
    facts = {
        "method": "cg",
        "rows": n * o,
        "residual": result.residual,
        "iterations": result.iterations,
        "rank": preconditioner.rank,
        "bytes": n * o * preconditioner.rank * 8,
        "seconds": time.perf_counter() - began,
    }
    weights = _weights(features, dual, scales, torch.float64)
    return IterativePosterior(
        features,
        scales,
        residual,
        noise,
        dual,
        weights,
        landmarks,
        preconditioner,
        replace(how, progress=None),
        facts,
    )


def _system(
    features: tuple[TangentFeatures, ...],
    root: Tensor,
    scales: Mapping[str, float],
    progress: Callable[[str], None] | None = None,
) -> Callable[[torch.dtype], Operator]:
    r"""Multiplication by :math:`B`; ``root`` is :math:`N^{-1/2}` ``[n, o]``."""
    products = count(1)

    def system(dtype: torch.dtype) -> Operator:
        def product(column: Tensor) -> Tensor:
            weights = _weights(features, column.reshape(root.shape) * root, scales, dtype)
            moved = torch.cat([block.push(weights, dtype) for block in features])
            if progress is not None:
                progress(f"product {next(products)}")
            return column + (root * moved).flatten()

        return columnwise(product)

    return system


def _solution(
    system: Callable[[torch.dtype], Operator],
    right: Tensor,
    preconditioner: Nystrom,
    how: _How,
    begun: Tensor | None = None,
) -> Refined:
    r"""Solve :math:`B V = C`, columns ``[n o, k]``."""
    return refined(
        system,
        right,
        preconditioner=preconditioner,
        tolerance=how.tolerance,
        max_iterations=how.max_iterations,
        dtype=how.dtype,
        begun=begun,
    )


def _weights(
    features: tuple[TangentFeatures, ...],
    dual: Tensor,
    scales: Mapping[str, float],
    dtype: torch.dtype,
) -> Tensor:
    r""":math:`S J^\top a`, ``[p]``."""
    parts = torch.split(dual, [len(block) for block in features])
    total = torch.zeros(features[0].size, dtype=torch.float64, device=dual.device)
    for block, part in zip(features, parts, strict=True):
        total += block.pull(part, dtype)
    return scaled(total, features[0].shapes, scales)


def _whitened_columns(
    features: tuple[TangentFeatures, ...],
    root: Tensor,
    new: TangentFeatures,
    scales: Mapping[str, float],
) -> Tensor:
    r""":math:`N^{-1/2} K_{x*}`, ``[n o, m o]``."""
    wide = len(new) * new.width
    parts = [block.gram(new, scales=scales).reshape(-1, wide) for block in features]
    columns = torch.cat(parts) if len(parts) > 1 else parts[0]
    return columns.mul_(root.reshape(-1, 1))


def _some(features: tuple[TangentFeatures, ...], samples: Tensor) -> TangentFeatures:
    """Features of some of the inputs, counted through all blocks, in the order asked for."""
    ends = torch.tensor([len(block) for block in features]).cumsum(0)
    of = torch.searchsorted(ends, samples, right=True).tolist()
    starts = [0, *ends.tolist()]
    places = zip(of, samples.tolist(), strict=True)
    inputs = torch.stack([features[i].x[at - starts[i]] for i, at in places])
    return TangentFeatures(features[0].model, inputs, list(features[0].names))


def _log(values: Tensor) -> Tensor:
    return values.clamp(min=torch.finfo(values.dtype).tiny).log()
