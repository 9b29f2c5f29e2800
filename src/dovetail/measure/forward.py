"""A part's outputs on many inputs, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from dovetail.core.errors import ContractError, SettingsError, TaskError, first_line
from dovetail.measure.preprocess import prepare
from dovetail.parts.modes import evaluating
from dovetail.parts.norms import uses_batch_statistics
from dovetail.parts.part import Part

__all__ = ["outputs_of"]


def outputs_of(
    part: Part,
    inputs: Tensor,
    *,
    batch_size: int = 512,
    each: Callable[[Tensor], Tensor] = lambda output: output,
) -> Tensor:
    """``each(part(x))`` for all inputs ``[n, ...]``, in evaluation mode, gathered on the CPU.

    The part runs where its weights are; its mode is as before afterwards.  ``each`` shrinks a
    batch of outputs before it is kept.  Where a batch's own statistics are used, batches are of
    like size, at most ``batch_size``: an example left to itself would have none.

    >>> outputs_of(Part(torch.nn.Flatten()), torch.ones(3, 2, 2)).shape
    torch.Size([3, 4])
    """
    if batch_size < 1:
        raise SettingsError(f"batch_size must be at least 1, got {batch_size}")
    if inputs.ndim == 0 or len(inputs) == 0:
        raise TaskError("there are no inputs to run")
    if len(part.contract.takes) != 1:
        raise ContractError(
            f"{part.described!r} takes {len(part.contract.takes)} tensors, not one; "
            "join it to its other half first"
        )
    if uses_batch_statistics(part.module):
        batch_size = math.ceil(len(inputs) / math.ceil(len(inputs) / batch_size))
    kept = []
    with evaluating(part.module):
        for start in range(0, len(inputs), batch_size):
            x = prepare(inputs[start : start + batch_size], part.contract).to(part.device)
            output = _run(part, _in_type_of(part, x))
            if not isinstance(output, Tensor):
                several = len(output) if isinstance(output, tuple | list) else "no"
                raise ContractError(
                    f"{part.described!r} gives {several} tensors, not one; "
                    "join it to its other half first"
                )
            kept.append(each(output).cpu())
    return torch.cat(kept)


def _in_type_of(part: Part, x: Tensor) -> Tensor:
    """Inputs of floating point in the type of the weights, such as float64 or float16."""
    own = (each.dtype for each in part.module.parameters() if each.is_floating_point())
    return x.to(next(own, x.dtype)) if x.is_floating_point() else x


def _run(part: Part, x: Tensor) -> object:
    try:
        return part(x)
    except (RuntimeError, ValueError) as error:
        raise ContractError(
            f"{part.described!r} does not take inputs of shape {tuple(x.shape)}: "
            f"{first_line(error)}"
        ) from None
