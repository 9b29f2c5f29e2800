r"""Two verdicts on the same examples: how far apart are the accuracies, and how sure is that?

Of :math:`n` examples let :math:`b` be right only after a change and :math:`c` right only before it.
The accuracies differ by :math:`(b - c) / n`, and nothing else about the two matters: what both get
right or both get wrong carries no news.  Two intervals of their own, one for each accuracy, would
ignore that the examples are the same and be far too wide.

The interval is Tango's (1998): all differences :math:`\lambda` that the score test does not reject,

.. math::
    \Bigl| \frac{b - c - n\lambda}{\sqrt{n \, (2 q_\lambda + \lambda (1 - \lambda))}} \Bigr|
    \le z ,

where :math:`q_\lambda`, the probability of a loss, is the most likely one under that difference:
the larger root of

.. math:: 2 n q^2 + \bigl((2 n - b + c) \lambda - b - c\bigr) q - c \lambda (1 - \lambda) = 0 .

It holds its level for small samples and does not shrink to a point when nothing differs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError, TaskError

__all__ = ["PairedDifference", "paired_difference", "score_interval"]


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
    """Tango's interval for the difference ``(gained - lost) / n``.

    >>> [round(bound, 3) for bound in score_interval(0, 0, 100)]
    [-0.037, 0.037]
    """
    if not 0 < confidence < 1:
        raise SettingsError(f"confidence must be above 0 and below 1, got {confidence}")
    if min(gained, lost) < 0 or gained + lost > n or n < 1:
        raise TaskError(f"{gained} gained and {lost} lost of {n} examples cannot be")
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    # By symmetry the lower bound of a gain is the upper bound of a loss, with its sign turned.
    return -_upper(lost, gained, n, z), _upper(gained, lost, n, z)


def _upper(gained: int, lost: int, n: int, z: float) -> float:
    """The largest difference that is not rejected: halving until no float lies between."""
    inside, outside = (gained - lost) / n, 1.0
    while True:
        middle = (inside + outside) / 2
        if middle in (inside, outside):
            return inside
        if _score(gained, lost, n, middle) >= -z:
            inside = middle
        else:
            outside = middle


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
