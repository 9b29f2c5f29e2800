r"""What the best of many candidates is really worth.

The greatest of many noisy estimates is too high, the more so the more candidates there are and the
closer they lie.  Resampling the examples shows by how much: choose the winner on a resample, and
score it on the examples that the resample left out.  (The idea is that of Tsamardinos, Greasidou
and Borboudakis, *Machine Learning* 107, 2018.)

With verdicts :math:`c \in [0,1]^{m \times n}` of :math:`m` candidates on :math:`n` examples, counts
:math:`k_{bi}` of example :math:`i` in resample :math:`b`, and :math:`o_{bi} = [k_{bi} = 0]`,

.. math::
    w_b = \arg\max_j\, (k c^\top)_{bj}, \qquad
    t_b = \frac{(o c^\top)_{b w_b}}{\sum_i o_{bi}}, \qquad
    v = \tfrac1B \sum_b t_b ,

two matrix products for all resamples.  The examples a winner is scored on had no part in choosing
it, so :math:`v` has no curse.  Its variance is that of one candidate's mean, and that of not
knowing which candidate is the best, :math:`\operatorname{var}_b \bar c_{w_b}`.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.core.seeds import generator
from dovetail.measure.intervals import normal_quantile
from dovetail.ranking.expected import trial_variance, wilson

_RESAMPLES = 500

_MOST_CELLS = 1 << 22
"""Resamples are made in blocks that stay within 16 MB of counts."""


class Bounds(NamedTuple):
    """A value and where it lies.

    >>> Bounds(0.9, 0.85, 0.95).high
    0.95
    """

    value: float
    low: float
    high: float


def honest_winner(
    per_example: Any,
    confidence: float = 0.9,
    seed: int = 0,
    *,
    worth: Any = None,
    resamples: int = _RESAMPLES,
) -> Bounds:
    """The accuracy to expect of the candidate that is best on these examples.

    Args:
        per_example: How right each candidate is on each example ``[m, n]``, such as the verdicts of
            ``expected_accuracy``; candidates are chosen by its mean.
        confidence: How often the interval should hold the true accuracy of the chosen one.
        seed: Of the resampling.
        worth: How many independent examples the n are worth for each candidate ``[m]``
            (``Expected.effective_n``), if not n.
        resamples: How many.

    >>> alike = torch.rand(40, 200, generator=torch.Generator().manual_seed(0)) < 0.8
    >>> best = float(alike.double().mean(1).max())
    >>> found = honest_winner(alike)
    >>> best > found.high, found.low < 0.8 < found.high
    (True, True)
    """
    verdicts = _verdicts(per_example)
    z, means = normal_quantile(confidence), verdicts.mean(1)
    best = int(means.argmax())
    doubt = 0.0
    value = float(means[best])
    if len(verdicts) > 1:
        inside, outside = _resampled(verdicts, seed, resamples)
        untied = torch.rand(inside.shape, generator=generator(seed, "ties"), dtype=inside.dtype)
        winners = (inside + 1e-9 * untied).argmax(1)
        value = float(outside[torch.arange(len(winners)), winners].mean())
        doubt = float(means[winners].var(correction=0))
    bounded = _bounded(verdicts)
    variance = _variance(verdicts[best], value, z, bounded) * _dearer(worth, best, verdicts)
    return _bounds(value, variance + doubt, trial_variance(value, verdicts.shape[1], z), z, bounded)


def honest_intervals(
    per_example: Any,
    confidence: float = 0.9,
    seed: int = 0,
    *,
    worth: Any = None,
    resamples: int = _RESAMPLES,
) -> tuple[Bounds, ...]:
    """Intervals ``[m]`` that hold for all candidates at once, hence for whichever is chosen.

    With the given confidence *every* interval holds its candidate's accuracy, so that the one
    picked out by any rule, by another score or by looking at the table, has it too.  The values are
    the plain means; the intervals are widened by how far the worst of the candidates strays in
    resamples of the examples, which is little when candidates err alike.

    >>> alike = torch.rand(40, 200, generator=torch.Generator().manual_seed(0)) < 0.8
    >>> all(found.low < 0.8 < found.high for found in honest_intervals(alike))
    True
    """
    verdicts = _verdicts(per_example)
    z, means = normal_quantile(confidence), verdicts.mean(1)
    bounded, n, wide = _bounded(verdicts), verdicts.shape[1], z
    variances = [_variance(row, float(row.mean()), z, bounded) for row in verdicts]
    if len(verdicts) > 1:
        # Resamples of verdicts that all agree do not stray at all: those are measured by what
        # would be a fair spread instead.
        fair = torch.tensor(variances, dtype=torch.float64)
        plain = verdicts.var(1, correction=0) / n
        spread = torch.where(plain > fair / 4, plain, fair).sqrt().clamp(min=1e-12)
        inside, _ = _resampled(verdicts, seed, resamples)
        farthest = ((inside - means).abs() / spread).amax(1)
        wide = max(z, float(farthest.quantile(confidence)))
    return tuple(
        _bounds(
            mean, variance * _dearer(worth, i, verdicts), trial_variance(mean, n, z), wide, bounded
        )
        for i, (mean, variance) in enumerate(zip(means.tolist(), variances, strict=True))
    )


def beats(first: Any, second: Any) -> float:
    r"""The probability that one candidate is truly better than another, on the same examples.

    With differences :math:`d_i` of their verdicts it is :math:`\Phi(\sum d_i / \sqrt{1 + \sum
    d_i^2})`: only examples on which they differ count, and without any it is a half.

    >>> beats([1, 1, 1, 0], [1, 1, 1, 0])
    0.5
    >>> round(beats([1] * 20, [1] * 10 + [0] * 10), 3)
    0.999
    """
    pair = _verdicts(torch.stack([torch.as_tensor(v).double().flatten() for v in (first, second)]))
    apart = pair[0] - pair[1]
    return NormalDist().cdf(float(apart.sum()) / math.sqrt(1 + float(apart.square().sum())))


def _verdicts(per_example: Any) -> Tensor:
    verdicts = torch.as_tensor(per_example).detach().cpu().double()
    if verdicts.ndim != 2 or verdicts.shape[0] < 1 or verdicts.shape[1] < 2:
        raise TaskError(
            f"verdicts must be [candidates, examples] with two examples at least, got shape "
            f"{list(verdicts.shape)}"
        )
    if not bool(verdicts.isfinite().all()):
        raise TaskError("verdicts must be finite; leave candidates out that have none")
    return verdicts


def _bounded(verdicts: Tensor) -> bool:
    return float(verdicts.min()) >= 0 and float(verdicts.max()) <= 1


def _variance(row: Tensor, value: float, z: float, bounded: bool) -> float:
    """The variance of a mean over examples; few verdicts that agree do not make it nothing."""
    n = len(row)
    varied = float(row.var())
    if not bounded:
        return varied / n
    binary = trial_variance(value, n, z)
    if bool(((row == 0) | (row == 1)).all()):
        return binary / n
    return (n * varied + 4 * binary) / (n + 4) / n


def _dearer(worth: Any, candidate: int, verdicts: Tensor) -> float:
    """How many times an example's worth of certainty costs."""
    if worth is None:
        return 1.0
    each = torch.as_tensor(worth).double().flatten()
    if len(each) != len(verdicts) or not bool((each > 0).all()):
        raise SettingsError(f"worth must be {len(verdicts)} positive numbers, one a candidate")
    return verdicts.shape[1] / float(each[candidate])


def _bounds(value: float, variance: float, binary: float, z: float, bounded: bool) -> Bounds:
    if bounded:  # as many trials as would have this variance
        return Bounds(value, *wilson(value, binary / variance, z))
    half = z * math.sqrt(variance)
    return Bounds(value, value - half, value + half)


def _resampled(verdicts: Tensor, seed: int, resamples: int) -> tuple[Tensor, Tensor]:
    """Means of the candidates on each resample, and on what it left out: both ``[B, m]``."""
    if resamples < 2:
        raise SettingsError(f"resamples must be at least 2, got {resamples}")
    n = verdicts.shape[1]
    draw = generator(seed, "winner")
    columns = verdicts.T.float()
    inside, outside = [], []
    step = max(1, _MOST_CELLS // n)
    for start in range(0, resamples, step):
        block = min(step, resamples - start)
        picked = torch.randint(n, (block, n), generator=draw)
        picked += torch.arange(block)[:, None] * n
        counts = picked.flatten().bincount(minlength=block * n).reshape(block, n)
        absent = (counts == 0).float()
        inside.append((counts.float() @ columns).double() / n)
        outside_count = absent.sum(1, keepdim=True).double()
        # With two examples a resample may leave none out: it then says what the whole says.
        scored = (absent @ columns).double() / outside_count.clamp(min=1)
        outside.append(torch.where(outside_count > 0, scored, verdicts.mean(1)))
    return torch.cat(inside), torch.cat(outside)
