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
    _refuse_misfits(gradients)
    known = [g for gradient in gradients for g in gradient if g is not None]
    if not known:
        return [torch.zeros(()) for _ in gradients[0]]
    nothing, parameters = known[0].new_zeros(()), zip(*gradients, strict=True)
    like = [next((g for g in own if g is not None), nothing) for own in parameters]
    vectors = [_flat(gradient, like) for gradient in gradients]
    # With a largest entry of one: the square of 1e-30 is beyond float32.
    largest = [vector.abs().max() for vector in vectors]
    directions = [v / torch.where(m > 0, m, 1.0) for v, m in zip(vectors, largest, strict=True)]
    total = torch.zeros_like(vectors[0])
    for i, vector in enumerate(vectors):
        for j in torch.randperm(len(vectors), generator=draw).tolist():
            if j != i:
                along, square = vector @ directions[j], directions[j] @ directions[j]
                # no branch on the sign: reading it would make an accelerator wait
                share = along.clamp(max=0) / square.clamp(min=torch.finfo(square.dtype).tiny)
                vector = vector - share * directions[j]
        total += vector
    pieces = torch.split(total, [tensor.numel() for tensor in like])
    return [piece.view_as(tensor).to(tensor) for piece, tensor in zip(pieces, like, strict=True)]


def _flat(gradient: Sequence[Tensor | None], like: Sequence[Tensor]) -> Tensor:
    """A loss's gradient as one vector; zero for a parameter that it does not touch."""
    both = zip(gradient, like, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in both])


def _refuse_misfits(gradients: Sequence[Sequence[Tensor | None]]) -> None:
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
