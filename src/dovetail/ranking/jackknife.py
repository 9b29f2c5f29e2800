r"""How sure a score is: the delete-a-group jackknife, and the null of shuffled labels.

The examples are dealt to :math:`G` groups, alike in every class.  With :math:`\theta_{(g)}` the
score without group :math:`g`,

.. math:: \mathrm{se}^2 = \frac{G - 1}{G} \sum_g (\theta_{(g)} - \bar\theta_{(\cdot)})^2 .

A bootstrap would be wrong here: an example drawn twice makes a pair that is perfectly alike.
Two candidates are compared on the *same* groups: what both find hard cancels in the difference.
"""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from dovetail.core.seeds import generator

__all__ = ["beats", "dealt", "half_width", "standard_error", "z_score"]


def dealt(targets: Tensor, groups: int, seed: int) -> Tensor:
    """A group ``[n]`` for each example, classes spread evenly over the groups.

    The only example of a class is in no group (-1): without it there would be another task.

    >>> dealt(torch.tensor([0] * 4 + [1] * 4), 4, seed=0).bincount()
    tensor([2, 2, 2, 2])
    >>> dealt(torch.tensor([0, 0, 0, 7]), 3, seed=0)[3]
    tensor(-1)
    """
    draw = generator(seed, "groups")
    order = torch.randperm(len(targets), generator=draw)
    if not targets.is_floating_point() and targets.ndim == 1:
        order = order[torch.argsort(targets[order], stable=True)]
    group = torch.full((len(targets),), -1)
    if not targets.is_floating_point() and targets.ndim == 1:
        _, codes, counts = torch.unique(targets, return_inverse=True, return_counts=True)
        order = order[counts[codes[order]] > 1]
    group[order] = torch.arange(len(order)) % groups
    return group


def standard_error(replicates: Tensor) -> float:
    """The jackknife's standard error from the scores ``[G]`` without each group.

    >>> values = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    >>> without = (values.sum() - values) / 3
    >>> math.isclose(standard_error(without), values.std().item() / 2)
    True
    """
    count = len(replicates)
    spread = (replicates - replicates.mean()).square().sum()
    return math.sqrt((count - 1) / count * float(spread))


def half_width(replicates: Tensor, confidence: float) -> float:
    """Half the width of the score's interval, by Student's t with ``G - 1`` degrees of freedom.

    >>> half_width(torch.tensor([0.5, 0.5, 0.5]), 0.9)
    0.0
    """
    quantile = float(stats.t.ppf((1 + confidence) / 2, len(replicates) - 1))
    return quantile * standard_error(replicates)


def beats(difference: float, replicates: Tensor) -> float:
    """The probability that a difference of two scores is truly positive.

    Args:
        difference: The one score less the other.
        replicates: The same difference without each group ``[G]``.

    >>> beats(0.0, torch.tensor([0.1, -0.1, 0.0]))
    0.5
    """
    error = standard_error(replicates)
    if error == 0:
        return 0.5 if difference == 0 else float(difference > 0)
    return float(stats.t.cdf(difference / error, len(replicates) - 1))


def z_score(score: float, null: Tensor) -> float | None:
    """How many deviations the score lies above the scores ``[P]`` of shuffled labels.

    >>> z_score(3.0, torch.tensor([-1.0, 0.0, 1.0]))
    3.0
    """
    deviation = float(null.double().std())
    if not deviation > 0:
        return None
    return (score - float(null.double().mean())) / deviation
