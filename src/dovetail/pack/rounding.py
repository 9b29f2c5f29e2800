r"""Rounding that knows what a level costs, and that can hand its error on to the next weight.

The nearest level is not the best one: among two that are about as near, the commoner takes fewer
bits.  With the weight :math:`x = w / \Delta` in steps, and :math:`b_k = -\log_2 p_k` the bits of
level :math:`k`, whose share of the nearest levels is :math:`p_k`, a weight becomes the level

.. math::
    \arg\min_k\; (x - k)^2 + \lambda b_k ,
    \qquad\text{upwards from } k \text{ if }
    x > k + \tfrac12 + \tfrac{\lambda}{2} (b_{k+1} - b_k) .

A fine uniform quantiser has the distortion :math:`D = \Delta^2 / 12` and loses :math:`2 \ln 2\, D`
with each bit, so :math:`\lambda = \ln 2 / 6` is the price at which bits are as dear in the choice
of a level as in the choice of the step.  It saves most where there are few levels.

*Carrying.*  A row of weights :math:`w_1, \dots, w_m` meets inputs :math:`x_1, \dots, x_m`.  Rounded
one by one, the errors are as good as independent, and what the row gives is off by
:math:`\sum_j x_j \varepsilon_j`.  Carried on, a weight is rounded after adding what the weights
before it lost: with :math:`v_j = w_j + c_{j-1}`, its level :math:`\hat w_j` and the carry
:math:`c_j = v_j - \hat w_j`, the row is off by

.. math::
    \sum_j x_j (\hat w_j - w_j) = \sum_j x_j (c_{j-1} - c_j)
    = \sum_{j<m} c_j (x_{j+1} - x_j) - c_m x_m .

What counts is no longer the inputs but how much neighbours *differ*: little for the pixels of an
image or under a convolution's kernel, and less than the inputs where they share a mean, as after a
ReLU.  For unrelated inputs of mean zero it is :math:`\sqrt 2` times worse, so it has to be measured
which is better.

Weights of zero stay zero in either way.  A decoder needs to know nothing of all this.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from dovetail.pack.quantise import Grid, Numbers, finest, low_and_high, ranged
from dovetail.pack.tensors import elements_of

PRICE = math.log(2) / 6
"""Squared steps that a bit is worth."""

_MOST_COLUMNS = 1 << 16


def carries(tensor: Tensor) -> bool:
    """Whether a tensor has rows to carry errors along: two axes, and rows that are not too long.

    >>> carries(torch.zeros(3, 4)), carries(torch.zeros(4))
    (True, False)
    """
    return tensor.ndim >= 2 and 1 < tensor[0].numel() <= _MOST_COLUMNS


def rounded(
    tensor: Tensor,
    levels: int,
    *,
    channels: bool = False,
    carry: bool = False,
    price: float = PRICE,
) -> Tensor:
    """A tensor whose nearest levels are those that these ways of rounding choose.

    The smallest and the largest element of each range stay as they are, so that it is the same
    range, and ``compress({name: rounded(tensor, levels)}, levels=levels)`` has the levels that were
    chosen here.

    >>> weights = torch.tensor([[-1.0, 0.0, 0.4, 0.4, 0.4, 0.4, 0.4, 1.0]])
    >>> rounded(weights, 3, carry=True, price=0.0)[0].tolist()
    [-1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0]
    """
    matrix = ranged(tensor.detach(), channels)
    low, high = low_and_high(matrix)
    grid = Grid(min(levels, finest(tensor.dtype, low, high)), low, high)
    weights = elements_of(matrix).reshape(matrix.shape)
    places = places_of(weights, grid)
    if carry:
        rows = (len(tensor), -1)
        chosen = _carried(places.reshape(rows), (weights == 0).reshape(rows), grid.levels, price)
    else:
        chosen = nearest_cheap(places, grid.levels, price)
    new = torch.from_numpy(grid.values(chosen.reshape(matrix.shape))).to(tensor.dtype)
    new[matrix == 0] = 0.0
    least, most = matrix.amin(1, keepdim=True), matrix.amax(1, keepdim=True)
    new = new.clamp(least, most)  # the outermost levels are up to half a step beyond
    for end in (matrix.argmin(1, keepdim=True), matrix.argmax(1, keepdim=True)):
        new.scatter_(1, end, matrix.gather(1, end))
    return new.reshape(tensor.shape)


def places_of(weights: Numbers, grid: Grid) -> Numbers:
    """Weights ``[rows, columns]`` in steps above the lowest level, in float64."""
    step = np.where(grid.step > 0, grid.step, 1.0).astype(np.float64)
    places: Numbers = (weights.astype(np.float64) - grid.first) / step
    return places


def nearest_cheap(places: Numbers, levels: int, price: float = PRICE) -> Numbers:
    """The level of each place, by its distance and its price.

    >>> nearest_cheap(np.array([0.0] * 8 + [0.6, 0.9, 2.0]), 3)
    array([0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2])
    """
    return _chosen(places, _tops(places, levels, price))


def _tops(places: Numbers, levels: int, price: float) -> Numbers:
    """Up to where each level reaches: half a step, less where the next is commoner."""
    nearest = np.floor(places + 0.5).clip(0, levels - 1).astype(np.int64)
    counts = np.bincount(nearest.reshape(-1), minlength=levels).astype(np.float64)
    bits = -np.log2((counts + 0.5) / (counts.sum() + 0.5 * levels))
    tops = np.arange(levels) + 0.5
    tops[:-1] += (price / 2 * np.diff(bits)).clip(-0.5, 0.5)
    tops[-1] = np.inf
    return tops


def _chosen(places: Numbers, tops: Numbers) -> Numbers:
    below = np.floor(places).clip(0, len(tops) - 1).astype(np.int64)
    return below + (places > tops[below])


def _carried(places: Numbers, zero: Numbers, levels: int, price: float) -> Numbers:
    """The levels ``[rows, columns]`` of places whose errors go along the rows."""
    tops = _tops(places, levels, price)
    columns, stay = np.ascontiguousarray(places.T), np.ascontiguousarray(zero.T)
    carry = np.zeros(len(places))
    for place, stays in zip(columns, stay, strict=True):
        wanted = np.where(stays, place, place + carry)
        chosen = _chosen(wanted, tops)
        # Beyond the last level nothing can be made up for, and no debt is kept.
        carry = np.where(stays, carry, (wanted - chosen).clip(-1.0, 1.0))
        place[:] = chosen
    return columns.T.astype(np.int64)
