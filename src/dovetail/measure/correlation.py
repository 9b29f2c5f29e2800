r"""How strongly the channels of two sets of features correlate on the same inputs.

With :math:`a_{si}` and :math:`b_{sj}` the value of channel i or j at sample s, in deviations from
its mean, the correlation is

.. math:: r_{ij} = \frac{\sum_s a_{si} b_{sj}}{\sqrt{\sum_s a_{si}^2 \sum_s b_{sj}^2}} .

Every position of a feature map is a sample.  Two networks may have learnt the same features in
another order, so besides :math:`r_{ii}` one asks for the permutation :math:`\pi` with the largest
:math:`\sum_i r_{i\pi(i)}` (an assignment problem, solved exactly).  A channel that never changes
correlates with nothing: 0.  All sums are in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from dovetail.core.errors import TaskError

__all__ = ["CrossMoments", "best_permutation", "channel_correlation"]

_CONSTANT = 1e-12
"""A deviation this small beside the mean is rounding."""


def channel_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Channel i of ``a`` with channel i of ``b``, both ``[n, d]`` or ``[n, d, ...]``: ``[d]``.

    >>> a = torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> channel_correlation(a, -a).round(decimals=9)
    tensor([-1.,  0.], dtype=torch.float64)
    """
    return CrossMoments.of(a, b).correlations().diagonal()


def best_permutation(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """For each channel of ``a`` its partner in ``b``, and the correlation of the two: ``[d]`` each.

    >>> a = torch.tensor([[0.0, 1.0], [1.0, 5.0], [2.0, 3.0]])
    >>> partner, correlation = best_permutation(a, a.flip(1))
    >>> partner, correlation.round(decimals=9)
    (tensor([1, 0]), tensor([1., 1.], dtype=torch.float64))
    """
    return CrossMoments.of(a, b).matched()


@dataclass(frozen=True)
class CrossMoments:
    r"""Counts, means and sums of products about the means of two sets of features, mergeable.

    Rows that come in pieces are folded in as they come: with :math:`\delta = \bar x_2 - \bar x_1`,
    the sums about the common mean of both pieces are the sums of each, and
    :math:`\delta_a \delta_b^\top n_1 n_2 / (n_1 + n_2)`.  Nothing cancels, however large the means.

    >>> a, b = torch.rand(8, 3), torch.rand(8, 3)
    >>> pieces = CrossMoments.of(a[:5], b[:5]).merge(CrossMoments.of(a[5:], b[5:]))
    >>> torch.allclose(pieces.correlations(), CrossMoments.of(a, b).correlations())
    True
    """

    count: int
    mean_a: Tensor
    mean_b: Tensor
    squares_a: Tensor
    squares_b: Tensor
    products: Tensor

    @classmethod
    def of(cls, a: Tensor, b: Tensor) -> CrossMoments:
        """The moments of rows ``[n, d]``, or of maps ``[n, d, ...]`` with equal positions."""
        if a.shape != b.shape or a.ndim < 2:
            raise TaskError(
                "channels are correlated between features of one shape [n, d, ...]; "
                f"got {tuple(a.shape)} and {tuple(b.shape)}"
            )
        if a.numel() == 0:
            raise TaskError("there are no features to correlate")
        rows_a, rows_b = _rows(a), _rows(b)
        mean_a, mean_b = rows_a.mean(0), rows_b.mean(0)
        rows_a, rows_b = rows_a - mean_a, rows_b - mean_b
        squares_a, squares_b = rows_a.square().sum(0), rows_b.square().sum(0)
        return cls(len(rows_a), mean_a, mean_b, squares_a, squares_b, rows_a.T @ rows_b)

    def merge(self, other: CrossMoments) -> CrossMoments:
        """The moments of both together."""
        if self.products.shape != other.products.shape:
            raise TaskError(f"{len(self.mean_a)} channels do not merge with {len(other.mean_a)}")
        count = self.count + other.count
        delta_a, delta_b = other.mean_a - self.mean_a, other.mean_b - self.mean_b
        weight = self.count * other.count / count
        return CrossMoments(
            count,
            self.mean_a + delta_a * (other.count / count),
            self.mean_b + delta_b * (other.count / count),
            self.squares_a + other.squares_a + delta_a.square() * weight,
            self.squares_b + other.squares_b + delta_b.square() * weight,
            self.products + other.products + torch.outer(delta_a, delta_b) * weight,
        )

    def correlations(self) -> Tensor:
        """Channel i of the first with channel j of the second ``[d, d]``, in [-1, 1]."""
        spread_a = self._spread(self.mean_a, self.squares_a)
        spread_b = self._spread(self.mean_b, self.squares_b)
        scale = torch.outer(spread_a, spread_b)
        found = torch.where(scale > 0, self.products / scale, 0.0)
        return found.clamp(-1.0, 1.0)

    def matched(self) -> tuple[Tensor, Tensor]:
        """The permutation ``[d]`` with the largest sum of correlations, and these ``[d]``."""
        table = self.correlations().cpu()
        _, partners = linear_sum_assignment(table.numpy(), maximize=True)
        partner = torch.from_numpy(partners)
        return partner, table.gather(1, partner[:, None])[:, 0]

    def _spread(self, mean: Tensor, squares: Tensor) -> Tensor:
        """The root of the squares; of a channel that never changes, exactly zero."""
        rounding = self.count * (_CONSTANT * mean).square()
        return torch.where(squares > rounding, squares, 0.0).sqrt()


def _rows(features: Tensor) -> Tensor:
    """Every position as a sample: ``[n, d, ...]`` to ``[n · positions, d]``."""
    if not features.isfinite().all():
        raise TaskError("the features hold NaN or infinite values; nothing correlates with those")
    return features.double().movedim(1, -1).reshape(-1, features.shape[1])
