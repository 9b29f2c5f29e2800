r"""Where a layer's target comes from: the projection :math:`P` of :math:`[Z \mid \beta Y]`.

Every projection proposes the weights of a layer from what is known of its input.  In all of them
:math:`\tilde Z^+ T` is taken apart as :mod:`~dovetail.closed_form.solvers` says, so no target
:math:`T` is formed.

=============== ===================================================================================
``random``      :math:`P \sim \mathcal N(0, 1)`, a bias row included
``pca``         platonic PCA: the principal components of the centred :math:`[Z \mid b Y]`
``sorted-pca``  rows of the data as weights, evenly spaced along their first principal component
``labels``      :math:`T = \alpha\beta Y P`: what the source says does not work; a baseline
``elm``         :math:`W \sim \mathcal N(0, 1)`: the extreme learning machine; a baseline
=============== ===================================================================================

The source writes :math:`\beta` into the matrix of platonic PCA as well as into the target.  The
components then are the labels' own, features are as good as left out, and its figures cannot be
had.  They can with :math:`\beta` in the target only (``reproduce/platonic_pca.py``), and that is
what ``pca`` does: in the matrix labels weigh :math:`b`, a tenth of what would balance features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.closed_form.layers import Activation, Layer
from dovetail.closed_form.rows import Added, Chained, Rows, check_alike
from dovetail.closed_form.solvers import Solver, Spectral
from dovetail.core.errors import SettingsError
from dovetail.dist.group import merge_across, rank_and_size, told_by_each
from dovetail.linalg.moments import Moments

PROJECTIONS = ("random", "pca", "sorted-pca", "labels", "elm")
RANDOM = ("random", "labels", "elm")
"""Those of which several can be tried."""

LABEL_WEIGHTS = {"random": 1.0, "labels": 1.0, "pca": 10.0}
"""What ``label_weight="auto"`` gives the labels, in units of :func:`balanced`."""

IN_COMPONENTS = 0.1
"""What labels weigh in platonic PCA's matrix, in units of :func:`balanced`."""


@dataclass(frozen=True)
class Known:
    """What a projection may use: the rows, their moments, and least squares on them."""

    rows: Rows
    moments: Moments
    solved: Solver
    weighed: Moments
    """The moments whose labels are weighed by importance; the plain ones without."""
    basis: Tensor | None = None
    """Of the span that the rows are told in, ``[inputs, d]``, where that is not all of them.  What
    is drawn, and the signs of components, are the inputs', so that it makes no difference."""


def balanced(moments: Moments) -> float:
    r"""The label weight that gives labels and features equal variance.

    :math:`\sqrt{\operatorname{tr} S / \operatorname{tr} R}`: with it nothing depends on how either
    is scaled.

    >>> rows = torch.tensor([[0.0], [1.0]])
    >>> balanced(Moments(1, 1).update(3 * rows, rows))
    3.0
    """
    features, targets = float(moments.features.trace()), float(moments.targets.trace())
    return math.sqrt(features / targets) if features > 0 and targets > 0 else 1.0


def propose(
    by: str,
    known: Known,
    width: int,
    activation: Activation,
    target_scale: float,
    label_weight: float,
    generator: torch.Generator,
) -> Layer:
    """A layer of ``width`` units by one projection."""
    d, k = known.moments.d, known.moments.k
    device = known.moments.mean.device
    if by == "elm":
        drawn = _normal(d + 1, width, generator, device)
        return Layer(target_scale * drawn[1:], target_scale * drawn[0], activation)
    if by == "sorted-pca":
        return _sorted_rows(known, width, activation, target_scale)
    labels = known.solved.labels
    if known.weighed is not known.moments:  # labels in the target, too, are weighed by importance
        labels = known.solved.solve(known.weighed.cross)
    if by == "pca":
        labels_weigh = IN_COMPONENTS * balanced(known.weighed)
        chosen = components(known.weighed, labels_weigh, width, known.basis)
        carried, from_labels = chosen[:d], label_weight * chosen[d:]
        weights = target_scale * (known.solved.carry(carried) + labels @ from_labels)
        return Layer(weights, -known.moments.feature_mean @ weights, activation)
    inputs = d if known.basis is None else len(known.basis)
    drawn = _normal(1 + inputs + k, width, generator, device)
    constant, carried, from_labels = (
        drawn[0],
        drawn[1 : inputs + 1],
        label_weight * drawn[inputs + 1 :],
    )
    if known.basis is not None:
        carried = known.basis.T @ carried
    if by == "labels":
        constant, carried = torch.zeros_like(constant), torch.zeros_like(carried)
    weights = target_scale * (known.solved.carry(carried) + labels @ from_labels)
    mean = constant + known.moments.feature_mean @ carried + known.weighed.target_mean @ from_labels
    return Layer(weights, target_scale * mean - known.moments.feature_mean @ weights, activation)


def components(
    moments: Moments, label_weight: float, width: int, basis: Tensor | None = None
) -> Tensor:
    r"""The first principal components of the centred :math:`[Z \mid b Y]`, ``[d + k, width]``.

    The sign of a component is its largest entry's, of the inputs' where a ``basis [inputs, d]`` of
    the features is given.

    >>> z, y = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [0.0], [0.0]])
    >>> components(Moments(1, 1).update(z, y), 1.0, 1).T
    tensor([[1., 0.]], dtype=torch.float64)
    """
    d, k = moments.d, moments.k
    if width > d + k:
        raise SettingsError(
            f"platonic PCA gives at most {d + k} units after {d} features and {k} targets, not "
            f"{width}; take a narrower layer, or projection='random' or 'sorted-pca' for this one"
        )
    scale = torch.ones(d + k, dtype=torch.float64, device=moments.mean.device)
    scale[d:] = label_weight
    vectors: Tensor = torch.linalg.eigh(moments.scatter * scale[:, None] * scale)[1]
    chosen = vectors.flip(1)[:, :width]
    return chosen * _signs(torch.cat([_of_inputs(chosen[:d], basis), chosen[d:]]))


def _of_inputs(directions: Tensor, basis: Tensor | None) -> Tensor:
    """Directions ``[d, c]`` of features as those of the inputs whose span they are told in."""
    return directions if basis is None else basis @ directions


def _signs(directions: Tensor) -> Tensor:
    """The sign of the largest entry of each column, ``[1, c]``."""
    return directions.gather(0, directions.abs().argmax(0, keepdim=True)).sign()


def _sorted_rows(known: Known, width: int, activation: Activation, target_scale: float) -> Layer:
    r"""Centred rows as weights, all times one number.

    Rows of non-negative inputs have non-negative products with one another: uncentred, every ReLU
    would always be on and the layer linear.  The number gives the sums that enter the activation
    a mean square of ``target_scale`` squared: a ReLU does not feel it, a tanh would saturate.
    """
    moments = known.moments
    if width > moments.rows:
        raise SettingsError(
            f"sorted PCA picks rows of the data as weights: {width} units need as many rows, there "
            f"are {moments.rows}; take fewer units or projection='random'"
        )
    mean = moments.feature_mean
    first = known.solved.first if isinstance(known.solved, Spectral) else None
    if first is None:
        first = torch.linalg.eigh(moments.features)[1][:, -1]
    first = first * _signs(_of_inputs(first[:, None], known.basis))[0]
    places, heavy, start = _places(known.rows, moments.rows, mean, first)
    picked = _picked(known.rows, evenly(places, heavy, width) - start, moments.d)
    weights = (picked - mean).T
    spread = float((weights * (moments.features @ weights)).sum()) / (moments.weight * width)
    weights = weights * (target_scale / math.sqrt(spread) if spread > 0 else 1.0)
    return Layer(weights, -mean @ weights, activation)


def evenly(places: Tensor, weights: Tensor | None, width: int) -> Tensor:
    r"""Which rows stand at evenly spaced ranks of their places: ``places [n]`` to ``[width]``.

    In ascending order the :math:`i`-th is at rank :math:`i\,n / w`, rounded.  Rows with weights
    take up as many ranks as they weigh; whole weights are copies.

    >>> evenly(torch.tensor([0.3, 0.1, 0.2, 0.4]), None, 2)
    tensor([1, 0])
    >>> evenly(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([2.0, 1.0, 0.0]), 3)
    tensor([1, 0, 0])
    """
    order = torch.argsort(places, stable=True)
    steps = torch.arange(width, dtype=torch.float64, device=places.device)
    if weights is None:
        return order[(steps * (len(order) / width)).round().long()]
    order = order[weights[order] > 0]
    upto = weights[order].cumsum(0)
    ranks = steps * (upto[-1] / width)
    if bool((upto == upto.round()).all()):
        ranks = ranks.round()
    return order[torch.searchsorted(upto, ranks, right=True).clamp(max=len(order) - 1)]


def _places(
    rows: Rows, most: int, mean: Tensor, first: Tensor
) -> tuple[Tensor, Tensor | None, int]:
    """Where all rows lie along a direction, their weights, and the number of our first."""
    # One tensor for all: small ones kept between blocks would leave holes too small for the next.
    both = mean.new_empty(most, 2)
    seen = start = 0
    for block in rows.blocks():
        check_alike(most, max(most, seen + len(block.z)))
        part = both[seen : seen + len(block.z)]
        part[:, 0] = (block.z - mean) @ first
        part[:, 1] = 1.0 if block.weights is None else block.weights
        seen += len(block.z)
    both = both[:seen]
    if rows.shared:
        start = sum(told_by_each(len(both))[: rank_and_size()[0]])
        both = merge_across(Chained(both)).tensor
    return both[:, 0], None if bool((both[:, 1] == 1).all()) else both[:, 1], start


def _picked(rows: Rows, places: Tensor, d: int) -> Tensor:
    """The rows of these places ``[w, d]``, from whichever process has them."""
    weights = torch.zeros(len(places), d, dtype=torch.float64, device=places.device)
    start = 0
    for block in rows.blocks():
        here = (places >= start) & (places < start + len(block.z))
        weights[here] = block.z[places[here] - start]
        start += len(block.z)
    return merge_across(Added(weights)).tensor if rows.shared else weights


def _normal(rows: int, columns: int, generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(device)
