"""LogME of rows that are all at hand: one product of them, and none of the other sums."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.core.errors import TaskError
from dovetail.ranking.sums.logme import mean_evidence
from dovetail.ranking.sums.moments import SecondMoment
from dovetail.ranking.sums.rows_given import as_rows, as_targets, lengths_of

__all__ = ["logme"]

_ROWS = 4096


def logme(features: Any, targets: Any) -> float:
    r"""The mean over targets of their log evidence a row; see :mod:`dovetail.ranking.sums.logme`.

    What ``PairStatistics().update(features, targets).score("logme")`` gives, in less than half the
    time: :math:`O(n d \min(n, d))`.

    Args:
        features: Rows ``[n, d]``.
        targets: Integers ``[n]``, a class each, or numbers ``[n]`` or ``[n, k]``.

    >>> rows = torch.tensor([[1.0, 0.0], [0.9, 0.2], [0.1, 1.0], [0.0, 0.8]])
    >>> logme(rows, [0, 0, 1, 1]) > logme(rows, [0, 1, 0, 1])
    True
    """
    rows = as_rows(features)
    values = as_targets(targets, len(rows))
    n, width = rows.shape
    if not n:
        raise TaskError("there are no rows to score")
    if n < width:
        lengths_of(rows)  # refuses what is not finite
        rows = torch.linalg.qr(rows.double().T, mode="r").R.T  # the same lengths and angles
        width = n
    if values.is_floating_point():
        total = values.square().sum(0)
    else:
        _, values, counts = torch.unique(values, return_inverse=True, return_counts=True)
        total = counts.double()  # of one-hot targets
    second = SecondMoment(width)
    products = torch.zeros(len(total), width, dtype=torch.float64)
    for start in range(0, n, _ROWS):
        part = slice(start, start + _ROWS)
        chunk = rows[part].double()
        second.add(chunk)
        if values.is_floating_point():
            products.addmm_(values[part].T, chunk)
        else:
            products.index_add_(0, values[part], chunk)
    whole = second.matrix()
    if not whole.isfinite().all():
        lengths_of(rows)  # says which row
    return mean_evidence(whole, products, total, n)
