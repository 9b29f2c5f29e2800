r"""The posterior of a linear model in function space, exact, float64.

The model is :math:`g(x) = m(x) + J(x) w` with :math:`w \sim \mathcal N(0, S)`, a Gaussian process
of kernel :math:`K = J S J^\top`.  Data enter as sites: each sample has a precision matrix
:math:`W_i = R_i R_i^\top` over its :math:`o` outputs (:math:`R = \sigma^{-1}` for Gaussian noise).
With all of them

.. math::
    B = I + R^\top K R = L L^\top, \qquad
    \operatorname{cov} g(x_*) = K_{**} - K_{*x} R\, B^{-1} R^\top K_{x*} ,

and the mean is :math:`m(x_*) + K_{*x} a = m(x_*) + J(x_*)\, \bar w` with
:math:`\bar w = S J^\top a`.  The eigenvalues of :math:`B` are at least one, so the factor exists
however singular :math:`K` is.  (The source prints a :math:`\sigma^2` in front of the variance; it
does not belong there.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError, nearest, shown
from dovetail.linalg.tangent import TangentFeatures

MOST = 1e13
"""How much larger than the noise the prior may be; beyond, sums lose the digits that matter."""


def whitened(root: Tensor, columns: Tensor) -> Tensor:
    r"""Multiply columns ``[n o, m]`` by :math:`R^\top`; ``root`` is ``[n, o, o]`` or ``[n, o]``.

    >>> whitened(torch.tensor([[2.0, 3.0]]), torch.ones(2, 1)).flatten()
    tensor([2., 3.])
    """
    if root.ndim == 2:
        return root.reshape(-1, 1) * columns
    n, o, _ = root.shape
    return (root.transpose(1, 2) @ columns.reshape(n, o, -1)).reshape(columns.shape)


def factor(kernel: Tensor, root: Tensor) -> Tensor:
    r"""The lower Cholesky factor of :math:`B = I + R^\top K R`, of a kernel ``[n o, n o]``.

    >>> factor(torch.eye(2).double() * 3, torch.ones(2, 1).double())
    tensor([[2., 0.],
            [0., 2.]], dtype=torch.float64)
    """
    between = whitened(root, whitened(root, kernel).T)
    between.diagonal().add_(1.0)
    return _root_of(between)


@dataclass(frozen=True, eq=False)
class FunctionPosterior:
    """Where the functions of a linear model are after some data.

    New inputs come as features of their own; give some hundreds at a time, since covariances with
    all the data are held for them.

    Attributes:
        features: Of the data, one block for each time that data came.
        scales: The prior's variance by parameter name; one where a name is left out.
        root: :math:`R` of the sites, ``[n, o]`` or ``[n, o, o]``.
        lower: The factor :math:`L`, ``[n o, n o]``.
        dual: :math:`a`, ``[n, o]``.
        log_evidence: Of the data under the prior; Laplace's for other than Gaussian noise.
        residual: For Gaussian noise, targets less the prior's mean, ``[n, o]``.
        kernel: For other noise, the prior's covariance ``[n o, n o]``: another mode needs it.
        centred: Whether features are taken from their mean over the data, see :func:`centred`; a
            constant of each output, of prior variance one, then stands for what they share.
        counts: How much each of the data counts ``[n]``; as much as any other unless said.
        diagnostics: How it was solved.
    """

    features: tuple[TangentFeatures, ...]
    scales: Mapping[str, float]
    root: Tensor
    lower: Tensor
    dual: Tensor
    log_evidence: float
    residual: Tensor | None = None
    kernel: Tensor | None = None
    centred: bool = False
    counts: Tensor | None = None
    diagnostics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weights(self) -> Tensor:
        r"""The mean :math:`\bar w = S J^\top a`, flat ``[p]``."""
        dual = self.dual
        if self.centred:
            share = 1 / len(dual) if self.counts is None else self.counts / self.counts.sum()
            dual = dual - torch.as_tensor(share).reshape(-1, 1) * dual.sum(0)
        duals = torch.split(dual, [len(block) for block in self.features])
        asked = [block.pull(dual) for block, dual in zip(self.features, duals, strict=True)]
        return scaled(torch.stack(asked).sum(0), self.features[0].shapes, self.scales)

    @property
    def constant(self) -> Tensor:
        r"""What :math:`J(x)\,\bar w` lacks of the mean's shift ``[o]``: nothing, unless centred."""
        if not self.centred:
            return torch.zeros(self.dual.shape[1], dtype=torch.float64)
        weights = self.weights
        moved = torch.cat([block.push(weights) for block in self.features])
        return self.dual.sum(0) - mean_over(moved, 0, self.counts)

    def shift(self, new: TangentFeatures) -> Tensor:
        r"""What the data add to the mean, :math:`K_{*x} a`, ``[m, o]``."""
        return (self.cross(new) @ self.dual.flatten()).reshape(len(new), new.width)

    def variance(self, new: TangentFeatures) -> Tensor:
        """The covariance among the outputs of each new input, ``[m, o, o]``, without noise."""
        raw = self.raw_cross(new)
        across = self._from_centre(raw)
        explained = self._explained(across).reshape(len(self.lower), len(new), new.width)
        columns = explained.permute(1, 2, 0)
        own = new.own(self.scales)
        if self.centred:
            middle = mean_over(raw.reshape(len(new), new.width, -1, new.width), 2, self.counts)
            own = own - middle - middle.transpose(1, 2) + self._middle[1]
            own.diagonal(dim1=1, dim2=2).add_(1.0)
        return without_negatives(own - columns @ columns.transpose(1, 2))

    def covariance(self, new: TangentFeatures) -> Tensor:
        """The joint covariance of all new inputs, ``[m, o, m, o]``, without noise."""
        m, o = len(new), new.width
        raw = self.raw_cross(new)
        explained = self._explained(self._from_centre(raw))
        prior = new.gram(scales=self.scales)
        if self.centred:
            middle = mean_over(raw.reshape(m, o, -1, o), 2, self.counts)
            prior = prior - middle[:, :, None, :] - middle.permute(2, 0, 1)[None]
            prior = prior + (self._middle[1] + torch.eye(o, dtype=prior.dtype))[:, None, :]
        joint = prior.reshape(m * o, m * o) - explained.T @ explained
        return ((joint + joint.T) / 2).reshape(m, o, m, o)

    def updated(self, new: TangentFeatures, residual: Tensor, noise: Tensor) -> FunctionPosterior:
        """The posterior with more data of Gaussian noise: rows are appended to the factor.

        Args:
            new: Features of the new inputs.
            residual: Their targets less the prior's mean, ``[m, o]``.
            noise: Variances ``[m, o]``.
        """
        assert self.residual is not None, "only Gaussian data are appended"
        lower = extended(self.lower, self.root, self.cross(new), self._prior(new), noise.rsqrt())
        root = torch.cat([self.root, noise.rsqrt()])
        whole = torch.cat([self.residual, residual])
        dual, log_evidence = _solved(lower, root, whole)
        return replace(
            self,
            features=(*self.features, new),
            root=root,
            lower=lower,
            dual=dual,
            log_evidence=log_evidence,
            residual=whole,
            diagnostics=_facts(lower, str(self.diagnostics.get("method", "function"))),
        )

    def cross(self, new: TangentFeatures) -> Tensor:
        r"""The prior's covariance of new inputs with the data, ``[m o, n o]``."""
        return self._from_centre(self.raw_cross(new))

    def raw_cross(self, new: TangentFeatures) -> Tensor:
        """Covariances ``[m o, n o]`` of new inputs with the data; features are not centred."""
        rows = len(new) * new.width
        parts = [new.gram(block, scales=self.scales).reshape(rows, -1) for block in self.features]
        return torch.cat(parts, 1) if len(parts) > 1 else parts[0]

    @property
    def _middle(self) -> tuple[Tensor, Tensor]:
        """Covariances of the mean feature with each datum ``[o, n, o]`` and itself ``[o, o]``."""
        assert self.kernel is not None, "a centred posterior keeps its kernel"
        n, o = self.dual.shape
        with_each = mean_over(self.kernel.reshape(n, o, n, o), 0, self.counts)
        return with_each, mean_over(with_each, 1, self.counts)

    def _from_centre(self, across: Tensor) -> Tensor:
        """Covariances with the data ``[m o, n o]``, of features less their mean over the data."""
        if not self.centred:
            return across
        n, o = self.dual.shape
        wide = across.reshape(-1, o, n, o)
        with_each, itself = self._middle
        itself = itself + torch.eye(o, dtype=itself.dtype)
        middle = mean_over(wide, 2, self.counts)[:, :, None]
        moved = wide - middle - with_each + itself[:, None, :]
        return moved.reshape(across.shape)

    def _prior(self, new: TangentFeatures) -> Tensor:
        rows = len(new) * new.width
        return new.gram(scales=self.scales).reshape(rows, rows)

    def _explained(self, across: Tensor) -> Tensor:
        r"""Make ``[m o, n o]`` the columns :math:`L^{-1} R^\top K_{x*}`, ``[n o, m o]``."""
        inside = whitened(self.root, across.T)
        solved: Tensor = torch.linalg.solve_triangular(self.lower, inside, upper=False)
        return solved


def as_observations(
    features: TangentFeatures, residual: Tensor, noise: Tensor, scales: Mapping[str, float]
) -> tuple[Tensor, Tensor]:
    """The residuals and noise variances, float64 ``[n, o]``, or why they are none.

    >>> features = TangentFeatures(torch.nn.Linear(1, 1), torch.ones(3, 1))
    >>> as_observations(features, torch.zeros(3, 1), torch.zeros(3, 1), {})
    Traceback (most recent call last):
    ...
    dovetail.core.errors.SettingsError: noise is a variance for each observation, above 0 ...
    """
    shape = (len(features), features.width)
    for name, values in (("residual", residual), ("noise", noise)):
        if values.shape != shape:
            raise TaskError(
                f"{name} has shape {list(values.shape)}, but the features are of {shape[0]} inputs "
                f"with {shape[1]} outputs; give one number for each"
            )
    if not bool(residual.isfinite().all()):
        raise TaskError("targets or the network's outputs hold nan or inf; drop those samples")
    if not bool((noise.isfinite() & (noise > 0)).all()):
        raise SettingsError("noise is a variance for each observation, above 0 and finite")
    for name, scale in scales.items():
        if name not in features.shapes:
            raise SettingsError(
                f"{shown(name)} is not among the chosen parameters{nearest(name, features.names)}"
            )
        if not 0 <= scale < float("inf"):
            raise SettingsError(
                f"the prior variance of {name!r} is {shown(scale)}; it must be finite, at least 0"
            )
    return residual.detach().double(), noise.detach().double()


def condition_on_functions(
    features: TangentFeatures,
    residual: Tensor,
    noise: Tensor,
    scales: Mapping[str, float],
    *,
    kernel: Tensor | None = None,
) -> FunctionPosterior:
    r"""Condition on Gaussian data by one Cholesky factor of :math:`n o` rows.

    Args:
        features: Of the inputs.
        residual: Targets less the prior's mean, float64 ``[n, o]``.
        noise: Variances ``[n, o]``, above zero.
        scales: The prior's variance by parameter name; one where a name is left out.
        kernel: The scaled Gram matrix ``[n o, n o]``, if it is known already.
    """
    rows = residual.numel()
    if kernel is None:
        kernel = features.gram(scales=scales).reshape(rows, rows)
    root = noise.rsqrt()
    lower = factor(kernel, root)
    dual, log_evidence = _solved(lower, root, residual)
    facts = _facts(lower, "function")
    return FunctionPosterior(
        (features,), dict(scales), root, lower, dual, log_evidence, residual, diagnostics=facts
    )


def mean_over(values: Tensor, axis: int, counts: Tensor | None) -> Tensor:
    """The mean along the axis of the data, each as often as it counts ``[n]``.

    >>> mean_over(torch.tensor([[0.0], [4.0]]), 0, torch.tensor([1.0, 3.0]))
    tensor([3.])
    """
    if counts is None:
        return values.mean(axis)
    shares = (counts / counts.sum()).to(values)
    mean: Tensor = torch.tensordot(values, shares, ([axis], [0]))
    return mean


def centred(kernel: Tensor, outputs: int, counts: Tensor | None = None) -> Tensor:
    r"""The kernel ``[n o, n o]`` of features less their mean over the data, and of a constant.

    .. math::
        \tilde K_{ij} = K_{ij} - \bar K_{\cdot j} - \bar K_{i \cdot} + \bar K_{\cdot\cdot} + I

    Gradients of different inputs have much in common, which says nothing of the differences among
    them and yet makes up most of the kernel: with few labels it drowns them.  The :math:`I` is a
    constant for each output, of variance one.  Means are over the data as often as each ``counts``.

    >>> centred(torch.tensor([[101.0, 100.0], [100.0, 101.0]]), 1)
    tensor([[1.5000, 0.5000],
            [0.5000, 1.5000]])
    """
    n = len(kernel) // outputs
    wide = kernel.reshape(n, outputs, n, outputs)
    columns = mean_over(wide, 0, counts)[None]
    rows = mean_over(wide, 2, counts)[:, :, None]
    constant = torch.eye(outputs, dtype=kernel.dtype, device=kernel.device)[:, None, :]
    middle = mean_over(columns, 2, counts)[:, :, None]
    return (wide - rows - columns + middle + constant).reshape(kernel.shape)


def extended(lower: Tensor, root: Tensor, across: Tensor, prior: Tensor, added: Tensor) -> Tensor:
    r"""Append rows to a factor: new sites of root ``added [m, o]``, covariances ``across``.

    >>> kernel = torch.tensor([[2.0, 1.0], [1.0, 3.0]]).double()
    >>> one, both = torch.ones(1, 1).double(), torch.ones(2, 1).double()
    >>> first = factor(kernel[:1, :1], one)
    >>> grown = extended(first, one, kernel[1:, :1], kernel[1:, 1:], one)
    >>> bool(torch.allclose(grown, factor(kernel, both)))
    True
    """
    size, extra = len(lower), len(across)
    below = torch.linalg.solve_triangular(lower, whitened(root, across.T), upper=False)
    below = whitened(added, below.T)  # [new, old]
    corner = whitened(added, whitened(added, prior).T) - below @ below.T
    corner.diagonal().add_(1.0)
    grown = lower.new_zeros(size + extra, size + extra)
    grown[:size, :size], grown[size:, :size] = lower, below
    grown[size:, size:] = _root_of(corner)
    return grown


def scaled(flat: Tensor, shapes: Mapping[str, torch.Size], scales: Mapping[str, float]) -> Tensor:
    r"""The prior's variances times a flat vector, :math:`S v`, ``[p]``."""
    pieces = torch.split(flat, [shape.numel() for shape in shapes.values()])
    named = zip(shapes, pieces, strict=True)
    return torch.cat([piece * scales.get(name, 1.0) for name, piece in named])


def without_negatives(variance: Tensor) -> Tensor:
    """Covariances ``[m, o, o]`` whose diagonal rounding made negative, at zero.

    What is left of a variance that the data explain wholly is rounding of either sign.
    """
    diagonal = variance.diagonal(dim1=1, dim2=2)
    diagonal.clamp_(min=0.0)
    return variance


def _solved(lower: Tensor, root: Tensor, residual: Tensor) -> tuple[Tensor, float]:
    r"""The dual :math:`a = R B^{-1} R^\top r` and the log density of Gaussian data."""
    white = whitened(root, residual.reshape(-1, 1))
    half = torch.linalg.solve_triangular(lower, white, upper=False)
    dual = whitened(root, torch.linalg.solve_triangular(lower.T, half, upper=True))
    log_evidence = (
        -0.5 * float(half.square().sum())
        - float(lower.diagonal().log().sum())
        + float(root.log().sum())
        - 0.5 * residual.numel() * math.log(2 * math.pi)
    )
    return dual.reshape(residual.shape), log_evidence


def _root_of(matrix: Tensor) -> Tensor:
    """The lower factor of what should have no eigenvalue below one."""
    largest = float(matrix.diagonal().max())
    lower: Tensor
    lower, info = torch.linalg.cholesky_ex(matrix)
    if int(info) or not largest < MOST:
        raise TaskError(
            f"the prior's variance is {largest:.1e} times the noise's, which float64 cannot tell "
            "from noise of nothing: give more noise or a smaller prior, or scale targets that "
            "are far from zero"
        )
    return lower


def _facts(lower: Tensor, method: str) -> dict[str, Any]:
    return {
        "method": method,
        "rows": len(lower),
        "bytes": lower.nbytes,
        "condition": _spread(lower),
    }


def _spread(lower: Tensor) -> float:
    """A lower bound of the condition number of what was factored, from its diagonal."""
    diagonal = lower.diagonal()
    return float((diagonal.max() / diagonal.min()).square())
