r"""What several losses over the same weights need: common classes, and gradients without conflicts.

A shared head tells common classes :math:`\mathcal{C}` apart by

.. math:: \frac{1}{n} \sum_i \ell\big(c(f(x_i)), y_i\big) \cdot 1[y_i \in \mathcal{C}] .

The mean is over the whole batch: examples of other classes count as zero, as in the sum over a data
set, so a batch with few common examples weighs little.

Two losses over the same weights conflict where the inner product of their gradients is negative:
a step for one is then a step back for the other.  Each gradient loses the component against any
other's, one after the other in random order, and the rests are added (Yu et al. 2020):

.. math::
    g_i \leftarrow g_i - \frac{\min(\langle g_i, g_j\rangle, 0)}{\lVert g_j\rVert^2}\, g_j,
    \qquad j \neq i, \qquad g = \sum_i g_i,

where :math:`g_j` is as it was at first.  With two losses the result is a step back for neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from dovetail.core.errors import SettingsError

__all__ = ["OTHER", "common_class_loss", "common_codes", "project_conflicts"]


OTHER = -100
"""The code of a class that is not common."""


def common_codes(classes: Sequence[str], common: Sequence[str]) -> Tensor:
    """For each of a task's classes its place among the common ones, or :data:`OTHER` ``[classes]``.

    >>> common_codes(("cat", "dog", "owl"), ("owl", "cat")).tolist()
    [1, -100, 0]
    """
    places = {name: place for place, name in enumerate(common)}
    return torch.tensor([places.get(name, OTHER) for name in classes])


def common_class_loss(outputs: Tensor, codes: Tensor) -> Tensor:
    """Cross-entropy of ``outputs [n, common]`` with ``codes [n]``, over all ``n``.

    >>> sure = torch.tensor([[9.0, -9.0], [9.0, -9.0]])
    >>> common_class_loss(sure, torch.tensor([1, OTHER]))
    tensor(9.)
    """
    return F.cross_entropy(outputs, codes, ignore_index=OTHER, reduction="sum") / len(codes)


Gradient = list[Tensor | None]


def project_conflicts(
    gradients: Sequence[Sequence[Tensor | None]], draw: Generator | None = None
) -> list[Tensor]:
    """The sum of the losses' gradients without their conflicts, a tensor a parameter.

    Args:
        gradients: For each loss its gradient by the same parameters, in the same order; None for a
            parameter that the loss does not touch.
        draw: For the order of projections; None for torch's global generator.

    Returns:
        A new tensor a parameter; for one that no loss touches, a zero without axes.

    >>> one, two = [torch.tensor([1.0, 0.0])], [torch.tensor([-1.0, 1.0])]
    >>> project_conflicts([one, two])
    [tensor([0.5000, 1.5000])]
    >>> project_conflicts([one, one])
    [tensor([2., 0.])]
    """
    if not gradients:
        raise SettingsError("there is no loss: give the gradient of at least one")
    _check(gradients)
    directions = [_largest_one(gradient) for gradient in gradients]
    freed: list[Gradient] = []
    for i, original in enumerate(gradients):
        gradient = list(original)
        for j in torch.randperm(len(gradients), generator=draw).tolist():
            if j != i:
                gradient = _without(gradient, directions[j])
        freed.append(gradient)
    return [_sum(parameter) for parameter in zip(*freed, strict=True)]


def _check(gradients: Sequence[Sequence[Tensor | None]]) -> None:
    if len({len(gradient) for gradient in gradients}) > 1:
        counts = ", ".join(str(len(gradient)) for gradient in gradients)
        raise SettingsError(
            f"the losses have gradients of {counts} parameters; give each loss's gradient by the "
            "same parameters, with None where it does not touch one"
        )
    for number, parameter in enumerate(zip(*gradients, strict=True)):
        shapes = {tuple(tensor.shape) for tensor in parameter if tensor is not None}
        if len(shapes) > 1:
            raise SettingsError(f"parameter {number} has gradients of other shapes: {shapes}")


def _largest_one(gradient: Sequence[Tensor | None]) -> Gradient:
    """The direction, with a largest entry of one: the square of 1e-30 is beyond float32."""
    known = [tensor for tensor in gradient if tensor is not None and tensor.numel()]
    if not known:
        return list(gradient)
    largest = torch.stack([tensor.abs().max() for tensor in known]).max()
    scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    return [None if tensor is None else tensor / scale for tensor in gradient]


def _without(gradient: Gradient, direction: Gradient) -> Gradient:
    """The gradient without its component against a direction, if it has one."""
    shared = [(g, d) for g, d in zip(gradient, direction, strict=True) if d is not None]
    along = sum(((g * d).sum() for g, d in shared if g is not None), start=torch.zeros(()))
    square = sum((d.square().sum() for _, d in shared), start=torch.zeros(()))
    if not shared:
        return gradient
    # no branch on the sign: reading it would make an accelerator wait, once a pair of losses
    share = along.clamp(max=0) / square.clamp(min=torch.finfo(square.dtype).tiny)
    return [_minus(g, d, share) for g, d in zip(gradient, direction, strict=True)]


def _minus(gradient: Tensor | None, direction: Tensor | None, share: Tensor) -> Tensor | None:
    if direction is None:
        return gradient
    step = direction * share
    return -step if gradient is None else gradient - step


def _sum(tensors: Sequence[Tensor | None]) -> Tensor:
    known = [tensor for tensor in tensors if tensor is not None]
    return sum(known[1:], start=known[0].clone()) if known else torch.zeros(())
