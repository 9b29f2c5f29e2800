"""Batches of anything array-like, read one at a time into blocks of one size.

A fit goes through its batches several times, so they must be there again after the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.base import BaseEstimator
from torch import Tensor

from dovetail.closed_form.rows import BLOCK, Block
from dovetail.closed_form.spread import Spread
from dovetail.closed_form.targets import Targets
from dovetail.core.errors import DovetailError, TaskError
from dovetail.dist.group import merge_across, told_by_each
from dovetail.measure.estimator_inputs import as_inputs, as_weights
from dovetail.tasks.arrays import as_float

__all__ = ["Read", "Stream", "read_batch", "reblocked", "refuse_other_kind", "surveyed", "weighed"]


@dataclass(frozen=True, eq=False)
class Read:
    """A batch: rows ``[b, d]`` of float64, targets as their reader gives them, weights ``[b]``."""

    x: Tensor
    y: Any
    weights: Tensor | None
    shape: tuple[int, ...]
    """Of one input, before it became a row."""
    pixels: bool = False
    """Whether inputs were bytes, and are divided by 255."""


def read_batch(batch: Any, targets: Targets, reader: BaseEstimator, *, reset: bool) -> Read:
    """Check a batch and make tensors of it.

    Args:
        batch: ``(X, y)`` or ``(X, y, sample_weight)``.
        targets: Reads ``y``.
        reader: Learns what the inputs are (``reset``), and refuses others later.
        reset: Whether this is the first batch.

    >>> from dovetail.closed_form.targets import NumberTargets
    >>> read_batch(([[1, 2], [3, 4]], [1, 2]), NumberTargets(), BaseEstimator(), reset=True).shape
    (2,)
    """
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        found = f"{len(batch)} things" if isinstance(batch, tuple | list) else type(batch).__name__
        raise TaskError(f"a batch is (X, y) or (X, y, sample_weight), not {found}")
    raw = as_inputs(batch[0], reader, reset=reset, dtype=torch.float64)
    y = targets.read(batch[1])
    if len(raw) != len(y):
        raise TaskError(f"{len(raw)} inputs but {len(y)} targets; give one target for each input")
    weights = as_weights(batch[2] if len(batch) == 3 else None, len(raw))
    x = as_float(raw).double().flatten(1)
    return Read(x, y, weights, tuple(raw.shape[1:]), raw.dtype == torch.uint8)


class Stream:
    """Batches that can be gone through repeatedly; each call is one pass.

    >>> from dovetail.closed_form.targets import NumberTargets
    >>> stream = Stream([([[1.0]], [1.0]), ([[2.0]], [2.0])], NumberTargets(), BaseEstimator())
    >>> [len(read.x) for read in stream()], stream.passes
    ([1, 1], 1)
    """

    def __init__(self, batches: Any, targets: Targets, reader: BaseEstimator) -> None:
        self._batches, self._targets, self._reader = _repeatable(batches), targets, reader
        self._rows: int | None = None
        self.shape: tuple[int, ...] = ()
        self.pixels = False
        self.passes = 0

    def __call__(self) -> Iterator[Read]:
        """All batches but empty ones, each read when it is asked for."""
        first, rows = self._rows is None, 0
        for batch in self._batches():
            if _is_empty(batch):
                continue
            fresh = first and rows == 0
            read = read_batch(batch, self._targets, self._reader, reset=fresh)
            if fresh:
                self.shape, self.pixels = read.shape, read.pixels
                self._reader.input_shape_ = read.shape  # from now on it refuses others
            refuse_other_kind(self.pixels, read.pixels)
            rows += len(read.x)
            yield read
        if not first and rows != self._rows:
            raise TaskError(
                f"the first pass over the batches gave {self._rows} rows, this one {rows}; give "
                "batches that are the same each time: a list, a DataLoader, or a function that "
                "makes a new iterator whenever it is called"
            )
        self._rows, self.passes = rows, self.passes + 1


def refuse_other_kind(fitted: bool, given: bool) -> None:
    """Bytes are pixels, divided by 255; other numbers are not: the two must not be mixed.

    >>> refuse_other_kind(True, False)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: the network was fitted to bytes (uint8), which are divided by
    255, and these inputs are other numbers; give bytes, or numbers both times
    """
    if fitted != given:
        bytes_, numbers = "bytes (uint8), which are divided by 255", "other numbers"
        was, found = (bytes_, numbers) if fitted else (numbers, bytes_)
        raise TaskError(
            f"the network was fitted to {was}, and these inputs are {found}; give bytes, or "
            "numbers both times"
        )


def surveyed(
    reads: Callable[[], Iterable[Read]], targets: Targets, *, shared: bool = False
) -> Spread:
    """One pass that finds out how far inputs and numbers reach, and which classes there are.

    What is wrong with the rows of one process is told to all, so that none waits for it.
    """
    spread: Spread | None = None
    failure: DovetailError | None = None
    try:
        for block in reblocked(_noted(reads(), targets)):
            values = torch.cat([block.z, block.y], dim=1)
            spread = (Spread(values.shape[1]) if spread is None else spread).update(
                values, block.weights
            )
        if spread is None:
            raise TaskError("there are no rows, or all their weights are zero; give some")
    except DovetailError as error:
        if not shared:
            raise
        failure = error
    if shared:
        for process, said in enumerate(told_by_each(None if failure is None else str(failure))):
            if said is not None:
                raise TaskError(f"process {process}: {said}") from failure
    assert spread is not None
    targets.settle(shared)
    return merge_across(spread) if shared else spread


def weighed(read: Read, y: Tensor) -> Block:
    """A batch with the columns of its targets, without the rows that weigh nothing."""
    if read.weights is None or bool((read.weights > 0).all()):
        return Block(read.x, y, read.weights)
    kept = read.weights > 0
    return Block(read.x[kept], y[kept], read.weights[kept])


def reblocked(blocks: Iterable[Block], size: int = BLOCK) -> Iterator[Block]:
    """The same rows in blocks of ``size``: sums of them then do not depend on the batches.

    >>> rows = [Block(torch.ones(n, 2), torch.ones(n, 1)) for n in (1, 3, 7)]
    >>> [len(block.z) for block in reblocked(rows, 4)]
    [4, 4, 3]
    """
    held: list[Block] = []
    count = 0
    for block in blocks:
        held.append(block)
        count += len(block.z)
        if count < size:
            continue
        whole = _joined(held)
        full = count - count % size
        for start in range(0, full, size):
            yield _part(whole, slice(start, start + size))
        held, count = [_part(whole, slice(full, None))], count - full
    if count:
        yield _joined(held)


def _noted(reads: Iterable[Read], targets: Targets) -> Iterator[Block]:
    for read in reads:
        targets.see(read.y, read.weights)
        yield weighed(read, targets.numbers(read.y))


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    some = any(block.weights is not None for block in blocks)
    return Block(
        torch.cat([block.z for block in blocks]),
        torch.cat([block.y for block in blocks]),
        torch.cat([_weights(block) for block in blocks]) if some else None,
    )


def _weights(block: Block) -> Tensor:
    ones = torch.ones(len(block.z), dtype=torch.float64)
    return ones if block.weights is None else block.weights


def _part(block: Block, rows: slice) -> Block:
    weights = None if block.weights is None else block.weights[rows]
    return Block(block.z[rows], block.y[rows], weights)


def _is_empty(batch: Any) -> bool:
    return isinstance(batch, tuple | list) and len(batch) > 0 and _length(batch[0]) == 0


def _length(values: Any) -> int | None:
    try:
        return len(values)
    except TypeError:
        return None


def _repeatable(batches: Any) -> Callable[[], Iterable[Any]]:
    """What gives an iterator over all batches whenever it is called."""
    if hasattr(batches, "__next__"):
        raise TaskError(
            "these batches can be gone through once, and a fit goes through them several times; "
            "give a list, a DataLoader, or the function that makes the generator (without calling "
            "it)"
        )
    if hasattr(batches, "__iter__"):
        return lambda: iter(batches)
    if callable(batches):
        made: Callable[[], Iterable[Any]] = batches
        return made
    raise TaskError(
        f"batches are a list, a DataLoader or a function that makes an iterator, not "
        f"{type(batches).__name__}"
    )
