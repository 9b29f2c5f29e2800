r"""One factorisation of a layer's features, and everything that is solved with it.

Least squares with an intercept is least squares on centred features :math:`\tilde Z` (the column of
ones, made orthogonal to the rest).  All a platonic layer needs of it are two maps,

.. math::
    \text{carry}(P) = \tilde Z^+ \tilde Z P, \qquad \text{labels} = \tilde Z^+ \tilde Y ,

because :math:`\tilde Z^+ T = \alpha(\text{carry}(P_Z) + \beta\,\text{labels}\,P_Y)` for
:math:`T = \alpha [\tilde Z \mid \beta \tilde Y] P`: the target :math:`T` is never formed.  With a
penalty, :math:`\tilde Z^+` stands for :math:`(S + \Lambda)^{-1}\tilde Z^\top` with
:math:`S = \tilde Z^\top \tilde Z`.

- :class:`Cholesky` solves with the moments alone: one pass over rows that need not be held.
- :class:`Spectral` knows the spectrum, of the moments or (twice the digits) of the rows themselves;
  singular values below a tolerance are dropped, and a penalty can be chosen by generalised
  cross-validation.
- :class:`Direct` hands the rows to ``torch.linalg.lstsq``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError
from dovetail.linalg.moments import Moments

EPS = torch.finfo(torch.float64).eps
ROUNDED = 16 * EPS
"""What the mean of equal values may differ from them, relatively."""
SMALL = 64
"""Features for which all eigenvalues are found sooner than two are estimated."""

PENALTIES = (0.0, *(10.0 ** (step / 2) for step in range(-28, 5)))
"""What ``"auto"`` tries, in units of the mean eigenvalue; zero is the pseudoinverse."""


class Solver(Protocol):
    """What a layer asks of a factorisation."""

    penalty: float
    labels: Tensor

    @property
    def condition(self) -> float:
        """Largest by smallest eigenvalue of what was solved with."""
        ...

    def carry(self, projection: Tensor) -> Tensor:
        """:math:`\\tilde Z^+ \\tilde Z P` for ``P [d, c]``."""
        ...

    def solve(self, cross: Tensor) -> Tensor:
        """:math:`\\tilde Z^+ Y` of other targets, of which :math:`\\tilde Z^\\top Y` is known."""
        ...

    def leverage(self, centred: Tensor) -> Tensor:
        """:math:`\\tilde z^\\top (S + \\Lambda)^{-1} \\tilde z` of centred rows ``[m, d]``."""
        ...


class Cholesky:
    r"""Ridge by Cholesky: :math:`(S + \lambda I)^{-1}`, from the moments alone.

    The matrix is scaled to a unit diagonal before it is factorised, which loses nothing and bounds
    what rounding does to features of unequal size.  With no penalty, or where rounding makes the
    matrix indefinite, the smallest multiple of the diagonal that lets it be factorised is added.

    >>> rows = torch.tensor([[0.0], [1.0], [2.0]])
    >>> Cholesky(Moments(1, 1).update(rows, rows), penalty=2.0).labels
    tensor([[0.5000]], dtype=torch.float64)
    """

    def __init__(self, moments: Moments, penalty: float = 0.0) -> None:
        self._s = moments.features
        self.penalty = penalty
        changing = _changing(moments)
        diagonal = torch.where(changing, self._s.diagonal(), 1.0) + penalty
        # A feature that never changes carries nothing: its weights are zero.
        self._scale = diagonal.rsqrt() * changing
        scaled = self._s * self._scale[:, None] * self._scale
        scaled.diagonal().fill_(1.0)
        self._scaled = scaled
        self._factor, self.jitter = cholesky_of(scaled)
        self.labels = self.solve(moments.cross)

    @cached_property
    def condition(self) -> float:
        """Largest by smallest eigenvalue of the scaled matrix, estimated."""
        return _condition(self._scaled, self._factor)

    def carry(self, projection: Tensor) -> Tensor:
        r""":math:`(S + \lambda I)^{-1} S P`."""
        return self.solve(self._s @ projection)

    def solve(self, cross: Tensor) -> Tensor:
        """The solution for other right-hand sides ``[d, c]``."""
        scaled = torch.cholesky_solve(cross * self._scale[:, None], self._factor)
        return scaled * self._scale[:, None]

    def leverage(self, centred: Tensor) -> Tensor:
        """How much a row ``[m, d]`` weighs in its own fit, ``[m]``."""
        scaled = (centred * self._scale).T
        turned: Tensor = torch.linalg.solve_triangular(self._factor, scaled, upper=False)
        return turned.square().sum(0)


class Spectral:
    r"""The spectrum :math:`S = V \operatorname{diag}(s) V^\top`, for any penalty and none.

    Eigenvalues up to ``tolerance`` times the largest are taken for zero, as ``pinv`` does.

    >>> rows = torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]])
    >>> Spectral.of_rows(rows.double(), rows[:, :1].double(), penalty=0.0).labels.T
    tensor([[0.5000, 0.5000]], dtype=torch.float64)
    """

    def __init__(
        self,
        eigenvalues: Tensor,
        vectors: Tensor,
        projected: Tensor,
        residual: Tensor,
        rows: float,
        penalty: float | Sequence[float],
        tolerance: float,
    ) -> None:
        """``projected [d, k]`` is :math:`V^\\top C`, ``residual [k]`` what no map explains."""
        s = eigenvalues.clamp(min=0)
        largest = float(s.max()) if len(s) else 0.0
        large = s > tolerance * largest
        self._v, self._s, self._c = vectors[:, large], s[large], projected[large]
        self.condition = largest / float(self._s.min()) if bool(large.any()) else 1.0
        choices = (penalty,) if isinstance(penalty, float | int) else tuple(penalty)
        self._chosen = len(choices) > 1
        self.penalty = float(choices[0])
        if self._chosen:
            scores = self._cross_validated(choices, residual, rows)
            # With no freedom left under any of them, the most cautious one.
            judged = bool(scores.isfinite().any()) if len(self._s) else True
            self.penalty = choices[int(scores.argmin())] if judged else choices[-1]
        if self.penalty and len(self._s):
            self.condition = (largest + self.penalty) / (float(self._s.min()) + self.penalty)
        self.labels = self._v @ (self._c / (self._s + self.penalty)[:, None])

    @classmethod
    def of_rows(
        cls,
        z: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        penalty: float | Sequence[float] | None = None,
        tolerance: float | None = None,
    ) -> Spectral:
        """From rows ``[n, d]`` and targets ``[n, k]``: singular values with all their digits."""
        total = float(len(z)) if weights is None else float(weights.sum())
        d = z.shape[1]
        both = z.new_empty(len(z), d + y.shape[1])
        _centred(z, weights, out=both[:, :d])
        _centred(y, weights, out=both[:, d:])
        # Z = Q [T; 0] and Q^T Y stand side by side in the triangle of both: Q is not needed.
        triangle = torch.linalg.qr(both, mode="r").R
        rank = min(len(z), d)
        u, singular, vh = torch.linalg.svd(triangle[:rank, :d], full_matrices=False)
        turned = u.T @ triangle[:rank, d:]  # U^T Y
        if tolerance is None:
            tolerance = (max(z.shape) * EPS) ** 2
        dropped = (
            singular.square() <= tolerance * singular.square().amax() if rank else singular > 0
        )
        residual = triangle[rank:, d:].square().sum(0) + turned[dropped].square().sum(0)
        return cls(
            singular.square(),
            vh.T,
            singular[:, None] * turned,
            residual,
            total,
            _penalties(singular.square(), total) if penalty is None else penalty,
            tolerance,
        )

    @classmethod
    def of_moments(
        cls,
        moments: Moments,
        penalty: float | Sequence[float] | None = None,
        tolerance: float | None = None,
    ) -> Spectral:
        """From moments: half the digits of the singular values, but no row is needed."""
        changing = _changing(moments).to(moments.features)
        s, v = torch.linalg.eigh(moments.features * changing[:, None] * changing)
        c = v.T @ moments.cross
        if tolerance is None:
            tolerance = max(1, len(s)) * EPS
        large = s > tolerance * (float(s.max()) if len(s) else 0.0)
        explained = (c[large].square() / s[large, None]).sum(0)
        residual = (moments.targets.diagonal() - explained).clamp(min=0)
        choices = _penalties(s, moments.weight) if penalty is None else penalty
        return cls(s, v, c, residual, moments.weight, choices, tolerance)

    @property
    def first(self) -> Tensor | None:
        """The principal direction of the features ``[d]``, if they have any."""
        return self._v[:, self._s.argmax()] if len(self._s) else None

    def carry(self, projection: Tensor) -> Tensor:
        r""":math:`V \operatorname{diag}(s / (s + \lambda)) V^\top P`.

        A penalty chosen by cross-validation is about the labels, which are noisy or out of reach;
        what is carried along is neither, and stays whole: :math:`V V^\top P`.
        """
        turned = self._v.T @ projection
        if not self._chosen:
            turned *= (self._s / (self._s + self.penalty))[:, None]
        return self._v @ turned

    def solve(self, cross: Tensor) -> Tensor:
        """The solution for other right-hand sides ``[d, c]``."""
        return self._v @ ((self._v.T @ cross) / (self._s + self.penalty)[:, None])

    def leverage(self, centred: Tensor) -> Tensor:
        """How much a row ``[m, d]`` weighs in its own fit, ``[m]``."""
        return (centred @ self._v).square() @ (self._s + self.penalty).reciprocal()

    def _cross_validated(self, penalties: Sequence[float], residual: Tensor, rows: float) -> Tensor:
        r"""Generalised cross-validation :math:`\sum_k \lVert r_k\rVert^2 / (1 - \nu/n)^2`, ``[p]``.

        :math:`\nu = 1 + \sum_j s_j/(s_j + \lambda)` counts what is fitted, the intercept included.
        """
        several = torch.tensor(penalties, dtype=torch.float64, device=self._s.device)
        share = self._s[:, None] / (self._s[:, None] + several)  # [d, p]
        power = (self._c.square().sum(1) / self._s)[:, None]  # what each direction explains
        errors = residual.sum() + (power * (1 - share).square()).sum(0)
        free = 1 - (1 + share.sum(0)) / rows
        scores = errors / free.clamp(min=1e-9).square()
        return torch.where(free > 1e-9, scores, torch.full_like(scores, math.inf))


class Direct:
    r"""``torch.linalg.lstsq`` on the rows: :math:`\min_W \lVert \tilde Z W - T\rVert`.

    A penalty stands below the rows as :math:`\sqrt\lambda I`, with nothing as its target.

    >>> rows = torch.tensor([[0.0], [1.0], [2.0]]).double()
    >>> Direct(rows, 3 * rows).labels
    tensor([[3.0000]], dtype=torch.float64)
    """

    def __init__(
        self,
        z: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
        penalty: float = 0.0,
        driver: str = "gelsd",
    ) -> None:
        self._driver, self.penalty = driver, penalty
        self._z = _centred(z, weights)
        below = math.sqrt(penalty) * torch.eye(z.shape[1] if penalty else 0, z.shape[1]).to(z)
        self._rows, self._below = torch.cat([self._z, below]), len(below)
        self.labels, singular = self._solve(_centred(y, weights))
        largest = float(singular.max()) if len(singular) else 0.0
        large = singular[singular > max(z.shape) * EPS * largest]
        self.condition = (largest / float(large.min())) ** 2 if len(large) else 1.0

    def carry(self, projection: Tensor) -> Tensor:
        """The least squares solution for targets ``Z P``."""
        return self._solve(self._z @ projection)[0]

    def solve(self, cross: Tensor) -> Tensor:
        """Refused: what was summed over the rows is not the rows."""
        raise SettingsError("ema does not go with solver='lstsq'; say 'auto', 'pinv' or 'eigen'")

    def leverage(self, centred: Tensor) -> Tensor:
        """How much a row ``[m, d]`` weighs in its own fit, ``[m]``."""
        turned: Tensor = centred @ torch.linalg.pinv(self._rows)
        return turned.square().sum(1)

    def _solve(self, right: Tensor) -> tuple[Tensor, Tensor]:
        padded = torch.cat([right, right.new_zeros(self._below, right.shape[1])])
        solution = torch.linalg.lstsq(self._rows, padded, driver=self._driver)
        return solution.solution, solution.singular_values


def unexplained(moments: Moments, weights: Tensor) -> float:
    r"""LSD of a linear map: :math:`\operatorname{tr}(R - 2 W^\top C + W^\top S W) / n`.

    >>> rows = torch.tensor([[0.0], [2.0]])
    >>> unexplained(Moments(1, 1).update(rows, rows), torch.zeros(1, 1).double())
    1.0
    """
    s, c, r = moments.features, moments.cross, moments.targets
    residual = r.trace() - 2 * (weights * c).sum() + (weights * (s @ weights)).sum()
    return max(0.0, float(residual)) / max(moments.weight, 1e-300)


def least_distances(several: Sequence[Moments]) -> list[float]:
    r"""LSD of the best linear map, :math:`\operatorname{tr}(R - C^\top S^{-1} C) / n`, for each.

    All are factorised in one call: between small matrices calls take longer than sums.

    >>> rows = torch.tensor([[0.0], [2.0]])
    >>> known, unknown = Moments(1, 1).update(rows, rows), Moments(1, 1).update(0 * rows, rows)
    >>> [round(distance, 9) for distance in least_distances([known, unknown])]
    [0.0, 1.0]
    """
    if not several:
        return []
    d = several[0].d
    features = torch.stack([moments.features for moments in several])
    sizes = features.diagonal(dim1=1, dim2=2).clamp(min=0).rsqrt()
    changing = torch.stack([_changing(moments) for moments in several])
    scale = torch.where(changing, sizes, 0.0)
    scaled = features * scale[:, :, None] * scale[:, None]
    scaled.diagonal(dim1=1, dim2=2).fill_(1.0)
    factors, failed = torch.linalg.cholesky_ex(scaled)
    pivots = factors.diagonal(dim1=1, dim2=2).square()
    solid = (failed == 0) & (pivots > d * EPS).all(1) & pivots.isfinite().all(1)
    cross = torch.stack([moments.cross for moments in several]) * scale[:, :, None]
    explained = torch.linalg.solve_triangular(factors, cross, upper=False).square().sum((1, 2))
    residuals = torch.stack([moments.targets.trace() for moments in several]) - explained
    return [
        max(0.0, residual) / max(moments.weight, 1e-300)
        if sure
        else unexplained(moments, Cholesky(moments).labels)
        for moments, residual, sure in zip(several, residuals.tolist(), solid.tolist(), strict=True)
    ]


def _penalties(eigenvalues: Tensor, rows: float) -> tuple[float, ...]:
    few = max(1.0, min(rows - 1, len(eigenvalues)))
    scale = float(eigenvalues.clamp(min=0).sum()) / few
    return tuple(step * scale for step in PENALTIES) if scale > 0 else (0.0,)


def _changing(moments: Moments) -> Tensor:
    """Which features vary by more than their mean is rounded ``[d]``."""
    least = moments.weight * (ROUNDED * moments.feature_mean).square()
    return moments.features.diagonal() > least


def _centred(values: Tensor, weights: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Rows without their (weighted) mean, and times the root of their weight.

    Where nothing is left but the rounding of the mean, it is made zero.
    """
    mean = values.mean(0) if weights is None else weights @ values / weights.sum()
    centred = torch.sub(values, mean, out=out)
    alike = torch.maximum(centred.amax(0), -centred.amin(0)) <= ROUNDED * mean.abs()
    if bool(alike.any()):
        centred[:, alike] = 0.0
    return centred if weights is None else centred.mul_(weights.sqrt()[:, None])


def cholesky_of(matrix: Tensor) -> tuple[Tensor, float]:
    """The factor of a matrix of unit diagonal, and what had to be added to the diagonal for it.

    The matrix is changed by as much.

    >>> cholesky_of(torch.eye(1).double())
    (tensor([[1.]], dtype=torch.float64), 0.0)
    """
    jitter = 0.0
    for _ in range(12):
        factor, failed = torch.linalg.cholesky_ex(matrix)
        pivots = factor.diagonal().square()
        # A pivot as small as the rounding is none: what it divides would be noise.
        if not int(failed) and bool((pivots > len(matrix) * EPS).all() & pivots.isfinite().all()):
            return factor, jitter
        more = 100 * len(matrix) * EPS if jitter == 0 else 9 * jitter
        matrix.diagonal().add_(more)
        jitter += more
    raise SettingsError(
        "the features are not finite, or too far from it for float64; scale the inputs, or lower "
        "target_scale or label_weight"
    )


def _condition(matrix: Tensor, factor: Tensor, steps: int = 5, starts: int = 4) -> float:
    """Largest by smallest eigenvalue, by subspace iteration with the matrix and its inverse."""
    d = len(matrix)
    if d == 0:
        return 1.0
    if d <= SMALL:
        values = torch.linalg.eigvalsh(matrix)
        return float(values[-1] / values[0].clamp(min=EPS * EPS))
    # Fixed starts, so that a figure can be repeated; several, so that none is blind to a direction.
    draw = torch.Generator().manual_seed(0)
    up = down = torch.randn(d, min(d, starts), generator=draw, dtype=matrix.dtype).to(matrix.device)
    for _ in range(steps):
        up = torch.linalg.qr(matrix @ up).Q
        down = torch.linalg.qr(torch.cholesky_solve(down, factor)).Q
    largest = torch.linalg.matrix_norm(matrix @ up, 2)
    return float(largest * torch.linalg.matrix_norm(torch.cholesky_solve(down, factor), 2))
