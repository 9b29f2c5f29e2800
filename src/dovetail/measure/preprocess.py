"""Applying a part's :class:`Preprocess`, and choosing one for a task."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.errors import ContractError
from dovetail.parts.contract import Contract, Preprocess, shown_shape
from dovetail.parts.weights import dtype_name
from dovetail.tasks.task import Task, as_float

__all__ = ["prepare", "preprocess_for", "refuse_other_inputs"]

_BLOCK = 4096  # rows summed at once, so that a large uint8 task never becomes a float copy


def preprocess_for(task: Task) -> Preprocess:
    r"""Standardise: the mean and standard deviation of the training split, a channel or feature.

    .. math:: x \mapsto (x - \mu_c) / \sigma_c

    >>> preprocess_for(Task(torch.rand(40, 1, 8, 8), [0, 1] * 20)).size
    (8, 8)
    """
    mean = _mean_over_train(task, lambda x: x)
    # Twice over the data: the mean of squares less the square of the mean would cancel.
    std = _mean_over_train(task, lambda x: (x - mean).square()).sqrt()
    std[std <= 1e-8 * mean.abs()] = 1.0  # a constant channel carries nothing; leave it at zero
    shape = task.input_shape
    image = len(shape) == 3
    return Preprocess(
        size=(shape[1], shape[2]) if image else None,
        channels=shape[0] if image else None,
        mean=tuple(mean.tolist()),
        std=tuple(std.tolist()),
    )


def _mean_over_train(task: Task, value: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean of ``value(x)`` a channel or feature, for rows ``x`` of the last axis."""
    rows = task.indices("train")
    total, count = torch.zeros(task.input_shape[0], dtype=torch.float64), 0
    for start in range(0, len(rows), _BLOCK):
        block = as_float(task.inputs[rows[start : start + _BLOCK]]).double()
        flat = block.movedim(1, -1).reshape(-1, block.shape[1])
        total += value(flat).sum(0)
        count += len(flat)
    return total / count


def refuse_other_inputs(task: Task, contract: Contract) -> None:
    """Refuse vectors whose numbers are not those that the part was made for, in that order.

    >>> task = Task(torch.rand(8, 2), [0, 1] * 4, input_names=("age", "town=Ulm"))
    >>> refuse_other_inputs(task, Contract(inputs=("age", "town=Bonn")))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ContractError: the part takes age, town=Bonn; 'task' has age, town=Ulm
    """
    known, given = contract.inputs, task.input_names
    if known and given and known != given:
        raise ContractError(f"the part takes {_listed(known)}; {task.name!r} has {_listed(given)}")


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def prepare(inputs: Tensor, contract: Contract) -> Tensor:
    """Raw inputs ``[n, ...]`` as the part wants them; an error when they cannot become that.

    >>> wide = Contract(preprocess=Preprocess(size=(4, 4), channels=3, scale=255.0))
    >>> prepare(torch.ones(2, 1, 8, 8), wide)[0, 2, 0, 0]
    tensor(255.)
    """
    x = as_float(inputs)
    if contract.preprocess is not None:
        x = _apply(contract.preprocess, x)
    port = contract.takes[0]
    shape = tuple(x.shape[1:])
    if port.shape is not None and (
        len(shape) != len(port.shape)
        or any(b is not None and a != b for a, b in zip(shape, port.shape, strict=True))
    ):
        raise ContractError(
            f"the part takes {shown_shape(port.shape)}, the inputs are {shown_shape(shape)}"
        )
    if port.dtype != dtype_name(x.dtype):
        raise ContractError(f"the part takes {port.dtype}, the inputs are {dtype_name(x.dtype)}")
    return x


def _apply(how: Preprocess, x: Tensor) -> Tensor:
    if how.size is not None and x.ndim == 4 and tuple(x.shape[2:]) != how.size:
        x = F.interpolate(x, size=how.size, mode="bilinear", align_corners=False, antialias=True)
    if how.channels is not None and x.ndim == 4 and x.shape[1] != how.channels:
        x = x.mean(1, keepdim=True).expand(-1, how.channels, -1, -1)
    mean, std = (torch.tensor(values, dtype=x.dtype) for values in (how.mean, how.std))
    if x.ndim < 2 or len(mean) not in (1, x.shape[1]) or len(std) not in (1, x.shape[1]):
        raise ContractError(
            f"the part's preprocessing is for {len(mean)} channels, "
            f"the inputs are {shown_shape(tuple(x.shape[1:]))}"
        )
    axes = (1, -1) + (1,) * (x.ndim - 2)
    middle = (mean / how.scale).to(x.device).reshape(axes)
    factor = (how.scale / std).to(x.device).reshape(axes)
    return (x - middle) * factor  # in this order a large mean costs no digits
