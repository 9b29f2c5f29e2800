r"""How well a score orders parts: rank correlations, regret and wins.

All take scores and truths of the same parts ``[m]``.  Kendall's :math:`\tau` weighs every pair
alike; the weighted one gives the pair of ranks :math:`r, s` the weight :math:`\frac1{r+1} +
\frac1{s+1}`, so that mistakes among the best parts count most,

.. math::
    \tau_w = \frac{\sum_{i<j} w_{ij}\, \operatorname{sgn}(a_i - a_j)\operatorname{sgn}(b_i - b_j)}
                  {\sqrt{\sum w_{ij} [a_i \ne a_j]}\, \sqrt{\sum w_{ij} [b_i \ne b_j]}} ,

the mean of ranking by :math:`a` and by :math:`b`.  Regret is what following the score costs: the
truth of the best part minus the best truth among the first :math:`k` by the score.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb, nan

import numpy as np
from numpy.typing import NDArray

__all__ = ["kendall", "regret", "weighted_tau", "wins"]

Numbers = Sequence[float] | NDArray[np.float64]


def kendall(scores: Numbers, truths: Numbers) -> float:
    """Kendall's τ-b: 1 for one order, -1 for the reverse; nan when all are tied.

    >>> kendall([1, 2, 3], [10, 20, 30]), kendall([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    a, b = _pair(scores, truths)
    return _correlation(a, b, np.ones((len(a), len(a))))


def weighted_tau(scores: Numbers, truths: Numbers) -> float:
    """The weighted τ, hyperbolic and additive; nan when all are tied.

    >>> round(weighted_tau([12, 2, 1, 12, 2], [1, 4, 7, 1, 0]), 5)
    -0.56695
    """
    a, b = _pair(scores, truths)
    return (_weighted(a, b, a, b) + _weighted(a, b, b, a)) / 2


def regret(scores: Numbers, truths: Numbers, first: int = 1) -> float:
    """What choosing the best of the first few by the score loses, ties taken at random.

    >>> regret([3, 2, 1], [0.8, 0.9, 0.7]), regret([3, 2, 1], [0.8, 0.9, 0.7], first=2)
    (0.09999999999999998, 0.0)
    >>> regret([1, 1], [0.8, 0.9])  # a coin decides
    0.04999999999999993
    """
    a, b = _pair(scores, truths)
    first = min(first, len(a))
    edge = np.sort(a)[-first]
    sure, tied = b[a > edge], np.sort(b[a == edge])
    floor = sure.max() if len(sure) else -np.inf
    drawn = first - len(sure)
    # The chance that the best of those drawn is the i-th of the tied ones, in rising order.
    chances = [comb(i, drawn - 1) / comb(len(tied), drawn) for i in range(len(tied))]
    expected = sum(p * max(floor, t) for p, t in zip(chances, tied.tolist(), strict=True) if p)
    return float(b.max() - expected)


def wins(scores: Numbers, truths: Numbers, noise: float = 0.0) -> float:
    """How often the score knows the better of two parts whose truths differ by more than noise.

    A tie of the score is half a win; nan when no two truths differ.

    >>> wins([1, 2, 2], [0.1, 0.2, 0.3])
    0.8333333333333334
    """
    a, b = _pair(scores, truths)
    apart = b[:, None] - b > noise
    if not apart.any():
        return nan
    return float((np.sign(a[:, None] - a)[apart] + 1).mean() / 2)


def _pair(scores: Numbers, truths: Numbers) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    a, b = np.asarray(scores, dtype=np.float64), np.asarray(truths, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise ValueError(f"scores and truths of two parts or more, got {a.shape} and {b.shape}")
    # Only the order of the scores counts, and infinite ones have one too.
    return np.unique(a, return_inverse=True)[1].astype(np.float64), b


def _weighted(
    a: NDArray[np.float64],
    b: NDArray[np.float64],
    first: NDArray[np.float64],
    second: NDArray[np.float64],
) -> float:
    """The weighted τ with ranks by one, ties broken by the other; the greatest has rank 0."""
    order = np.lexsort((second, first))[::-1]
    rank = np.empty(len(a), dtype=np.intp)
    rank[order] = np.arange(len(a))
    weight = 1 / (rank + 1.0)
    return _correlation(a, b, weight[:, None] + weight)


def _correlation(
    a: NDArray[np.float64], b: NDArray[np.float64], weights: NDArray[np.float64]
) -> float:
    x, y = np.sign(a[:, None] - a), np.sign(b[:, None] - b)
    scale = float((weights * x * x).sum()) * float((weights * y * y).sum())
    return float((weights * x * y).sum()) / scale**0.5 if scale > 0 else nan
