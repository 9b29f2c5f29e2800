"""What people hand to a score or a measure, made into tensors or refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError

_LARGEST = 1e100

CHUNK = 1 << 18
"""Numbers that are worked on at once: two megabytes, about what a processor keeps near."""

LEAST = 1e-150
"""A row no longer than this counts as a row of zeros: its square would be lost."""

MOST = 1e70
"""A row may be no longer than this where fourth powers are summed."""


def as_rows(features: Any, what: str = "features") -> Tensor:
    """Features ``[n, d]`` (tensor, array or nested list) as float64 on the CPU, all finite.

    Never written to by a score: a float64 tensor is shared with the caller.

    >>> as_rows([[1, 2], [3, 4]]).dtype
    torch.float64
    >>> as_rows([[1.0], [float("nan")]])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: row 1 of the features holds nan or inf; mend or drop it first
    """
    rows = float_rows(features, what).double()
    if len(rows) == 0:
        raise TaskError(f"there are no {what}: shape {list(rows.shape)}")
    finite = torch.isfinite(rows).all(1)
    if not finite.all():
        first = int((~finite).nonzero()[0, 0])
        raise TaskError(f"row {first} of the {what} holds nan or inf; mend or drop it first")
    if float(rows.abs().max()) > _LARGEST:
        raise TaskError(f"{what} beyond {_LARGEST:g} cannot be squared; scale them down")
    return rows


def float_rows(features: Any, what: str = "features") -> Tensor:
    """Features as a matrix ``[n, d]`` on the CPU, whatever it holds; floats keep their width.

    >>> float_rows([[1, 2], [3, 4]])
    tensor([[1., 2.],
            [3., 4.]], dtype=torch.float64)
    """
    rows = _tensor(features, what)
    if rows.ndim == 2 and rows.shape[1] == 0:
        raise TaskError(f"there are no {what}: rows [n, d] of shape {list(rows.shape)}")
    if rows.ndim != 2:
        raise TaskError(
            f"{what} must be rows [n, d], got shape {list(rows.shape)}; "
            "pool or flatten feature maps first (dt.features does)"
        )
    return rows if rows.is_floating_point() else rows.double()


def as_targets(labels: Any) -> Tensor:
    """Labels as int64 class codes ``[n]``, or as float64 numbers ``[n, k]``.

    One integer, bool or text a row names a class, whatever its value.  Floats are numbers to
    predict, and so is a matrix: regression, or the zeros and ones of several labels.

    >>> as_targets(["emu", "cat", "emu"]), as_targets([0.5, 2.0]).shape
    (tensor([1, 0, 1]), torch.Size([2, 1]))
    """
    array = labels if isinstance(labels, Tensor) else _array(labels)
    if array.ndim == 1 and not isinstance(array, Tensor) and array.dtype.kind in "USO":
        return _codes_of_names(array)
    targets = plain_targets(array, what="labels")
    if targets.numel() == 0:
        raise TaskError(f"labels must be [n] or [n, k], got shape {list(targets.shape)}")
    if targets.is_floating_point():
        return as_rows(targets, "labels")
    codes: Tensor = torch.unique(targets, return_inverse=True)[1]
    return codes


def plain_targets(targets: Any, count: int | None = None, what: str = "targets") -> Tensor:
    """Labels as ``int64 [n]``, as they were named, and numbers as ``float64 [n, k]``.

    One column of integers or booleans is labels; several columns, or floats, are numbers.

    >>> plain_targets([3, 7], 2), plain_targets([0.5, 1.0], 2).shape
    (tensor([3, 7]), torch.Size([2, 1]))
    """
    values = _tensor(targets, what)
    if values.ndim not in (1, 2) or 0 in values.shape[1:]:
        raise TaskError(f"{what} must be [n] or [n, k], got shape {list(values.shape)}")
    if count is not None and len(values) != count:
        raise TaskError(f"{count} rows of features, but {what} for {len(values)}")
    if values.ndim == 1 and not values.is_floating_point():
        return values.long()
    values = values.double()
    values = values[:, None] if values.ndim == 1 else values
    wrong = (~values.isfinite()).any(1).nonzero()
    if len(wrong):
        raise TaskError(f"row {int(wrong[0])} of the {what} holds nan or inf; leave the row out")
    return values


def class_codes(labels: Any, least: int = 2) -> tuple[Tensor, int]:
    """Class codes ``[n]`` from 0 to C - 1, and C, which must be at least so many, one or two.

    >>> class_codes([7, 3, 7])
    (tensor([1, 0, 1]), 2)
    >>> class_codes([0.5, 1.5])
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: this needs one class a row (integers or names), not numbers
    """
    codes = as_targets(labels)
    if codes.is_floating_point():
        raise TaskError("this needs one class a row (integers or names), not numbers")
    count = int(codes.max()) + 1
    if count < least:
        raise TaskError("all labels are of one class; a score tells classes apart and needs two")
    return codes, count


def rows_and_codes(
    features: Any, labels: Any, what: str = "features", *, least: int = 2
) -> tuple[Tensor, Tensor, int]:
    """Rows ``[n, d]`` with a class code each ``[n]``, and how many classes there are.

    >>> rows_and_codes([[1.0], [2.0]], ["emu", "cat"])[1:]
    (tensor([1, 0]), 2)
    """
    rows, (codes, count) = as_rows(features, what), class_codes(labels, least)
    refuse_other_count(rows, codes, what)
    return rows, codes, count


def refuse_other_count(rows: Tensor, targets: Tensor, what: str = "features") -> None:
    """Refuse rows and labels that are not as many.

    >>> refuse_other_count(torch.zeros(3, 2), torch.zeros(4))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: 3 rows of features but 4 labels
    """
    if len(rows) != len(targets):
        raise TaskError(f"{len(rows)} rows of {what} but {len(targets)} labels")


def lengths_of(rows: Tensor) -> Tensor:
    """The length of each row, ``float64 [n]``; refuses what is not finite or too long.

    >>> lengths_of(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([5., 0.], dtype=torch.float64)
    """
    chunks = torch.split(rows, rows_a_chunk(rows.shape[1]))
    lengths = torch.cat([torch.linalg.vector_norm(c, dim=1, dtype=torch.float64) for c in chunks])
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


def _array(labels: Any) -> Any:
    """An array that keeps what is among names: NumPy would spell a missing one "nan"."""
    named = isinstance(labels, list | tuple) and any(isinstance(name, str) for name in labels)
    try:
        return np.asarray(labels, dtype=object if named else None)
    except ValueError:
        raise TaskError("labels must be [n] or [n, k]; these rows have several lengths") from None


def _codes_of_names(names: Any) -> Tensor:
    if len(names) == 0:
        raise TaskError("there are no labels")
    if any(name is None or isinstance(name, float) for name in names.tolist()):
        raise TaskError("some labels are missing, or mix names with floats; drop those rows first")
    return torch.from_numpy(np.unique(names.astype(str), return_inverse=True)[1].reshape(-1))


def _tensor(values: Any, what: str) -> Tensor:
    if not isinstance(values, Tensor):
        try:
            array = np.ascontiguousarray(values)
        except ValueError:
            raise TaskError(f"{what} must be an array of numbers, all rows of one length") from None
        if array.dtype.kind not in "biuf":
            raise TaskError(
                f"{what} must be numbers; this {type(values).__name__} of {array.dtype} is not an "
                "array of them"
            )
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            if array.size and int(array.max()) > np.iinfo(np.int64).max:
                raise TaskError(f"{what} hold an integer beyond 2^63")
            array = array.astype(np.int64)
        if not array.flags.writeable or not array.dtype.isnative:
            array = array.astype(array.dtype.newbyteorder("="))  # also a copy of one's own
        values = torch.from_numpy(array.reshape(np.shape(values)))
    if values.is_complex():
        raise TaskError(f"{what} must be real numbers, got {values.dtype}")
    tensor: Tensor = values.detach().cpu()
    return tensor
