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

Where inputs are more than rows, :math:`d > n`, the rows are turned into their own span first:
:math:`X = A Q^\top` with :math:`Q \in \mathbb{R}^{d \times n}` of orthonormal columns.  Nothing of
the recurrence feels a turn, so it goes on with :math:`A`, whose products are :math:`n \times n`
(the dual problem), and the first layer becomes :math:`Q W_1`.

(Thesis "Efficient deep learning", chapter 7.)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dovetail.closed_form.layers import Activation, Layer, cut_to_rank
from dovetail.closed_form.projections import (
    LABEL_WEIGHTS,
    PROJECTIONS,
    RANDOM,
    Known,
    balanced,
    propose,
)
from dovetail.closed_form.rows import Block, HeldRows, Rows, check_alike, moments_of, reweighed
from dovetail.closed_form.solvers import (
    Cholesky,
    Direct,
    Solver,
    Spectral,
    least_distances,
    unexplained,
)
from dovetail.core.errors import SettingsError
from dovetail.core.seeds import generator
from dovetail.linalg.moments import Moments

SOLVERS = ("auto", "cholesky", "eigen", "pinv", "lstsq")

ENOUGH, ENOUGH_A_UNIT = 1000, 10
"""So many rows, and so many for each unit, decide between tries."""

FEW = 2e9
"""Multiplications below which held rows are factorised themselves: twice the digits, no wait."""
MUCH = 5e10
"""Those below which they are, if their moments have lost the digits: some ten seconds."""
TRUSTED = 1e-4 / torch.finfo(torch.float64).eps
"""The condition beyond which a solution from moments has fewer than four digits."""

FAR = 2.0**64
"""Targets grow by the root of the width a layer, and unbounded activations let them.  As far out as
this every one of them is linear on either side, to the last digit, so a factor means nothing."""

FREE = 1e-6
"""What a leverage must leave of one: less is rounding."""


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
    """A network in layers, and the story of its fitting; ``start`` is the LSD of the inputs.

    ``moments`` are of what enters the head, ``solved`` is what it was solved with, in the span of
    the rows (``basis``) if that is the inputs and they are many.
    """

    layers: tuple[Layer, ...]
    head: Layer
    start: LayerFit
    fits: tuple[LayerFit, ...]
    moments: Moments
    solved: Solver
    basis: Tensor | None = None

    def hidden(self, x: Tensor) -> Tensor:
        """What the last hidden layer makes of rows ``[n, d]``."""
        for layer in self.layers:
            x = layer(x)
        return x

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs ``[n, k]`` of rows ``[n, d]``."""
        return self.head(self.hidden(x))

    def left_out(self, rows: Block) -> Tensor:
        r"""What a head fitted without the row would say of each row ``[n, k]``: no second fit.

        For ridge with an intercept, :math:`y_i - (y_i - \hat y_i) / (1 - h_i)` with the leverage
        :math:`h_i = \tfrac1n + \tilde z_i^\top (S + \lambda I)^{-1} \tilde z_i`.  (The layers
        before it have seen the row.)  Of a row that nothing but itself determines it is the mean.

        >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]]).double()
        >>> net = platonic(HeldRows(x, x.square()), (), ridge=0.0)
        >>> net.left_out(Block(x[:1], x[:1].square()))  # the line through the others is 4 x - 10/3
        tensor([[-3.3333]], dtype=torch.float64)
        """
        z = self.hidden(rows.z)
        centred = (z if self.basis is None else z @ self.basis) - self.moments.feature_mean
        free = 1 - 1 / self.moments.weight - self.solved.leverage(centred)[:, None]
        predicted = rows.y - (rows.y - self.head(z)) / free
        return torch.where(free > FREE, predicted, self.moments.target_mean)


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
    rank: int | None = None,
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
        tries: How many projections a layer tries, where they are random; the least LSD wins, on
            all rows or, if they are many, on some (:data:`ENOUGH`).
        target_scale: :math:`\alpha`.
        label_weight: :math:`\beta`, or ``"auto"``.
        solver: ``cholesky`` and ``eigen`` work on moments, ``pinv`` and ``lstsq`` on held rows.
        ridge: Penalty :math:`\lambda` on all weights but the biases; ``"auto"`` chooses one a
            layer by generalised cross-validation, which needs the spectrum: with ``cholesky`` and
            ``lstsq`` it stands for none.
        ema: :math:`\lambda_{\text{EMA}}` of the rows' importance, which starts at one and follows
            the errors behind each hidden layer; ``None`` for none.
        patience: Stop after so many layers without a lower LSD, and keep the layers up to the
            lowest.
        rank: Cut the weights of hidden layers to this rank (:mod:`~dovetail.closed_form.layers`);
            ``None`` leaves them whole.
        seed: Of the random projections.
        on_layer: Called with a layer's number and :class:`LayerFit` after each.

    >>> x = torch.linspace(-1, 1, 50).double()[:, None]
    >>> net = platonic(HeldRows(x, x.sin()), (8,), activation=torch.tanh)
    >>> float((net(x) - x.sin()).square().mean()) < 1e-6
    True
    """
    began = time.perf_counter()
    projections = tuple(projections) or ("random",)
    _check(widths, projections, tries, target_scale, label_weight, solver, ridge, ema)
    for name, count in (("patience", patience), ("rank", rank)):
        if count is not None and count < 1:
            raise SettingsError(f"{name} is one or more, or None; got {count}")
    rows, basis = _in_their_span(rows) if projections[0] != "elm" else (rows, None)
    moments = moments_of(rows)
    solved = factorised(rows, moments, solver, ridge)
    head = _head(moments, solved)
    inputs = moments.d if basis is None else len(basis)
    start = _fit_of(rows, moments, solved, head, inputs, "inputs", 0.0, 0, began)
    layers: list[Layer] = []
    fits: list[LayerFit] = []
    lowest, depth, best = math.inf, 0, (head, moments, solved)
    for i, width in enumerate(widths):
        began = time.perf_counter()
        by = projections[min(i, len(projections) - 1)]
        weighed = moments
        if ema is not None and i > 0 and {"pca", "random"} & {*projections[i:], projections[-1]}:
            rows = rows.judged(head, ema)
            weighed = reweighed(rows, moments) if by in ("pca", "random") else moments
        known = Known(rows, moments, solved, weighed, basis if i == 0 else None)
        weight = (
            LABEL_WEIGHTS.get(by, 0.0) * balanced(weighed)
            if isinstance(label_weight, str)
            else float(label_weight)
        )
        count = tries if by in RANDOM else 1
        candidates = [
            propose(
                by, known, width, activation, target_scale, weight, generator(seed, "try", i, t)
            )
            for t in range(count)
        ]
        if rank is not None:
            candidates = [cut_to_rank(each, moments, rank) for each in candidates]
        if float(moments.features.trace()) > FAR**2 * moments.weight:
            candidates = [_brought_nearer(each, moments) for each in candidates]
        before = moments.rows
        step = max(1, before // max(ENOUGH, ENOUGH_A_UNIT * width))
        which, moments, rows = rows.best_of(candidates, _distances, step)
        check_alike(before, moments.rows)
        if not (moments.is_finite and _is_finite(candidates[which])):
            raise SettingsError(
                f"hidden layer {i + 1} overflows float64; lower target_scale ({target_scale:g}) or "
                f"label_weight ({weight:g}), scale the inputs, or take a bounded activation"
            )
        solved = factorised(rows, moments, solver, ridge)
        head = _head(moments, solved)
        layers.append(candidates[which])
        fits.append(_fit_of(rows, moments, solved, head, width, by, weight, count, began))
        if on_layer is not None:
            on_layer(i, fits[-1])
        if patience is None or fits[-1].distance < lowest:
            lowest, depth, best = fits[-1].distance, i + 1, (head, moments, solved)
        elif i + 1 - depth >= patience:
            break
    head, moments, solved = best
    chain = [*layers[:depth], head]
    if basis is not None:
        chain[0] = replace(chain[0], weights=basis @ chain[0].weights)
    spanned = None if depth else basis
    return Platonic(tuple(chain[:-1]), chain[-1], start, tuple(fits), moments, solved, spanned)


def _in_their_span(rows: Rows) -> tuple[Rows, Tensor | None]:
    """Held rows of more inputs than rows by what they are in their own span, and its basis."""
    if not isinstance(rows, HeldRows) or rows.shared or len(rows.z) >= rows.z.shape[1]:
        return rows, None
    basis, triangle = torch.linalg.qr(rows.z.T)
    return replace(rows, z=triangle.T.contiguous()), basis


def factorised(rows: Rows, moments: Moments, solver: str, ridge: float | str) -> Solver:
    """The solver that was asked for, or a sensible one: see :data:`SOLVERS`."""
    in_memory = rows if isinstance(rows, HeldRows) and not rows.shared else None
    penalty = None if isinstance(ridge, str) else float(ridge)
    fewer, more = sorted((moments.rows, moments.d))
    work = more * fewer**2
    if solver == "auto" and in_memory is not None and work <= FEW:
        solver = "pinv"
    if solver in ("pinv", "lstsq"):
        if in_memory is None:
            raise SettingsError(
                f"solver={solver!r} needs all rows in the memory of one process; with batches or "
                "several processes say 'cholesky' or 'eigen'"
            )
        if solver == "lstsq":
            return Direct(in_memory.z, in_memory.y, in_memory.weights, penalty or 0.0)
        return Spectral.of_rows(in_memory.z, in_memory.y, in_memory.weights, penalty)
    solved: Solver
    if solver == "eigen" or (solver == "auto" and penalty is None):
        solved = Spectral.of_moments(moments, penalty)
    else:
        solved = Cholesky(moments, penalty or 0.0)
    if solver == "auto" and in_memory is not None and work <= MUCH and solved.condition > TRUSTED:
        return Spectral.of_rows(in_memory.z, in_memory.y, in_memory.weights, penalty)
    return solved


def _check(
    widths: Sequence[int],
    projections: Sequence[str],
    tries: int,
    target_scale: float,
    label_weight: float | str,
    solver: str,
    ridge: float | str,
    ema: float | None,
) -> None:
    unknown = [by for by in projections if by not in PROJECTIONS]
    if unknown:
        raise SettingsError(f"a projection is one of {', '.join(PROJECTIONS)}; got {unknown[0]!r}")
    if solver not in SOLVERS:
        raise SettingsError(f"solver is one of {', '.join(SOLVERS)}; got {solver!r}")
    if any(width < 1 for width in widths):
        raise SettingsError(f"a layer has one unit or more; got the widths {tuple(widths)}")
    if tries < 1:
        raise SettingsError(f"each layer tries one projection or more; got tries={tries}")
    if not 0 < target_scale < math.inf:
        raise SettingsError(f"target_scale is positive and finite; got {target_scale}")
    for name, value in (("label_weight", label_weight), ("ridge", ridge)):
        if value != "auto" and (isinstance(value, str) or not 0 <= value < math.inf):
            raise SettingsError(f"{name} is 'auto' or a number from zero up; got {value!r}")
    if ema is not None and not 0 <= ema <= 1:
        raise SettingsError(f"ema is a decay between 0 and 1, or None; got {ema}")


def _brought_nearer(layer: Layer, moments: Moments) -> Layer:
    """The layer times a power of two, so that what enters its activation is not beyond FAR."""
    far = torch.tensor([[-FAR, FAR]], dtype=torch.float64, device=layer.bias.device)
    bend = float((layer.activation(2 * far) - 2 * layer.activation(far)).abs().max())
    spread = float((layer.weights * (moments.features @ layer.weights)).sum()) / moments.weight
    size = math.sqrt(spread / layer.weights.shape[1])
    if bend > 2.0**-53 * FAR or not FAR < size < math.inf:
        return layer
    factor = 2.0 ** -round(math.log2(size / FAR))
    return Layer(factor * layer.weights, factor * layer.bias, layer.activation)


def _is_finite(layer: Layer) -> bool:
    # Behind a bounded activation the rows may be finite where others would give inf - inf.
    largest = max(float(layer.weights.abs().max()), float(layer.bias.abs().max()))
    return math.isfinite(largest * largest)


def _head(moments: Moments, solved: Solver) -> Layer:
    bias = moments.target_mean - moments.feature_mean @ solved.labels
    return Layer(solved.labels, bias, nn.Identity())


def _distances(several: Sequence[Moments]) -> list[float]:
    distances = [math.inf] * len(several)
    finite = [i for i, moments in enumerate(several) if moments.is_finite]
    for i, distance in zip(finite, least_distances([several[i] for i in finite]), strict=True):
        # What is left after an exact fit is rounding, and must not decide between two of them.
        distances[i] = max(distance, 1e-10 * _variance(several[i]))
    return distances


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
