r"""Platonic projections: a network by a chain of least-squares problems.

With :math:`Z_0 = X` and for each hidden layer :math:`i`

.. math::
    T_i = \alpha\,[\,1 \mid Z_{i-1} \mid \beta Y\,]\,P_i, \qquad
    W_i = [\,1 \mid Z_{i-1}]^+ T_i, \qquad Z_i = \sigma([\,1 \mid Z_{i-1}] W_i)

the classes are a little further apart in each :math:`Z_i`, because the target :math:`T_i` is a
mixture of what the layer has and of what it should tell.  The last layer is least squares on
:math:`Y`.  How far a layer got is its least squares distance,

.. math:: \text{LSD}_i = \tfrac1n \lVert Y - Z_i Z_i^+ Y\rVert_F^2 ,

which also decides between several projections tried for one layer.

(Thesis "Efficient deep learning", chapter 7.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.closed_form.layers import Activation, Layer
from dovetail.closed_form.projections import LABEL_WEIGHTS, RANDOM, Known, balanced, propose
from dovetail.closed_form.rows import HeldRows, Rows, moments_of, reweighed
from dovetail.closed_form.solvers import Cholesky, Direct, Solver, Spectral, unexplained
from dovetail.core.errors import SettingsError
from dovetail.core.seeds import generator
from dovetail.linalg.moments import Moments

__all__ = ["SOLVERS", "LayerFit", "Platonic", "platonic"]

SOLVERS = ("auto", "cholesky", "eigen", "pinv", "lstsq")

FEW = 2e9
"""Multiplications below which held rows are factorised themselves: twice the digits, no wait."""


@dataclass(frozen=True)
class LayerFit:
    """What was found out about one layer: how it was made, and how far it got."""

    width: int
    projection: str
    label_weight: float
    tries: int
    penalty: float
    condition: float
    distance: float
    seconds: float


@dataclass(frozen=True)
class Platonic:
    """A network in layers, and the story of its fitting; ``start`` is the LSD of the inputs."""

    layers: tuple[Layer, ...]
    head: Layer
    start: LayerFit
    fits: tuple[LayerFit, ...]

    def hidden(self, x: Tensor) -> Tensor:
        """What the last hidden layer makes of rows ``[n, d]``."""
        for layer in self.layers:
            x = layer(x)
        return x

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs ``[n, k]`` of rows ``[n, d]``."""
        return self.head(self.hidden(x))


def platonic(
    rows: Rows,
    widths: Sequence[int],
    *,
    activation: Activation = torch.relu,
    projections: Sequence[str] = (),
    tries: int = 5,
    target_scale: float = 1.0,
    label_weight: float | str = "auto",
    solver: str = "auto",
    ridge: float | str = "auto",
    ema: float | None = None,
    patience: int | None = None,
    seed: int = 0,
    on_layer: Callable[[int, LayerFit], Any] | None = None,
) -> Platonic:
    r"""Fit a network of these hidden widths to the rows.

    Args:
        rows: Inputs and targets, float64, held or streamed.
        widths: Units of each hidden layer.
        activation: Any monotonic function.
        projections: For each layer where its target comes from
            (:mod:`~dovetail.closed_form.projections`); the last goes on for the layers left over.
        tries: How many projections a layer tries, where they are random; the least LSD wins.
        target_scale: :math:`\alpha`.
        label_weight: :math:`\beta`, or ``"auto"``.
        solver: ``cholesky`` and ``eigen`` work on moments, ``pinv`` and ``lstsq`` on held rows.
        ridge: Penalty :math:`\lambda` on all weights but the biases; ``"auto"`` chooses one a
            layer by generalised cross-validation.
        ema: :math:`\lambda_{\text{EMA}}` of the rows' importance; ``None`` for none.
        patience: Stop after so many layers without a lower LSD, and keep the layers up to the
            lowest.
        seed: Of the random projections.
        on_layer: Called with a layer's number and :class:`LayerFit` after each.

    >>> x = torch.linspace(-1, 1, 50).double()[:, None]
    >>> net = platonic(HeldRows(x, x.sin()), (8,), activation=torch.tanh)
    >>> float((net(x) - x.sin()).square().mean()) < 1e-6
    True
    """
    began = time.perf_counter()
    projections = tuple(projections) or ("random",)
    moments = moments_of(rows)
    solved = factorised(rows, moments, solver, ridge)
    head = _head(moments, solved)
    start = _fit_of(rows, moments, solved, head, moments.d, "inputs", 0.0, 0, began)
    layers: list[Layer] = []
    fits: list[LayerFit] = []
    heads: list[Layer] = []
    for i, width in enumerate(widths):
        began = time.perf_counter()
        by = projections[min(i, len(projections) - 1)]
        if ema is not None:
            rows = rows.judged(head, ema)
        weighed = reweighed(rows, moments) if ema is not None and by == "pca" else moments
        known = Known(rows, moments, solved, weighed)
        weight = (
            LABEL_WEIGHTS.get(by, 0.0) * balanced(weighed)
            if isinstance(label_weight, str)
            else float(label_weight)
        )
        count = max(1, tries) if by in RANDOM else 1
        candidates = [
            propose(
                by, known, width, activation, target_scale, weight, generator(seed, "try", i, t)
            )
            for t in range(count)
        ]
        which, moments, rows = rows.best_of(candidates, _distance)
        solved = factorised(rows, moments, solver, ridge)
        head = _head(moments, solved)
        layers.append(candidates[which])
        heads.append(head)
        fits.append(_fit_of(rows, moments, solved, head, width, by, weight, count, began))
        if on_layer is not None:
            on_layer(i, fits[-1])
        if patience is not None and _stuck(fits, patience):
            break
    kept = len(fits)
    if patience is not None and fits:
        distances = [fit.distance for fit in fits]
        kept = distances.index(min(distances)) + 1
        head = heads[kept - 1]
    return Platonic(tuple(layers[:kept]), head, start, tuple(fits))


def factorised(rows: Rows, moments: Moments, solver: str, ridge: float | str) -> Solver:
    """The solver that was asked for, or a sensible one: see :data:`SOLVERS`."""
    held = isinstance(rows, HeldRows) and not rows.shared
    automatic = isinstance(ridge, str)
    if solver in ("pinv", "lstsq") and not held:
        raise SettingsError(
            f"solver={solver!r} needs all rows in memory; with batches say 'cholesky' or 'eigen'"
        )
    if solver == "auto":
        small = held and moments.rows * moments.d**2 <= FEW
        solver = "pinv" if small else "eigen" if automatic else "cholesky"
    if solver == "pinv":
        assert isinstance(rows, HeldRows)
        return Spectral.of_rows(rows.z, rows.y, rows.weights, None if automatic else float(ridge))
    if solver == "lstsq":
        assert isinstance(rows, HeldRows)
        return Direct(rows.z, rows.y, rows.weights)
    if solver == "eigen":
        return Spectral.of_moments(moments, None if automatic else float(ridge))
    if solver == "cholesky":
        return Cholesky(moments, 0.0 if automatic else float(ridge))
    raise SettingsError(f"solver is one of {', '.join(SOLVERS)}; got {solver!r}")


def _head(moments: Moments, solved: Solver) -> Layer:
    bias = moments.target_mean - moments.feature_mean @ solved.labels
    return Layer(solved.labels, bias, nn.Identity())


def _distance(moments: Moments) -> float:
    return unexplained(moments, Cholesky(moments).labels)


def _fit_of(
    rows: Rows,
    moments: Moments,
    solved: Solver,
    head: Layer,
    width: int,
    by: str,
    weight: float,
    tries: int,
    began: float,
) -> LayerFit:
    distance = unexplained(moments, solved.labels)
    if isinstance(rows, HeldRows) and not rows.shared and distance < 1e-6 * _variance(moments):
        distance = _measured(rows, head)  # the difference of sums has no digits left
    seconds = time.perf_counter() - began
    return LayerFit(width, by, weight, tries, solved.penalty, solved.condition, distance, seconds)


def _variance(moments: Moments) -> float:
    return float(moments.targets.trace()) / moments.weight


def _measured(rows: HeldRows, head: Layer) -> float:
    summed, weight = 0.0, 0.0
    for z, y, weights, _ in rows.blocks():
        errors = (y - head(z)).square().sum(1)
        summed += float(errors.sum() if weights is None else (errors * weights).sum())
        weight += float(len(z)) if weights is None else float(weights.sum())
    return summed / weight


def _stuck(fits: Sequence[LayerFit], patience: int) -> bool:
    distances = [fit.distance for fit in fits]
    return len(distances) - 1 - distances.index(min(distances)) >= patience
