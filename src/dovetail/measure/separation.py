r"""How far features have separated classes: by a linear map, by their scatter; and dead features.

With the features of :math:`n` examples and a column of ones as :math:`Z`, and the classes as a
matrix :math:`Y` of zeros and ones, the **least-squares distance**

.. math::
    \frac1n \lVert Y - Z Z^+ Y\rVert_F^2

is what the best linear map leaves of the labels: 0 where it tells them all,
:math:`1 - \sum_c p_c^2` where features say nothing.  Wide features explain by chance:
:math:`r` directions that know nothing of the labels leave, on average over their order,

.. math::
    \Bigl(1 - \sum_c p_c^2\Bigr)\Bigl(1 - \frac{r}{n - 1}\Bigr) ,

zero from :math:`r = n - 1` on.  Read it beside that number, or give more examples.

**Class scatter** is the share of the features' variance that lies between the means of the classes,
:math:`\sum_c n_c \lVert\mu_c - \mu\rVert^2 / \sum_i \lVert z_i - \mu\rVert^2`: 1 where every class
is one point, about :math:`(C - 1)/(n - 1)` where features say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from dovetail.linalg.least_squares import LeastSquares
from dovetail.measure.inputs import as_rows, rows_and_codes

_ROUNDING = 8
"""A column whose values differ by no more of their last digits than this does not vary."""


@dataclass(frozen=True)
class LinearFit:
    """What the best linear map of features leaves of the labels, and what one would by chance.

    ``rank`` is of the centred features.
    """

    distance: float
    by_chance: float
    rank: int


def least_squares_distance(features: Any, labels: Any) -> float:
    r""":math:`\frac1n \lVert Y - Z Z^+ Y\rVert_F^2` of rows ``[n, d]`` with classes ``[n]``.

    By an orthogonal factorisation in float64, of blocks of rows; directions no longer than rounding
    errors count as none.

    >>> round(least_squares_distance([[0.0], [1.0], [2.0], [3.0]], [0, 1, 1, 0]), 9)
    0.5
    >>> least_squares_distance([[0.0], [0.0], [1.0]], ["a", "a", "b"]) < 1e-15
    True
    """
    return linear_fit(features, labels).distance


def linear_fit(features: Any, labels: Any) -> LinearFit:
    """The least-squares distance with what it is by chance, for so many features.

    >>> fit = linear_fit([[0.0], [1.0], [2.0], [3.0]], [0, 1, 1, 0])
    >>> round(fit.distance, 6), round(fit.by_chance, 6), fit.rank
    (0.5, 0.333333, 1)
    """
    rows, codes, _ = rows_and_codes(features, labels, least=1)
    n, width = rows.shape
    targets = one_hot(codes).double()
    if width > n:  # a rotation to n coordinates: the same plane, and a triangle that fits in memory
        rows = torch.linalg.qr(rows.T, mode="r").R.T
    fit = LeastSquares().update(rows, targets)
    left = fit.squared_error(fit.solve()) / n
    share = targets.mean(0)
    nothing = max(0.0, 1 - float(share.square().sum()))
    # A residual is no shorter than nothing, and no longer than what a constant leaves.
    distance = min(max(left, 0.0), nothing)
    return LinearFit(distance, nothing * (1 - fit.rank / (n - 1)) if n > 1 else 0.0, fit.rank)


def class_scatter(features: Any, labels: Any) -> float:
    """The share of the features' variance that lies between classes; 0 where nothing varies.

    >>> class_scatter([[0.0], [0.0], [2.0], [2.0]], [0, 0, 1, 1])
    1.0
    >>> class_scatter([[0.0], [2.0], [0.0], [2.0]], [0, 0, 1, 1])
    0.0
    """
    rows, codes, count = rows_and_codes(features, labels, least=1)
    alive = ~dead_features(rows)
    if not bool(alive.any()):
        return 0.0
    centred = rows[:, alive] - rows[:, alive].mean(0)
    centred /= centred.abs().max()
    sums = centred.new_zeros(count, centred.shape[1]).index_add_(0, codes, centred)
    between = (sums.square().sum(1) / codes.bincount()).sum()
    return min(1.0, float(between / centred.square().sum()))


def dead_features(features: Any) -> Tensor:
    """Columns that are the same for all rows but for rounding, bool ``[d]``.

    >>> dead_features([[0.0, 1.0], [0.0, 2.0]])
    tensor([ True, False])
    """
    digits = features.dtype if isinstance(features, Tensor) else None
    rows = as_rows(features)
    eps = torch.finfo(digits if digits is not None and digits.is_floating_point else rows.dtype).eps
    low, high = rows.aminmax(dim=0)
    return (high - low) <= _ROUNDING * eps * torch.maximum(low.abs(), high.abs())
