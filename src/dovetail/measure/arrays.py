"""What callers hand over as tensors, arrays or lists: numbers, probabilities and labels, checked.

Numbers become float64 on the CPU: a measure is small, and not every device has doubles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError

__all__ = ["checked_labels", "checked_probabilities", "doubles"]

_SUM = 1e-3
"""Rows may sum to one this closely: what half-precision softmax leaves."""


def doubles(values: Any) -> Tensor:
    """Numbers of any dtype and device, detached; what holds something else is refused.

    >>> doubles([0.1, 2])
    tensor([0.1000, 2.0000], dtype=torch.float64)
    """
    if isinstance(values, Tensor):
        return values.detach().cpu().double()
    try:
        return torch.from_numpy(np.array(values, dtype=np.float64))
    except (TypeError, ValueError):
        raise TaskError(f"expected a table of numbers, got {type(values).__name__}") from None


def checked_labels(labels: Any, rows: int, classes: int) -> Tensor:
    """Class indices ``[n]`` of as many rows, int64; anything else is refused.

    >>> checked_labels([0, 2], rows=2, classes=3)
    tensor([0, 2])
    """
    given = np.asarray(labels.detach().cpu() if isinstance(labels, Tensor) else labels)
    if given.dtype.kind not in "iub" or given.shape != (rows,):
        raise TaskError(
            f"labels are one class index a row, integers [{rows}]; got {given.dtype} "
            f"{list(given.shape)}. Of names, take their places in the classifier's classes_"
        )
    y = torch.from_numpy(given.astype(np.int64))
    if len(y) and not 0 <= int(y.min()) <= int(y.max()) < classes:
        raise TaskError(
            f"labels must lie between 0 and {classes - 1}, the columns of the probabilities; "
            f"found {int(y.min())} to {int(y.max())}"
        )
    return y


def checked_probabilities(probs: Any) -> Tensor:
    """Rows that are distributions over at least two classes ``[n, c]``, float64 on the CPU.

    >>> checked_probabilities([[0.25, 0.75]])
    tensor([[0.2500, 0.7500]], dtype=torch.float64)
    """
    p = doubles(probs)
    if p.ndim != 2 or p.shape[1] < 2:
        raise TaskError(
            "probabilities are rows [n, c] with a column for each of at least two classes; got "
            f"{list(p.shape)}. Of one column p, stack 1 - p and p"
        )
    if len(p) == 0:
        raise TaskError("there are no examples: calibration is measured on at least one")
    if not p.isfinite().all():
        raise TaskError("the probabilities hold NaN or infinite values; look for the first of them")
    if p.min() < 0 or (p.sum(1) - 1).abs().max() > _SUM:
        raise TaskError(
            "these are no probabilities: a row must be nonnegative and sum to one, found a least "
            f"value of {float(p.min()):.4g} and sums from {float(p.sum(1).min()):.4g} to "
            f"{float(p.sum(1).max()):.4g}. Of logits take the softmax first"
        )
    return p
