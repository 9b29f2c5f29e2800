r"""Ways to make a network in closed form that the source does not have, one step of it changed.

The plain method has two hidden layers: sorted PCA, then a random projection of [Z | beta Y] with
balanced labels, one try, a penalty for each layer by generalised cross-validation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from dovetail.closed_form.layers import Layer, cut_to_rank
from dovetail.closed_form.projections import (
    LABEL_WEIGHTS,
    Known,
    balanced,
    components,
    evenly,
    propose,
)
from dovetail.closed_form.rows import Block, HeldRows, Rows, StreamedRows, moments_of
from dovetail.closed_form.solvers import PENALTIES, Solver, Spectral
from dovetail.core.seeds import generator
from dovetail.linalg.moments import Moments

Solve = Callable[[Rows, Moments], Solver]
Propose = Callable[[Known, int, int], Layer]
"""From what is known, a width and a seed."""
BLOCK = 2000
ICA_ROWS, ICA_STEPS = 2000, 20


# Penalties


def generalised(_: Rows, moments: Moments) -> Solver:
    return Spectral.of_moments(moments)


def fixed(relative: float, carried: bool, _: Rows, moments: Moments) -> Solver:
    """In units of the mean eigenvalue; on what is ``carried`` along, too, as in the source."""
    penalty = relative * float(moments.features.trace()) / moments.d
    # Of several penalties the one for the labels is chosen, and what is carried stays whole.
    return Spectral.of_moments(moments, penalty if carried else (penalty, penalty))


def none(_: Rows, moments: Moments) -> Solver:
    return Spectral.of_moments(moments, 0.0)


def left_out(rows: Rows, moments: Moments) -> Solver:
    """The penalty with the least squared errors on rows that were left out, each once."""
    assert isinstance(rows, HeldRows)
    s, v = torch.linalg.eigh(moments.features)
    kept = s > len(s) * torch.finfo(s.dtype).eps * s[-1]
    s, u = s[kept], (rows.z - moments.feature_mean) @ v[:, kept] / s[kept].sqrt()
    y = rows.y - moments.target_mean
    turned, squared = u.T @ y, u.square()
    scale = float(moments.features.trace()) / moments.d
    errors = {}
    for relative in PENALTIES:
        shrunk = s / (s + relative * scale)
        residual = y - u @ (shrunk[:, None] * turned)
        free = 1 - 1 / len(y) - squared @ shrunk
        errors[relative * scale] = float((residual / free[:, None]).square().sum())
    best = min(errors, key=lambda penalty: errors[penalty])
    return Spectral.of_moments(moments, (best, best))


class Standardised:
    """Generalised cross-validation for features of unit variance: a penalty on the diagonal of S.

    It is what dropout on the features amounts to, on average over what is dropped.
    """

    def __init__(self, _: Rows, moments: Moments) -> None:
        size = moments.features.diagonal().sqrt()
        size = torch.where(size > 0, size, torch.ones_like(size))
        scaled = Moments.of(
            moments.rows,
            moments.weight,
            torch.cat([moments.feature_mean / size, moments.target_mean]),
            moments.features / size[:, None] / size,
            moments.cross / size[:, None],
            moments.targets,
        )
        self._size, self._inner = size[:, None], Spectral.of_moments(scaled)
        self.labels = self._inner.labels / self._size
        self.penalty, self.condition = self._inner.penalty, self._inner.condition

    def carry(self, projection: Tensor) -> Tensor:
        """In standardised units and back."""
        return self._inner.carry(self._size * projection) / self._size


# Projections


def by_name(by: str, known: Known, width: int, seed: int) -> Layer:
    weight = LABEL_WEIGHTS.get(by, 0.0) * balanced(known.moments)
    return propose(by, known, width, torch.relu, 1.0, weight, generator(seed, "P"))


def as_written(known: Known, width: int, _: int) -> Layer:
    """Platonic PCA with beta in the matrix of the components, too."""
    moments, weight = known.moments, balanced(known.moments)
    p = components(moments, weight, width)
    weights = known.solved.carry(p[: moments.d]) + known.solved.labels @ (weight * p[moments.d :])
    return Layer(weights, -moments.feature_mean @ weights, torch.relu)


def told_by(known: Known, carried: Tensor, seed: int, label_weight: float) -> Layer:
    """Features by ``carried [d, w]``, labels at random, and a random constant, as in the source."""
    draw = partial(torch.randn, generator=generator(seed, "P_Y"), dtype=torch.float64)
    moments = known.moments
    told = label_weight * draw(moments.k, carried.shape[1])
    weights = known.solved.carry(carried) + known.solved.labels @ told
    mean = moments.feature_mean @ (carried - weights) + moments.target_mean @ told
    return Layer(weights, mean + draw(carried.shape[1]), torch.relu)


def orthogonal(known: Known, width: int, seed: int) -> Layer:
    """Random directions at right angles, as long as random ones are."""
    d = known.moments.d
    drawn = torch.randn(d, width, generator=generator(seed, "P_Z"), dtype=torch.float64)
    q = torch.linalg.qr(drawn).Q * d**0.5
    return told_by(known, q, seed, balanced(known.moments))


def mixed(known: Known, width: int, seed: int) -> Layer:
    """The features' principal components, and the labels at random."""
    v = torch.linalg.eigh(known.moments.features)[1].flip(1)[:, :width]
    # Components have length one, random columns the root of d.
    return told_by(known, v * known.moments.d**0.5, seed, balanced(known.moments))


def half_whitened(known: Known, width: int, seed: int) -> Layer:
    """Random, of features whose spectrum is the root of what it was."""
    s, v = torch.linalg.eigh(known.moments.features)
    s = (s / s.mean()).clamp(min=1e-6)
    drawn = torch.randn(len(s), width, generator=generator(seed, "P_Z"), dtype=torch.float64)
    carried = v @ (s.pow(-0.25)[:, None] * drawn)
    weight = balanced(known.moments) * float(s.sqrt().mean()) ** 0.5
    return told_by(known, carried, seed, weight)


def independent(known: Known, width: int, seed: int) -> Layer:
    """Independent components of the first principal components of [Z | beta Y]."""
    from sklearn.decomposition import FastICA

    assert isinstance(known.rows, HeldRows)
    moments, weight = known.moments, balanced(known.moments)
    axes = components(moments, weight, width)
    chosen = torch.randperm(len(known.rows.z), generator=generator(seed, "ICA"))[:ICA_ROWS]
    both = torch.cat([known.rows.z[chosen], known.rows.y[chosen]], 1) - moments.mean
    both[:, moments.d :] *= weight
    ica = FastICA(whiten="unit-variance", max_iter=ICA_STEPS, tol=1e-3, random_state=seed)
    ica.fit((both @ axes).numpy())
    p = axes @ torch.from_numpy(ica.components_).T
    weights = known.solved.carry(p[: moments.d]) + known.solved.labels @ (weight * p[moments.d :])
    return Layer(weights, -moments.feature_mean @ weights, torch.relu)


def rows_as_weights(differences: bool, known: Known, width: int, seed: int) -> Layer:
    """Rows at random, or what tells them from a row of another class, as weights."""
    assert isinstance(known.rows, HeldRows)
    z, y, mean = known.rows.z, known.rows.y.argmax(1), known.moments.feature_mean
    order = torch.randperm(len(z), generator=generator(seed, "rows"))
    if not differences:
        weights = (z[order[:width]] - mean).T
        bias = -mean @ weights
    else:
        one, other = order[: len(z) // 2], order[len(z) // 2 : 2 * (len(z) // 2)]
        unlike = (y[one] != y[other]).nonzero()[:width, 0]
        a, b = z[one[unlike]], z[other[unlike]]
        weights, bias = (a - b).T, -((a - b) * (a + b)).sum(1) / 2  # zero half-way between them
    spread = float((weights * (known.moments.features @ weights)).sum())
    scale = (spread / (known.moments.weight * width)) ** -0.5
    return Layer(scale * weights, scale * bias, torch.relu)


def between_ranks(known: Known, width: int, _: int) -> Layer:
    """Sorted PCA half a step on: rows that another sorted PCA does not pick."""
    assert isinstance(known.rows, HeldRows)
    mean = known.moments.feature_mean
    first = torch.linalg.eigh(known.moments.features)[1][:, -1]
    picked = evenly((known.rows.z - mean) @ first, None, 2 * width)[1::2]
    weights = (known.rows.z[picked] - mean).T
    return Layer(weights, -mean @ weights, torch.relu)


SORTED, RANDOM = partial(by_name, "sorted-pca"), partial(by_name, "random")


# The network


@dataclass(frozen=True)
class Way:
    """The steps of a network; those of the plain method unless said."""

    widths: tuple[int, int]
    first: Propose = SORTED
    second: Propose = RANDOM
    hidden_penalty: Solve = generalised
    head_penalty: Solve = generalised
    rank: int | None = None
    """Weights of hidden layers, as the data see them, are cut to this rank."""
    weighs_errors: float | None = None
    """The share of its squared error in how much a row's label counts for the second layer."""
    refits: int = 0
    """How often the second layer is made anew, told what the network left instead of labels."""
    halves: bool = False
    """The second half of the second layer is told what the first half leaves."""

    def fitted(self, rows: Rows, seed: int) -> list[Layer]:
        """The layers, the output layer last."""
        moments = moments_of(rows)
        first = self._made(self.first, rows, moments, self.widths[0], seed)
        first = first if self.rank is None else cut_to_rank(first, moments, self.rank)
        _, moments, rows = rows.best_of([first], lambda _: [0.0])
        told, of_told = self._weighed(rows, moments)
        width = self.widths[1] // 2 if self.halves else self.widths[1]
        second = self._made(self.second, told, of_told, width, seed)
        second = second if self.rank is None else cut_to_rank(second, moments, self.rank)
        if self.halves:
            left = residual(rows, [second, self._head(rows, second)])
            others = self.widths[1] - width
            more = self._made(self.second, left, moments_of(left), others, seed + 1000)
            second = joined(second, more)
        for refit in range(self.refits):
            left = residual(rows, [second, self._head(rows, second)])
            drawn = seed + 1000 * (refit + 1)
            second = self._made(self.second, left, moments_of(left), width, drawn)
        return [first, second, self._head(rows, second)]

    def _made(self, propose: Propose, rows: Rows, moments: Moments, width: int, seed: int) -> Layer:
        known = Known(rows, moments, self.hidden_penalty(rows, moments), moments)
        return propose(known, width, seed)

    def parameters(self, inputs: int, outputs: int) -> int:
        """Weights and biases of the network."""
        one, two = self.widths
        layers = ((inputs, one), (one, two))
        if self.rank is None:
            weights = sum(a * b for a, b in layers)
        else:
            weights = sum(self.rank * (a + b) for a, b in layers)
        return weights + one + two + outputs * (two + 1)

    def _head(self, rows: Rows, layer: Layer) -> Layer:
        _, moments, rows = rows.best_of([layer], lambda _: [0.0])
        weights = self.head_penalty(rows, moments).labels
        bias = moments.target_mean - moments.feature_mean @ weights
        return Layer(weights, bias, nn.Identity())

    def _weighed(self, rows: Rows, moments: Moments) -> tuple[Rows, Moments]:
        if self.weighs_errors is None:
            return rows, moments
        weights = self.hidden_penalty(rows, moments).labels
        bias = moments.target_mean - moments.feature_mean @ weights
        errors = residual(rows, [Layer(weights, bias, nn.Identity())]).y.square().sum(1)
        counts = 1 - self.weighs_errors + self.weighs_errors * errors / errors.mean()
        assert isinstance(rows, HeldRows)
        told = replace(rows, y=rows.y * counts[:, None])
        return told, moments_of(told)


def residual(rows: Rows, layers: list[Layer]) -> HeldRows:
    """The rows with what a network leaves of their labels."""
    assert isinstance(rows, HeldRows)
    return replace(rows, y=rows.y - through(layers, rows.z))


def joined(one: Layer, other: Layer) -> Layer:
    weights = torch.cat([one.weights, other.weights], 1)
    return Layer(weights, torch.cat([one.bias, other.bias]), one.activation)


def through(layers: list[Layer], x: Tensor) -> Tensor:
    """Block by block."""
    found = []
    for block in x.split(BLOCK):
        for layer in layers:
            block = layer(block)
        found.append(block)
    return torch.cat(found)


# Rows


def copies(x: Tensor, y: Tensor, changes: tuple[Callable[[Tensor], Tensor], ...]) -> StreamedRows:
    """What each change makes of the rows, one after the other, streaming by."""

    def batches() -> Iterator[Block]:
        for change in changes:
            for start in range(0, len(x), BLOCK):
                part = slice(start, start + BLOCK)
                yield Block(change(x[part]), y[part])

    return StreamedRows(batches)


def shifted(down: int, right: int, images: Tensor) -> Tensor:
    """Images ``[n, h, w]`` moved by a pixel or none, zeros where nothing was."""
    height, width = images.shape[1:]
    wide = pad(images, (1, 1, 1, 1))
    return wide[:, 1 - down : 1 - down + height, 1 - right : 1 - right + width]


def noisy(size: float, seed: int, x: Tensor) -> Tensor:
    # The same noise in each pass, and another for each block: drawn by what the block holds.
    draw = generator(seed, "noise", f"{float(x.sum()):.12g}")
    return x + size * torch.randn(x.shape, generator=draw, dtype=x.dtype)
