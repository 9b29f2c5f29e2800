r"""The posterior of a linear model in parameter space: for few parameters and any number of rows.

For :math:`y = m(x) + J(x) w + \varepsilon`, :math:`w \sim \mathcal N(0, S)` and noise variances
:math:`N`, everything the data say is in a matrix of :math:`p` rows and a vector,

.. math::
    B = I + S^{1/2} J^\top N^{-1} J S^{1/2} = L L^\top, \qquad
    c = S^{1/2} J^\top N^{-1} r, \qquad
    \bar w = S^{1/2} B^{-1} c, \qquad
    \operatorname{cov} g(x_*) = E^\top E, \quad E = L^{-1} S^{1/2} J_*^\top .

Rows are streamed, so memory does not grow with :math:`n`, and no data are needed afterwards.  The
eigenvalues of :math:`B` are at least one.  By the determinant lemma

.. math::
    \log p(y) = -\tfrac12 \big( r^\top N^{-1} r - \lVert L^{-1} c \rVert^2 + \log|N|
                + 2 \textstyle\sum \log L_{ii} + n o \log 2\pi \big) .
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dovetail.adapt.posterior import as_observations, scaled
from dovetail.core.errors import ContractError, TaskError
from dovetail.linalg.tangent import TangentFeatures


def scatter(features: TangentFeatures, root: Tensor, scales: Mapping[str, float]) -> Tensor:
    r"""What observations add to :math:`B`, :math:`S^{1/2} J^\top R R^\top J S^{1/2}`.

    Args:
        features: Of the inputs.
        root: :math:`R`, with the precision :math:`R_i R_i^\top` of each input: ``[n, o, o]``, or
            its diagonal ``[n, o]``.
        scales: The prior's variance by parameter name; one where a name is left out.

    Returns:
        float64 ``[p, p]``.

    >>> features = TangentFeatures(torch.nn.Linear(1, 1), torch.tensor([[1.0], [2.0]]))
    >>> scatter(features, torch.ones(2, 1), {})  # the sums of x^2, x and 1
    tensor([[5., 3.],
            [3., 2.]], dtype=torch.float64)
    """
    total = features.x.new_zeros(features.size, features.size, dtype=torch.float64)
    for _, rows in _white_rows(features, root.double(), _deviations(features, scales)):
        total.addmm_(rows.T, rows)
    return total


@dataclass(frozen=True, eq=False)
class ParameterPosterior:
    """Where the weights of a linear model are after some data.

    Attributes:
        lower: The factor :math:`L`, ``[p, p]``.
        pulled: :math:`c`, what the data ask of the weights, ``[p]``.
        deviations: :math:`S^{1/2}`, ``[p]``.
        scales: The prior's variance by parameter name; one where a name is left out.
        constants: What else the evidence is made of: the terms that do not depend on the weights.
        diagnostics: How it was solved.
    """

    lower: Tensor
    pulled: Tensor
    deviations: Tensor
    scales: Mapping[str, float]
    constants: float
    diagnostics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def weights(self) -> Tensor:
        r"""The mean :math:`\bar w`, flat ``[p]``."""
        return self.deviations * torch.cholesky_solve(self.pulled[:, None], self.lower).flatten()

    @property
    def log_evidence(self) -> float:
        """The log density of the data under the prior."""
        half = torch.linalg.solve_triangular(self.lower, self.pulled[:, None], upper=False)
        volume = float(self.lower.diagonal().log().sum())
        return self.constants + 0.5 * float(half.square().sum()) - volume

    def shift(self, new: TangentFeatures) -> Tensor:
        r"""What the data add to the mean, :math:`J_* \bar w`, ``[m, o]``."""
        return self._known(new).push(self.weights)

    def variance(self, new: TangentFeatures) -> Tensor:
        """The covariance among the outputs of each new input, ``[m, o, o]``, without noise."""
        blocks = []
        for rows in self._known(new).rows():
            columns = self._spread(rows).T.reshape(*rows.shape)
            blocks.append(columns @ columns.transpose(1, 2))
        return torch.cat(blocks)

    def covariance(self, new: TangentFeatures) -> Tensor:
        """The joint covariance of all new inputs, ``[m, o, m, o]``, without noise."""
        columns = torch.cat([self._spread(rows) for rows in self._known(new).rows()], 1)
        m, o = len(new), new.width
        return (columns.T @ columns).reshape(m, o, m, o)

    def updated(self, new: TangentFeatures, residual: Tensor, noise: Tensor) -> ParameterPosterior:
        """The posterior with more data; what was seen before is not needed.

        Args:
            new: Features of the new inputs.
            residual: Their targets less the prior's mean, ``[m, o]``.
            noise: Variances ``[m, o]``.
        """
        before = self.lower @ self.lower.T
        return _conditioned(self._known(new), residual, noise, self.scales, before, self)

    def _spread(self, rows: Tensor) -> Tensor:
        r"""Rows of the Jacobian ``[b, o, p]`` as columns of :math:`E`, ``[p, b o]``."""
        columns = (rows.flatten(0, 1) * self.deviations).T
        spread: Tensor = torch.linalg.solve_triangular(self.lower, columns, upper=False)
        return spread

    def _known(self, new: TangentFeatures) -> TangentFeatures:
        if new.size != len(self.pulled):
            raise ContractError(
                f"the features are of {new.size} parameters, the posterior of {len(self.pulled)}; "
                "take them of the same network with the same params="
            )
        return new


def condition_in_parameters(
    features: TangentFeatures, residual: Tensor, noise: Tensor, scales: Mapping[str, float]
) -> ParameterPosterior:
    r"""Condition on Gaussian data by one Cholesky factor of :math:`p` rows.

    Args:
        features: Of the inputs; give them a small ``memory``, they are gone through once.
        residual: Targets less the prior's mean, ``[n, o]``.
        noise: Variances ``[n, o]``, above zero.
        scales: The prior's variance by parameter name; one where a name is left out.

    >>> x = torch.tensor([[1.0], [2.0]])
    >>> features = TangentFeatures(torch.nn.Linear(1, 1, bias=False), x)
    >>> fit = condition_in_parameters(features, x, torch.full((2, 1), 0.5), {"weight": 0.1})
    >>> fit.weights, fit.variance(features).flatten()  # 10 / (10 + 1 / 0.1); x^2 / 20
    (tensor([0.5000], dtype=torch.float64), tensor([0.0500, 0.2000], dtype=torch.float64))
    """
    identity = torch.eye(features.size, dtype=torch.float64, device=features.x.device)
    return _conditioned(features, residual, noise, scales, identity, None)


def _conditioned(
    features: TangentFeatures,
    residual: Tensor,
    noise: Tensor,
    scales: Mapping[str, float],
    total: Tensor,
    before: ParameterPosterior | None,
) -> ParameterPosterior:
    """Add data to the matrix ``total [p, p]``, in place, and factor it."""
    began = time.perf_counter()
    residual, noise = as_observations(features, residual, noise, scales)
    deviations = _deviations(features, scales)
    root = noise.rsqrt()
    white = root * residual
    pulled = torch.zeros_like(deviations) if before is None else before.pulled.clone()
    for here, rows in _white_rows(features, root, deviations):
        total.addmm_(rows.T, rows)
        pulled += rows.T @ white[here].flatten()
    lower, info = torch.linalg.cholesky_ex(total)
    if int(info):
        raise TaskError(
            "the gradients of the network are too large for float64 to add one to their squares; "
            "scale the inputs, the network or the prior down"
        )
    constants = -0.5 * float(
        white.square().sum() + noise.log().sum() + residual.numel() * math.log(2 * math.pi)
    )
    rows_before = 0 if before is None else before.diagnostics["rows"]
    diagonal = lower.diagonal()
    facts = {
        "method": "parameter",
        "rows": rows_before + residual.numel(),
        "bytes": lower.nbytes,
        "condition": float((diagonal.max() / diagonal.min()).square()),  # at least this
        "seconds": time.perf_counter() - began,
    }
    constants += 0.0 if before is None else before.constants
    return ParameterPosterior(lower, pulled, deviations, dict(scales), constants, facts)


def _deviations(features: TangentFeatures, scales: Mapping[str, float]) -> Tensor:
    ones = torch.ones(features.size, dtype=torch.float64, device=features.x.device)
    return scaled(ones, features.shapes, scales).sqrt()


def _white_rows(
    features: TangentFeatures, root: Tensor, deviations: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    r"""Blocks of :math:`R^\top J S^{1/2}`, ``[b o, p]``, and which samples they are."""
    if root.shape[:2] != (len(features), features.width):
        raise TaskError(
            f"root has shape {list(root.shape)}, but the features are of {len(features)} inputs "
            f"with {features.width} outputs"
        )
    start = 0
    for rows in features.rows():
        here = slice(start, start + len(rows))
        if root.ndim == 2:
            rows = root[here][:, :, None] * rows
        else:
            rows = root[here].transpose(1, 2) @ rows
        yield here, rows.flatten(0, 1).mul_(deviations)
        start = here.stop
