r"""How sure a number is: error bars and what they hold, a share, the difference of two shares.

**Error bars.**  A Gaussian prediction has a mean :math:`\mu_i` and a standard deviation
:math:`\sigma_i` of the *observation* (noise included).  Its central interval of level
:math:`\gamma` is :math:`\mu_i \pm z_\gamma \sigma_i` with
:math:`z_\gamma = \Phi^{-1}((1 + \gamma) / 2)`; honest error bars hold a share :math:`\gamma` of the
observations at every level.  Wide enough bars hold everything, so width, likelihood or CRPS is read
beside the coverage.  Means, deviations and observations are tensors or arrays ``[n]`` or
``[n, o]``, of one shape; every number counts, in float64.

**Two verdicts on the same examples.**  Of :math:`n` let :math:`b` be right only after a change and
:math:`c` right only before it.  The accuracies differ by :math:`(b - c) / n`, and nothing else
about the two matters: what both get right or both get wrong carries no news.  Two intervals of
their own, one for each accuracy, would ignore that the examples are the same and be far too wide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from scipy.special import betaincinv
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError
from dovetail.measure.calibration import doubles

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
"""The nominal levels of a curve, unless others are asked for."""


@dataclass(frozen=True)
class Covered:
    """The share of observations inside the intervals of one level, and their mean full width.

    ``low`` and ``high`` bound the share by an exact 95 % interval that takes observations as
    independent; several outputs of one example hardly are, and then it is too narrow.

    >>> Covered(level=0.9, share=0.8, low=0.56, high=0.94, width=3.3).consistent
    True
    """

    level: float
    share: float
    low: float
    high: float
    width: float

    @property
    def consistent(self) -> bool:
        """Whether the share found may be luck around the level."""
        return self.low <= self.level <= self.high


def coverage(mean: Any, std: Any, y: Any, level: float = 0.9) -> float:
    """The share of observations inside the central interval of a level.

    >>> coverage([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.1, -1.6, 1.7, 3.0])
    0.5
    """
    return coverage_curve(mean, std, y, (level,))[0].share


def coverage_curve(
    mean: Any, std: Any, y: Any, levels: Sequence[float] = LEVELS
) -> tuple[Covered, ...]:
    """The coverage at several levels, in the order given.

    >>> [found.share for found in coverage_curve([0.0, 0.0], [1.0, 1.0], [0.5, 2.0], (0.5, 0.99))]
    [0.5, 1.0]
    """
    scores, sigma = _standardised(mean, std, y)
    shares = []
    for level in levels:
        z = normal_quantile(level)
        inside, n = int((scores.abs() <= z).sum()), scores.numel()
        low, high = share_interval(inside, n)
        shares.append(Covered(level, inside / n, low, high, 2 * z * float(sigma.mean())))
    return tuple(shares)


def gaussian_nll(mean: Any, std: Any, y: Any) -> float:
    r"""Negative log-likelihood an observation, nats; lower is better.

    .. math::
        \frac1n \sum_i \tfrac12 \log 2\pi\sigma_i^2 + \frac{(y_i - \mu_i)^2}{2\sigma_i^2}

    >>> round(gaussian_nll([0.0], [1.0], [0.0]), 4)
    0.9189
    """
    scores, sigma = _standardised(mean, std, y)
    return float((scores.square() / 2 + sigma.log()).mean()) + math.log(2 * math.pi) / 2


def crps(mean: Any, std: Any, y: Any) -> float:
    r"""Continuous ranked probability score, in the unit of y; lower is better.

    With :math:`s = (y - \mu) / \sigma`, the distribution function and density of the normal law,

    .. math::
        \int (F(t) - [y \le t])^2 \, dt
        = \sigma \bigl( s (2 \Phi(s) - 1) + 2 \varphi(s) - 1 / \sqrt\pi \bigr) .

    Proper as the likelihood is, but an outlier costs its distance and not its square.

    >>> round(crps([0.0], [1e-9], [3.0]), 4)  # without spread, the absolute error
    3.0
    """
    s, sigma = _standardised(mean, std, y)
    density = torch.exp(-s.square() / 2) / math.sqrt(2 * math.pi)
    score = s * torch.erf(s / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi)
    return float((sigma * score).mean())


def interval_width(std: Any, level: float = 0.9) -> float:
    r"""The mean full width :math:`2 z_\gamma \bar\sigma` of the central intervals of a level.

    >>> round(interval_width([1.0, 1.0], 0.95), 2)
    3.92
    """
    return 2 * normal_quantile(level) * float(_deviations(std).mean())


def refuse_no_share(confidence: float) -> None:
    """Refuse a confidence, or the level of an interval, that is no share."""
    if not 0 < confidence < 1:
        raise SettingsError(
            f"a confidence or level lies between 0 and 1 (0.9 for 90 %), got {confidence}"
        )


def normal_quantile(confidence: float) -> float:
    r""":math:`z_\gamma = \Phi^{-1}((1 + \gamma) / 2)`: a share γ of a normal law lies within ±z.

    >>> round(normal_quantile(0.95), 2)
    1.96
    """
    refuse_no_share(confidence)
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _standardised(mean: Any, std: Any, y: Any) -> tuple[Tensor, Tensor]:
    """The errors in deviations, and the deviations: flat, float64."""
    sigma = _deviations(std)
    mu, target = doubles(mean), doubles(y)
    shapes = [_shape(each) for each in (mu, sigma, target)]
    if len(set(shapes)) > 1 or len(shapes[0]) not in (1, 2):
        raise TaskError(
            "means, deviations and observations are [n] or [n, o], all three alike; got "
            f"{list(mu.shape)}, {list(sigma.shape)} and {list(target.shape)}"
        )
    if not (mu.isfinite().all() and target.isfinite().all()):
        raise TaskError("means or observations hold NaN or infinite values; leave those rows out")
    scores = (target.reshape(-1) - mu.reshape(-1)) / sigma.reshape(-1)
    return scores, sigma.reshape(-1)


def _shape(values: Tensor) -> tuple[int, ...]:
    """A column ``[n, 1]`` is ``[n]``, so that the two never broadcast to ``[n, n]``."""
    shape = tuple(values.shape)
    return shape[:1] if len(shape) == 2 and shape[1] == 1 else shape


def _deviations(std: Any) -> Tensor:
    sigma = doubles(std)
    if sigma.numel() == 0:
        raise TaskError("there are no predictions: coverage is measured on at least one")
    if not sigma.isfinite().all() or sigma.min() <= 0:
        raise TaskError(
            "standard deviations must be finite and above zero; those of an observation include "
            "the noise: the root of the function's variance plus the noise's"
        )
    return sigma


def share_interval(successes: int, trials: int, *, confidence: float = 0.95) -> tuple[float, float]:
    r"""The ends of the exact interval for the probability of a success.

    That of Clopper and Pearson (1934): all :math:`p` under which neither so few nor so many
    successes :math:`k` of :math:`n` would be rarer than :math:`\alpha / 2`.  Binomial tails are
    incomplete beta functions, so its ends are their quantiles,

    .. math::
        p_\text{low} = B^{-1}_{\alpha/2}(k, n - k + 1) , \qquad
        p_\text{high} = B^{-1}_{1-\alpha/2}(k + 1, n - k) .

    It is never too narrow, which matters for the few examples that one bin of a diagram holds.

    >>> [round(bound, 3) for bound in share_interval(18, 20)]
    [0.683, 0.988]
    """
    refuse_no_share(confidence)
    if not 0 <= successes <= trials or trials < 1:
        raise TaskError(f"{successes} successes of {trials} trials cannot be")
    tail, failures = (1 - confidence) / 2, trials - successes
    low = float(betaincinv(successes, failures + 1, tail)) if successes else 0.0
    high = float(betaincinv(successes + 1, failures, 1 - tail)) if failures else 1.0
    return low, high


@dataclass(frozen=True)
class PairedDifference:
    """How often two classifiers are right on the same ``n`` examples, and the gain of the second.

    ``both`` were right both times, ``gained`` only after, ``lost`` only before; ``low`` and
    ``high`` bound the difference of the accuracies.

    >>> PairedDifference(n=100, both=80, gained=10, lost=4, low=-0.01, high=0.14)
    PairedDifference(84.0% -> 90.0%: +6.0 points [-1.0, +14.0], n 100)
    """

    n: int
    both: int
    gained: int
    lost: int
    low: float
    high: float
    confidence: float = 0.95

    @property
    def before(self) -> float:
        """The first accuracy."""
        return (self.both + self.lost) / self.n

    @property
    def after(self) -> float:
        """The second accuracy."""
        return (self.both + self.gained) / self.n

    @property
    def difference(self) -> float:
        """The second accuracy less the first."""
        return (self.gained - self.lost) / self.n

    @property
    def sure(self) -> bool:
        """Whether the interval leaves out zero: one of the two is better."""
        return self.low > 0 or self.high < 0

    @property
    def shown(self) -> str:
        """The difference in points, with its interval."""
        values = (100 * value for value in (self.difference, self.low, self.high))
        return "{:+.1f} points [{:+.1f}, {:+.1f}]".format(*values)

    def __repr__(self) -> str:
        return f"PairedDifference({self.before:.1%} -> {self.after:.1%}: {self.shown}, n {self.n})"


def paired_difference(
    before: Tensor, after: Tensor, *, confidence: float = 0.95
) -> PairedDifference:
    """Compare two verdicts ``[n]``, true where right, on the same examples in the same order.

    >>> before, after = torch.tensor([1, 1, 0, 0]).bool(), torch.tensor([1, 1, 1, 0]).bool()
    >>> found = paired_difference(before, after)
    >>> found.difference, found.gained, found.lost, found.sure
    (0.25, 1, 0, False)
    """
    for verdict in (before, after):
        if verdict.dtype != torch.bool or verdict.ndim != 1:
            raise TaskError(
                "verdicts are booleans [n], true where the answer was right; got "
                f"{verdict.dtype} {list(verdict.shape)}"
            )
    if len(before) != len(after) or len(before) == 0:
        raise TaskError(
            "two verdicts are compared on the same examples, at least one; there are "
            f"{len(before)} and {len(after)}"
        )
    both = int((before & after).sum())
    gained, lost = int((after & ~before).sum()), int((before & ~after).sum())
    low, high = score_interval(gained, lost, len(before), confidence=confidence)
    return PairedDifference(len(before), both, gained, lost, low, high, confidence)


def score_interval(
    gained: int, lost: int, n: int, *, confidence: float = 0.95
) -> tuple[float, float]:
    r"""Tango's interval (1998) for the difference ``(gained - lost) / n``.

    With :math:`b` gained and :math:`c` lost, all differences :math:`\lambda` that the score test
    does not reject,

    .. math::
        \Bigl| \frac{b - c - n\lambda}{\sqrt{n \, (2 q_\lambda + \lambda (1 - \lambda))}} \Bigr|
        \le z ,

    where :math:`q_\lambda`, the probability of a loss, is the most likely one under that
    difference: the larger root of

    .. math:: 2 n q^2 + \bigl((2 n - b + c) \lambda - b - c\bigr) q - c \lambda (1 - \lambda) = 0 .

    It holds its level for small samples and does not shrink to a point when nothing differs.

    >>> [round(bound, 3) for bound in score_interval(0, 0, 100)]
    [-0.037, 0.037]
    """
    z = normal_quantile(confidence)
    if min(gained, lost) < 0 or gained + lost > n or n < 1:
        raise TaskError(f"{gained} gained and {lost} lost of {n} examples cannot be")
    # By symmetry the lower bound of a gain is the upper bound of a loss, with its sign turned.
    return -_upper(lost, gained, n, z), _upper(gained, lost, n, z)


def _upper(gained: int, lost: int, n: int, z: float) -> float:
    """The largest difference that is not rejected: halving until no float lies between."""
    inside, outside = (gained - lost) / n, 1.0
    while (middle := (inside + outside) / 2) not in (inside, outside):
        if _score(gained, lost, n, middle) >= -z:
            inside = middle
        else:
            outside = middle
    return inside


def _score(gained: int, lost: int, n: int, difference: float) -> float:
    """How many standard errors the observed difference lies above the supposed one."""
    a = 2 * n
    b = (2 * n - gained + lost) * difference - gained - lost
    c = -lost * difference * (1 - difference)
    q = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
    variance = n * (2 * q + difference * (1 - difference))
    excess = gained - lost - n * difference
    if variance <= 0:
        return 0.0 if excess == 0 else math.copysign(math.inf, excess)
    return excess / math.sqrt(variance)
