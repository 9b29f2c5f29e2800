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

from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.linalg.moments import Moments
from dovetail.measure.forward import REFUSED, prepare, refuse_other_inputs
from dovetail.measure.recombination import Alike
from dovetail.parts.modules import evaluating
from dovetail.parts.part import Part
from dovetail.tasks.task import Task

_CONSTANT = 1e-12
"""A deviation this small beside the mean is rounding."""


def channel_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Channel i of ``a`` with channel i of ``b``, both ``[n, d]`` or ``[n, d, ...]``: ``[d]``.

    >>> a = torch.tensor([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]])
    >>> channel_correlation(a, -a).round(decimals=9)
    tensor([-1.,  0.], dtype=torch.float64)
    """
    return correlations(channel_moments(a, b)).diagonal()


def best_permutation(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """For each channel of ``a`` its partner in ``b``, and the correlation of the two: ``[d]`` each.

    >>> a = torch.tensor([[0.0, 1.0], [1.0, 5.0], [2.0, 3.0]])
    >>> partner, correlation = best_permutation(a, a.flip(1))
    >>> partner, correlation.round(decimals=9)
    (tensor([1, 0]), tensor([1., 1.], dtype=torch.float64))
    """
    return matched(channel_moments(a, b))


def channel_moments(a: Tensor, b: Tensor) -> Moments:
    """What correlations need of rows ``[n, d]``, or of maps ``[n, d, ...]`` with equal positions.

    Those of pieces merge to those of the whole.

    >>> a, b = torch.rand(8, 3), torch.rand(8, 3)
    >>> pieces = channel_moments(a[:5], b[:5]).merge(channel_moments(a[5:], b[5:]))
    >>> torch.allclose(correlations(pieces), correlations(channel_moments(a, b)))
    True
    """
    if a.shape != b.shape or a.ndim < 2:
        raise TaskError(
            "channels are correlated between features of one shape [n, d, ...]; "
            f"got {tuple(a.shape)} and {tuple(b.shape)}"
        )
    if a.numel() == 0:
        raise TaskError("there are no features to correlate")
    return Moments(a.shape[1], a.shape[1], a.device, diagonal="both").update(_rows(a), _rows(b))


def correlations(moments: Moments) -> Tensor:
    """Channel i of the first with channel j of the second ``[d, d]``, in [-1, 1]."""
    squares = torch.cat([moments.features, moments.targets])
    # Of a channel that never changes, exactly zero.
    rounding = moments.rows * (_CONSTANT * moments.mean).square()
    spread = torch.where(squares > rounding, squares, 0.0).sqrt()
    scale = torch.outer(spread[: moments.d], spread[moments.d :])
    return torch.where(scale > 0, moments.cross / scale, 0.0).clamp(-1.0, 1.0)


def matched(moments: Moments) -> tuple[Tensor, Tensor]:
    """The permutation ``[d]`` with the largest sum of correlations, and these ``[d]``."""
    table = correlations(moments).cpu()
    partner = assigned(table)
    return partner, table.gather(1, partner[:, None])[:, 0]


def assigned(table: Tensor) -> Tensor:
    """For each row of a table ``[d, d]`` the column of the permutation with the largest sum.

    >>> assigned(torch.tensor([[1.0, 2.0], [5.0, 3.0]]))
    tensor([1, 0])
    """
    _, partners = linear_sum_assignment(table.numpy(), maximize=True)
    return torch.from_numpy(partners)


def _rows(features: Tensor) -> Tensor:
    """Every position as a sample: ``[n, d, ...]`` to ``[n · positions, d]``."""
    if not features.isfinite().all():
        raise TaskError("the features hold NaN or infinite values; nothing correlates with those")
    return features.double().movedim(1, -1).reshape(-1, features.shape[1])


_WIDEST = 4096
"""More channels are left out: every one is correlated with every other, and then matched."""


def alike(fronts: Mapping[str, Part], task: Task, batches: Sequence[Tensor]) -> tuple[Alike, ...]:
    """Correlate every two fronts that give one tensor of the same shape for the same images.

    Each front prepares the images in its own way.  One that cannot take them, or gives no finite
    numbers for them, is left out.

    Args:
        fronts: Parts by name.
        task: Where the images come from.
        batches: Which of them, rows of the task.
    """
    remaining = dict(fronts)
    moments: dict[tuple[str, str], Moments] = {}
    for batch in batches:
        features = {name: _features(front, task, batch) for name, front in remaining.items()}
        usable = {name: rows for name, rows in features.items() if rows is not None}
        remaining = {name: remaining[name] for name in usable}
        for (one, a), (other, b) in combinations(usable.items(), 2):
            if a.shape == b.shape and a.shape[1] <= _WIDEST:
                piece, known = channel_moments(a, b), moments.get((one, other))
                moments[one, other] = piece if known is None else known.merge(piece)
    return tuple(
        Alike(
            one, other, float(correlations(each).diagonal().mean()), float(matched(each)[1].mean())
        )
        for (one, other), each in moments.items()
        if one in remaining and other in remaining
    )


def _features(front: Part, task: Task, batch: Tensor) -> Tensor | None:
    """What the front gives for images of a task; nothing if it cannot."""
    try:
        refuse_other_inputs(task, front.contract)
        x = prepare(task.inputs[batch], front.contract).to(front.device)
        with evaluating(front.module):
            maps = front(x)
    except REFUSED:
        return None
    usable = isinstance(maps, Tensor) and maps.ndim >= 2 and bool(maps.isfinite().all())
    return maps.cpu() if usable else None
