r"""TransRate: how many more bits all features need than the features of each class."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import SettingsError
from dovetail.measure.inputs import rows_and_codes
from dovetail.ranking.folding import Groups


def coding_rate(rows: Tensor, eps: float = 1e-4) -> Tensor:
    r"""The rate :math:`R(Z) = \tfrac12 \log\det(I + Z^\top Z / (m\,\epsilon))` of ``[..., m, d]``.

    By a QR factorisation of :math:`Z/\sqrt{m\epsilon}` on top of the identity, on the shorter side:
    the determinant is the squared product of the diagonal, and no digit is lost to squaring.

    >>> float(coding_rate(torch.zeros(3, 2, dtype=torch.float64)))
    0.0
    """
    count, width = rows.shape[-2:]
    tall = rows if count >= width else rows.mT  # det(I + Z'Z) = det(I + ZZ')
    tall = tall / (count * eps) ** 0.5
    side = tall.shape[-1]
    unit = torch.eye(side, dtype=rows.dtype).expand(*tall.shape[:-2], side, side)
    triangle = torch.linalg.qr(torch.cat([tall, unit], -2), mode="r").R
    diagonal: Tensor = triangle.diagonal(dim1=-2, dim2=-1)
    return diagonal.abs().log().sum(-1)


def transrate(features: Any, labels: Any, *, eps: float = 1e-4) -> float:
    r"""TransRate as published: :math:`R(Z) - \frac1C \sum_c R(Z_c)` on features centred globally.

    Classes are not centred again, and count alike whatever their sizes.  The value depends on the
    scale of the features (by a thousandth: 0.0006 instead of 3.5 on our test vector), so parts
    whose features differ in scale are not compared fairly; see :func:`transrate_scaled`.

    >>> transrate([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [0, 0, 1, 1]) < 1e-12
    True
    """
    rows, codes, count = _centred(features, labels, eps)
    return float(coding_rate(rows, eps) - _class_rates(rows, codes, count, eps).mean())


def transrate_scaled(features: Any, labels: Any, *, eps: float = 1e-4) -> float:
    r"""TransRate on :math:`Z / \lVert Z \rVert_F`, classes weighted by their share of the rows.

    .. math:: R(Z) - \sum_c \tfrac{n_c}{n} R(Z_c) \ge 0, \qquad \lVert Z \rVert_F = 1 .

    Invariant to the scale of the features.  Constant features give 0.

    >>> rows = [[1.0, 0.2], [0.9, 0.0], [0.0, 1.0], [0.1, 0.8]]
    >>> one, two = (transrate_scaled(torch.tensor(rows) * s, [0, 0, 1, 1]) for s in (1, 1000))
    >>> abs(one - two) < 1e-6
    True
    """
    rows, codes, count = _centred(features, labels, eps)
    length = torch.linalg.vector_norm(rows)
    rows = rows / torch.where(length > 0, length, 1.0)
    share = torch.bincount(codes, minlength=count).double() / len(codes)
    return float(coding_rate(rows, eps) - (share * _class_rates(rows, codes, count, eps)).sum())


def _centred(features: Any, labels: Any, eps: float) -> tuple[Tensor, Tensor, int]:
    if not eps > 0:
        raise SettingsError(f"eps must be positive, got {eps}")
    rows, codes, count = rows_and_codes(features, labels)
    centred = rows - rows.mean(0)
    constant = (rows == rows[0]).all(0)
    return torch.where(constant, 0.0, centred), codes, count


def _class_rates(rows: Tensor, codes: Tensor, count: int, eps: float) -> Tensor:
    """The rate of each class ``[C]``; classes of one size go together."""
    groups = Groups(codes, torch.bincount(codes, minlength=count), rows.shape[1])
    rates = rows.new_empty(count)
    for which, places in groups.batches():
        rates[which] = coding_rate(rows[places], eps)
    return rates
