"""Inputs as a part wants them, and its outputs for many of them, batch by batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.core.errors import ContractError, SettingsError, TaskError, first_line
from dovetail.core.words import listed
from dovetail.pack.tensors import dtype_name
from dovetail.parts.contract import Contract, Preprocess, shown_shape
from dovetail.parts.modules import evaluating
from dovetail.parts.norms import uses_batch_statistics
from dovetail.parts.part import Part
from dovetail.tasks.arrays import as_float
from dovetail.tasks.task import Task


def outputs_of(
    part: Part,
    inputs: Tensor,
    *,
    batch_size: int = 512,
    each: Callable[[Tensor], Tensor] = lambda output: output,
    rows: Tensor | None = None,
) -> Tensor:
    """``each(part(x))`` for all inputs ``[n, ...]``, in evaluation mode, gathered on the CPU.

    The part runs where its weights are; its mode is as before afterwards.  ``each`` shrinks a
    batch of outputs before it is kept.  Where a batch's own statistics are used, batches are of
    like size, at most ``batch_size``: an example left to itself would have none.  Elsewhere large
    images come in smaller batches (:data:`_BATCH_BYTES`).  ``rows`` are those of the inputs to use,
    without a copy of them all.

    >>> outputs_of(Part(torch.nn.Flatten()), torch.ones(3, 2, 2)).shape
    torch.Size([3, 4])
    """
    if batch_size < 1:
        raise SettingsError(f"batch_size must be at least 1, got {batch_size}")
    count = 0 if inputs.ndim == 0 else len(inputs) if rows is None else len(rows)
    if count == 0:
        raise TaskError("there are no inputs to run")
    if len(part.contract.takes) != 1:
        raise ContractError(
            f"{part.described!r} takes {len(part.contract.takes)} tensors, not one; "
            "join it to its other half first"
        )
    if uses_batch_statistics(part.module):
        batch_size = math.ceil(count / math.ceil(count / batch_size))
    else:
        batch_size = min(batch_size, _at_once(part, inputs))
    gathered = _Gathered(count)
    with evaluating(part.module):
        for start in range(0, count, batch_size):
            here = slice(start, start + batch_size)
            raw = inputs[here] if rows is None else inputs.index_select(0, rows[here])
            gathered.add(each(_output(part, raw)).cpu())
    return gathered.whole()


def _output(part: Part, raw: Tensor) -> Tensor:
    """What a part gives for raw inputs, one tensor."""
    x = prepare(raw, part.contract).to(part.device)
    try:
        output = part(_in_type_of(part, x))
    except ContractError:  # our own modules say what to do themselves
        raise
    except (RuntimeError, ValueError) as error:
        raise ContractError(
            f"{part.described!r} does not take inputs of shape {tuple(x.shape)}: "
            f"{first_line(error)}"
        ) from None
    if not isinstance(output, Tensor):
        several = len(output) if isinstance(output, tuple | list) else "no"
        raise ContractError(
            f"{part.described!r} gives {several} tensors, not one; join it to its other half first"
        )
    return output


class _Gathered:
    """Batches put one behind the other, where there is room for all of them from the start.

    >>> both = _Gathered(3)
    >>> both.add(torch.ones(2, 1)), both.add(torch.zeros(1, 1))
    (None, None)
    >>> both.whole().tolist()
    [[1.0], [1.0], [0.0]]
    """

    def __init__(self, count: int) -> None:
        self._count, self._done = count, 0
        self._made: Tensor | None = None

    def add(self, batch: Tensor) -> None:
        """The next batch, ``[b, ...]``."""
        if self._made is None:
            alone = len(batch) == self._count
            self._made = batch if alone else batch.new_empty((self._count, *batch.shape[1:]))
        if self._made is not batch:
            if batch.shape[1:] != self._made.shape[1:]:
                raise ContractError(
                    f"one batch gives {shown_shape(tuple(self._made.shape[1:]))}, another "
                    f"{shown_shape(tuple(batch.shape[1:]))}; outputs need one shape"
                )
            self._made[self._done : self._done + len(batch)] = batch
        self._done += len(batch)

    def whole(self) -> Tensor:
        """All batches, ``[count, ...]``."""
        if self._made is None:
            raise AssertionError("there was no batch")
        return self._made


_BATCH_BYTES = 3 << 19
"""Of images that a batch brings to a network on the CPU at most.

The maps inside are many times as large.  Beyond what is reused from layer to layer, the processor
waits for fresh pages, and an image in a batch of hundreds takes twice as long as in one of few.
"""


def _at_once(part: Part, inputs: Tensor) -> int:
    """How many images a batch should have at most; of vectors, as many as one likes."""
    shape = part.contract.takes[0].shape
    if shape is None or None in shape:
        shape = tuple(inputs.shape[1:])
    if len(shape) < 3 or part.device.type != "cpu":
        return len(inputs)
    return max(1, _BATCH_BYTES // (4 * math.prod(axis or 1 for axis in shape)))


def _in_type_of(part: Part, x: Tensor) -> Tensor:
    """Inputs of floating point in the type of the weights, such as float64 or float16."""
    own = (each.dtype for each in part.module.parameters() if each.is_floating_point())
    return x.to(next(own, x.dtype)) if x.is_floating_point() else x


REFUSED = (RuntimeError, ValueError, TypeError)
"""How modules refuse tensors that do not suit them; our own ContractError is a ValueError."""

_BLOCK_NUMBERS = 1 << 14
"""Summed at once, or a 64th of a task, so that neither is it copied nor much held for its mean."""


def preprocess_for(task: Task) -> Preprocess:
    r"""Standardise: the mean and standard deviation of the training split, a channel or feature.

    .. math:: x \mapsto (x - \mu_c) / \sigma_c

    >>> preprocess_for(Task(torch.rand(40, 1, 8, 8), [0, 1] * 20)).size
    (8, 8)
    """
    mean = _mean_over_train(task, lambda x: x)
    # Twice over the data: the mean of squares less the square of the mean would cancel.
    std = _mean_over_train(task, lambda x: (x - mean).square_()).sqrt()
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
    of_one = max(1, math.prod(task.input_shape))
    block = max(1, min(_BLOCK_NUMBERS, max(1024, len(rows) * of_one // 64)) // of_one)
    for start in range(0, len(rows), block):
        flat = _flat(task.inputs, rows[start : start + block])
        total += value(flat).sum(0)
        count += len(flat)
    return total / count


def _flat(inputs: Tensor, rows: Tensor) -> Tensor:
    """These rows in float64, channels or features last; nothing but the result stays."""
    x = as_float(inputs.index_select(0, rows)).double()
    return x.movedim(1, -1).reshape(-1, x.shape[1])


def refuse_other_inputs(task: Task, contract: Contract) -> None:
    """Refuse vectors whose numbers are not those that the part was made for, in that order.

    >>> task = Task(torch.rand(8, 2), [0, 1] * 4, input_names=("age", "town=Ulm"))
    >>> refuse_other_inputs(task, Contract(inputs=("age", "town=Bonn")))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.ContractError: the part takes age, town=Bonn; 'task' has age, town=Ulm
    """
    known, offered = contract.inputs, task.input_names
    if known and offered and known != offered:
        raise ContractError(f"the part takes {listed(known)}; {task.name!r} has {listed(offered)}")


def prepare(inputs: Tensor, contract: Contract) -> Tensor:
    """Raw inputs ``[n, ...]`` as the part wants them; an error when they cannot become that.

    Bytes are shares of 255; floats are taken as they are, and refused where the preprocessing is
    for pixels from 0 to 1 and these go to 255 (:meth:`Preprocess.misfit`).

    >>> wide = Contract(preprocess=Preprocess(size=(4, 4), channels=3, scale=255.0))
    >>> prepare(torch.ones(2, 1, 8, 8), wide)[0, 2, 0, 0]
    tensor(255.)
    """
    x = as_float(inputs)
    if contract.preprocess is not None:
        if x.ndim == 4 and inputs.dtype != torch.uint8 and x.numel():
            low, high = torch.aminmax(x)
            if why := contract.preprocess.misfit(float(low), float(high), float(x.mean())):
                raise TaskError(why)
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
    return (x - middle).mul_(factor)  # in this order a large mean costs no digits
