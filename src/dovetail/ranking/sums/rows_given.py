"""What a user gives, as rows of features and targets that can be summed; or a clear refusal."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError

__all__ = ["CHUNK", "LEAST", "MOST", "as_rows", "as_targets", "lengths_of", "rows_a_chunk"]

CHUNK = 1 << 18
"""Numbers that are worked on at once: two megabytes, about what a processor keeps near."""

LEAST = 1e-150
"""A row no longer than this counts as a row of zeros: its square would be lost."""

MOST = 1e70
"""A row may be no longer than this: fourth powers are summed."""


def as_rows(features: Any) -> Tensor:
    """Features as a matrix ``[n, d]`` on the CPU; floats keep their width.

    >>> as_rows([[1, 2], [3, 4]])
    tensor([[1., 2.],
            [3., 4.]], dtype=torch.float64)
    """
    rows = _tensor(features, "features")
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise TaskError(
            f"features must be rows [n, d], got shape {list(rows.shape)}; "
            "pool or flatten feature maps first"
        )
    return rows if rows.is_floating_point() else rows.double()


def as_targets(targets: Any, count: int) -> Tensor:
    """Labels as ``int64 [n]``, numbers as ``float64 [n, k]``.

    One column of integers or booleans is labels; several columns, or floats, are numbers.

    >>> as_targets([3, 7], 2), as_targets([0.5, 1.0], 2).shape
    (tensor([3, 7]), torch.Size([2, 1]))
    """
    values = _tensor(targets, "targets")
    if values.ndim not in (1, 2) or 0 in values.shape[1:]:
        raise TaskError(f"targets must be [n] or [n, k], got shape {list(values.shape)}")
    if len(values) != count:
        raise TaskError(f"{count} rows of features, but targets for {len(values)}")
    if values.ndim == 1 and not values.is_floating_point():
        return values.long()
    values = values.double()
    values = values[:, None] if values.ndim == 1 else values
    wrong = (~values.isfinite()).any(1).nonzero()
    if len(wrong):
        raise TaskError(f"the target of row {int(wrong[0])} is nan or inf; leave the row out")
    return values


def lengths_of(rows: Tensor) -> Tensor:
    """The length of each row, ``float64 [n]``; refuses what is not finite or too long.

    >>> lengths_of(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([5., 0.], dtype=torch.float64)
    """
    lengths = torch.empty(len(rows), dtype=torch.float64)
    step = rows_a_chunk(rows.shape[1])
    for start in range(0, len(rows), step):
        chunk = rows[start : start + step]
        lengths[start : start + step] = torch.linalg.vector_norm(chunk, dim=1, dtype=torch.float64)
    wrong = (~(lengths <= MOST)).nonzero()
    if len(wrong):
        first = int(wrong[0])
        if not rows[first].isfinite().all():
            raise TaskError(
                f"row {first} of the features holds nan or inf ({len(wrong)} of {len(rows)} rows "
                "do); mend the part, or leave the row out"
            )
        raise TaskError(f"row {first} of the features is longer than {MOST:g}; scale the features")
    return lengths


def rows_a_chunk(width: int) -> int:
    """How many rows of this width are worked on at once.

    >>> rows_a_chunk(512), rows_a_chunk(8)
    (512, 16384)
    """
    return min(max(CHUNK // width, 64), 1 << 14)


def _tensor(values: Any, what: str) -> Tensor:
    if not isinstance(values, Tensor):
        try:
            array = np.ascontiguousarray(values)
        except ValueError:
            raise TaskError(f"{what} must be an array of numbers, all rows of one length") from None
        if array.dtype.kind not in "biuf":
            raise TaskError(f"{what} must be numbers, got {array.dtype}")
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            if array.size and int(array.max()) > np.iinfo(np.int64).max:
                raise TaskError(f"{what} hold an integer beyond 2^63")
            array = array.astype(np.int64)
        if not array.flags.writeable or not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))  # also a copy of one's own
        values = torch.from_numpy(array.reshape(np.shape(values)))
    if values.is_complex():
        raise TaskError(f"{what} must be real numbers, got {values.dtype}")
    given: Tensor = values.detach().cpu()
    return given
