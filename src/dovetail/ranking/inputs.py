"""What people hand to a score, made into tensors or refused with a reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from dovetail.core.errors import TaskError

__all__ = ["as_rows", "as_targets", "class_codes", "refuse_other_count"]

_LARGEST = 1e100


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
    rows = _tensor(features, what).double()
    if rows.ndim != 2:
        raise TaskError(
            f"{what} must be rows [n, d], got shape {list(rows.shape)}; "
            "pool or flatten feature maps first (dt.features does)"
        )
    if rows.numel() == 0:
        raise TaskError(f"there are no {what}: shape {list(rows.shape)}")
    finite = torch.isfinite(rows).all(1)
    if not finite.all():
        first = int((~finite).nonzero()[0, 0])
        raise TaskError(f"row {first} of the {what} holds nan or inf; mend or drop it first")
    if float(rows.abs().max()) > _LARGEST:
        raise TaskError(f"{what} beyond {_LARGEST:g} cannot be squared; scale them down")
    return rows


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
    targets = _tensor(array, "labels")
    if targets.ndim not in (1, 2) or targets.numel() == 0:
        raise TaskError(f"labels must be [n] or [n, k], got shape {list(targets.shape)}")
    if targets.ndim == 1 and not targets.is_floating_point():
        codes: Tensor = torch.unique(targets, return_inverse=True)[1]
        return codes
    return as_rows(targets.reshape(len(targets), -1), "labels")


def class_codes(labels: Any) -> tuple[Tensor, int]:
    """Class codes ``[n]`` from 0 to C - 1, and C, which must be at least two.

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
    if count < 2:
        raise TaskError("all labels are of one class; a score tells classes apart and needs two")
    return codes, count


def refuse_other_count(rows: Tensor, targets: Tensor, what: str = "features") -> None:
    """Refuse rows and labels that are not as many.

    >>> refuse_other_count(torch.zeros(3, 2), torch.zeros(4))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: 3 rows of features but 4 labels
    """
    if len(rows) != len(targets):
        raise TaskError(f"{len(rows)} rows of {what} but {len(targets)} labels")


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
    if isinstance(values, Tensor):
        given = values.detach().cpu()
    else:
        try:
            array = np.array(values)  # a copy: torch warns of memory it may not write to
            wide = array.dtype.kind == "u" and array.dtype.itemsize > 1
            given = torch.from_numpy(array.astype(np.int64) if wide else array)
        except (TypeError, ValueError):
            raise TaskError(
                f"{what} of type {type(values).__name__} are not an array of numbers"
            ) from None
    if given.is_complex():
        raise TaskError(f"{what} are complex; a score takes real numbers")
    return given
