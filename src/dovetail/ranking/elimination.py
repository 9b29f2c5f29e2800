r"""Which candidates can no longer be the best: elimination on a growing sample.

Candidates are looked at with :math:`n_1 < n_2 = 2 n_1 < \dots < N` examples, each time the same for
all.  Verdicts :math:`\ell_{ji}` say how right the leave-one-out head of candidate :math:`j` is on
example :math:`i`.  Candidate :math:`b` falls out when some other candidate :math:`j` is ahead of it
by more than chance explains and more than :math:`b` may still catch up,

.. math::
    D_{jb} > z_b\, s_{jb} + c\,\max(0,\; -G_{jb}) ,
    \qquad D_{jb} = \tfrac1n \textstyle\sum_i (\ell_{ji} - \ell_{bi}) .

**Chance.**  :math:`s_{jb}^2 = (1 + \kappa)\,(1 + \sum_i (\ell_{ji} - \ell_{bi} - D_{jb})^2) / n^2`
is the variance of the paired difference, never nothing, and dearer by what rows help each other
(:mod:`dovetail.ranking.expected`).  With :math:`\xi` normal, of mean zero and the covariance of the
candidates' means, and :math:`L` looks at which candidates may fall, :math:`z_b` is the quantile

.. math:: \Pr\Bigl(\max_j\, (\xi_j - \xi_b) / s_{jb} > z_b\Bigr) = \alpha / L

over *all* rivals of :math:`b` at once, who err alike to the degree that they do.  Rivals that fell
stay counted: :math:`z_b` never shrinks from look to look.  Let :math:`b` be truly the best with so
many labels.  Then no :math:`D_{jb}` is positive but by chance: the probability that :math:`b` falls
at a look is nominally at most :math:`\alpha / L`, that it ever falls at most :math:`\alpha`.  That
is a normal approximation: of twelve equal candidates each fell in 10.5 % of the simulated runs for
a nominal 10 % (two looks, with neither the guard below nor :math:`\kappa`;
``reproduce/elimination_simulation.py``), of two in fewer.
Asking about the best, and not about all pairs, needs no correction for the choice of the leader.

**Learning curves.**  All of this is at equal :math:`n`, and the best with 125 labels need not be
the best with 2000: wide features gain more.  :math:`G_{jb}` is by how much the lead of :math:`j`
grew since the last look, with :math:`m` examples, on those that were there at both.  If a doubling
of the labels brings no more than the one before, what is still to come until :math:`N` is at
most the last gain times

.. math:: c = \log(N/n) \,/\, \log(n/m) ,

the number of doublings left.  This is a guard, not a bound: :math:`G` is an estimate, and a curve
that bends upwards later is missed.  It needs two looks, so that nobody falls at the first.  The
rule is one of seven that were compared (``reproduce/rank_anytime.py`` says on what).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from dovetail.core.seeds import generator

FIRST_LOOK = 50
"""Examples of the first look, at least."""

_A_CLASS = 4
"""And so many of each class."""

_DRAWS = 4000


class Fall(NamedTuple):
    """Who fell: its place among the candidates, behind whom, by how much, and at least how much.

    >>> Fall(2, 0, 0.1, 0.04).behind
    0.1
    """

    candidate: int
    rival: int
    behind: float
    at_least: float


def look_sizes(samples: int, classes: int = 0) -> tuple[int, ...]:
    """Numbers of examples to look at: all of them, half of them, and so on down to about fifty.

    >>> look_sizes(2000), look_sizes(2000, classes=100), look_sizes(60)
    ((62, 125, 250, 500, 1000, 2000), (500, 1000, 2000), (60,))
    """
    least = max(FIRST_LOOK, _A_CLASS * classes)
    sizes = [samples]
    while sizes[-1] // 2 >= least:
        sizes.append(sizes[-1] // 2)
    return tuple(reversed(sizes))


def still_to_come(before: int, now: int, last: int) -> float:
    """How many times the last gain may still be gained until the last look.

    >>> still_to_come(50, 100, 400), still_to_come(100, 200, 200)
    (2.0, 0.0)
    """
    return math.log(last / now) / math.log(now / before)


def thresholds(verdicts: Tensor, *, level: float, seed: int = 0) -> Tensor:
    """:math:`z_b` of every candidate ``[m]``: how many errors a rival must be ahead of it.

    Args:
        verdicts: How right each candidate is on each example ``[m, n]``.
        level: The probability that the best of them may fall at this look.
        seed: Of the draws.

    >>> verdicts = torch.eye(8).repeat(1, 20)
    >>> bool((thresholds(verdicts, level=0.05) > 1.645).all())  # seven rivals, not one
    True
    """
    centred = verdicts - verdicts.mean(1, keepdim=True)
    spread = _of_differences(centred)
    values, vectors = torch.linalg.eigh(centred @ centred.T)
    draws = torch.randn(
        _DRAWS, len(verdicts), generator=generator(seed, "looks"), dtype=torch.float64
    )
    root = vectors * values.clamp(min=0).sqrt() / verdicts.shape[1]
    strayed = draws @ root.T.to(draws.dtype)  # [draws, m]
    single = NormalDist().inv_cdf(1 - level)
    least = []
    for b in range(len(verdicts)):
        farthest = ((strayed - strayed[:, b : b + 1]) / spread[:, b]).amax(1)
        least.append(max(single, float(farthest.quantile(1 - level))))
    return torch.tensor(least, dtype=torch.float64)


def falls(
    verdicts: Tensor,
    earlier: Tensor,
    thresholds: Tensor,
    *,
    ahead: float,
    worth: Tensor | None = None,
) -> list[Fall]:
    """The candidates that fall out at a look, by their places.

    Args:
        verdicts: How right each candidate is on each example ``[m, n]``.
        earlier: The same for the first ``h`` examples, as it was at the last look ``[m, h]``.
        thresholds: :math:`z_b` of each ``[m]``, see :func:`thresholds`.
        ahead: :math:`c`, see :func:`still_to_come`.
        worth: How many independent examples the n are worth for each ``[m]``, if not n.

    >>> draw = torch.Generator().manual_seed(0)
    >>> now = (torch.rand(3, 200, generator=draw) < torch.tensor([[0.9], [0.88], [0.5]])).double()
    >>> far = thresholds(now, level=0.02)
    >>> [fall.candidate for fall in falls(now, now[:, :100], far, ahead=1.0)]
    [2]
    """
    n, means = verdicts.shape[1], verdicts.mean(1)
    lead = means[:, None] - means  # of the row over the column
    error = _of_differences(verdicts - means[:, None])
    if worth is not None:
        dearer = (n / worth.double()).clamp(min=1)
        error = error * torch.maximum(dearer[:, None], dearer).sqrt()
    gained = (verdicts[:, : earlier.shape[1]] - earlier).mean(1)
    catching_up = (gained - gained[:, None]).clamp(min=0)
    sure = lead - thresholds * error
    beyond = sure - ahead * catching_up
    beyond.fill_diagonal_(-math.inf)
    rivals = beyond.argmax(0).tolist()
    return [
        Fall(b, j, float(lead[j, b]), float(sure[j, b]))
        for b, j in enumerate(rivals)
        if beyond[j, b] > 0
    ]


def _of_differences(centred: Tensor) -> Tensor:
    """Standard errors ``[m, m]`` of the mean differences of rows ``[m, n]`` that have no mean."""
    products = centred @ centred.T
    own = products.diagonal()
    squares = (own[:, None] + own - 2 * products).clamp(min=0)
    return (1 + squares).sqrt() / centred.shape[1]
