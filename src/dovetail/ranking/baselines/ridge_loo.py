r"""Leave-one-out accuracy of a ridge head, in closed form."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.linalg.ridge import Penalty, leave_one_out
from dovetail.ranking.inputs import as_rows, as_targets, class_codes, refuse_other_count

__all__ = ["accuracy_of", "explained", "refuse_many_classes", "ridge_loo"]

_MOST_CELLS = 200_000_000  # of the predictions, rows × classes: 1.6 GB
_NOISE = 1e-9  # one-hot predictions closer than this tie


def ridge_loo(features: Any, targets: Any, *, penalty: Penalty = "auto") -> float:
    r"""How well a ridge head on all other rows predicts each row.

    Classes become one-hot columns, the greatest prediction decides, and the value is the accuracy
    in [0, 1]; classes whose predictions tie share the credit.  Numbers ``[n, k]`` (regression, or
    zeros and ones of several labels) give

    .. math:: R^2 = 1 - \frac{\sum_i (y_i - \hat y_{-i})^2}{\sum_i (y_i - \bar y)^2} \le 1,

    the mean over the columns that vary.  ``penalty="auto"`` takes the one with the least
    leave-one-out squared error, which makes the value invariant to the scale of the features.

    >>> rows = [[0.0], [0.1], [0.2], [1.0], [1.1], [1.2]]
    >>> ridge_loo(rows, [0, 0, 0, 1, 1, 1]), round(ridge_loo(rows, [0.0, 1, 2, 10, 11, 12]), 4)
    (1.0, 1.0)
    """
    rows, given = as_rows(features), as_targets(targets)
    refuse_other_count(rows, given)
    if given.is_floating_point():
        return explained(leave_one_out(rows, given, penalty).predictions, given)
    codes, count = class_codes(given)
    refuse_many_classes(codes)
    one_hot = torch.zeros(len(rows), count, dtype=torch.float64)
    one_hot[torch.arange(len(rows)), codes] = 1.0
    return accuracy_of(leave_one_out(rows, one_hot, penalty).predictions, codes)


def refuse_many_classes(codes: Tensor) -> None:
    """Refuse a head whose predictions, rows × classes, would not fit in memory.

    >>> refuse_many_classes(torch.arange(20_000))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: a ridge head would predict 20000 classes for 20000 rows, which
    is too much to hold; use logme or centred-al, or pass fewer classes
    """
    count = int(codes.max()) + 1
    if len(codes) * count > _MOST_CELLS:
        raise TaskError(
            f"a ridge head would predict {count} classes for {len(codes)} rows, which is too much "
            "to hold; use logme or centred-al, or pass fewer classes"
        )


def accuracy_of(predictions: Tensor, codes: Tensor) -> float:
    """The share of rows ``[n, k]`` whose greatest output is their class; ties share the credit."""
    best = predictions >= predictions.amax(1, keepdim=True) - _NOISE
    right = best.gather(1, codes[:, None])[:, 0]
    return float((right.double() / best.sum(1)).mean())


def explained(predictions: Tensor, targets: Tensor) -> float:
    """R², the mean over the columns ``[n, k]`` that vary."""
    varies = (targets != targets[0]).any(0)
    if not varies.any():
        raise TaskError("all targets are the same number; there is nothing to predict")
    y = targets[:, varies]
    spread = (y - y.mean(0)).square().sum(0)
    return float((1 - (predictions[:, varies] - y).square().sum(0) / spread).mean())
