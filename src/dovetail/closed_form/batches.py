"""What an estimator is given: batches of anything array-like, their targets as columns of numbers.

Batches are read one at a time, into blocks of one size.  A fit goes through them several times, so
they must be there again after the last one.

Two classes are one column of -1 and +1, more are one column each of 0 and 1; numbers are what they
are.  Classes are known once all rows were seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from torch import Tensor
from torch.nn import functional as F

from dovetail.closed_form.rows import BLOCK, Block
from dovetail.closed_form.scaling import Spread
from dovetail.core.errors import DovetailError, TaskError, nearest, shown
from dovetail.dist.group import merge_across, told_by_each
from dovetail.measure.estimator_inputs import as_inputs, as_labels, as_numbers, as_weights
from dovetail.tasks.arrays import as_float

Array = np.ndarray[Any, Any]


class Read(NamedTuple):
    """A batch: rows ``[b, d]`` of float64, targets as their reader gives them, weights ``[b]``."""

    x: Tensor
    y: Any
    weights: Tensor | None


def read_batch(batch: Any, targets: Targets, reader: BaseEstimator, *, reset: bool) -> Read:
    """Check a batch and make tensors of it.

    Args:
        batch: ``(X, y)`` or ``(X, y, sample_weight)``.
        targets: Reads ``y``.
        reader: Learns what the inputs are (``reset``): ``input_shape_`` of one of them, and
            ``pixels_``, whether they are bytes, which are divided by 255; refuses others later.
        reset: Whether this is the first batch.

    >>> reader = BaseEstimator()
    >>> len(read_batch(([[1, 2], [3, 4]], [1, 2]), NumberTargets(), reader, reset=True).x)
    2
    >>> reader.input_shape_, reader.pixels_
    ((2,), False)
    """
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        what = f"{len(batch)} things" if isinstance(batch, tuple | list) else type(batch).__name__
        raise TaskError(f"a batch is (X, y) or (X, y, sample_weight), not {what}")
    raw = as_inputs(batch[0], reader, reset=reset, dtype=torch.float64)
    y = targets.read(batch[1])
    if len(raw) != len(y):
        raise TaskError(f"{len(raw)} inputs but {len(y)} targets; give one target for each input")
    weights = as_weights(batch[2] if len(batch) == 3 else None, len(raw))
    pixels = raw.dtype == torch.uint8
    if reset:
        reader.input_shape_, reader.pixels_ = tuple(raw.shape[1:]), pixels
    refuse_other_kind(reader.pixels_, pixels)
    return Read(as_float(raw).double().flatten(1), y, weights)


class Stream:
    """Batches that can be gone through repeatedly; each call is one pass.

    >>> stream = Stream([([[1.0]], [1.0]), ([[2.0]], [2.0])], NumberTargets(), BaseEstimator())
    >>> [len(read.x) for read in stream()], stream.passes
    ([1, 1], 1)
    """

    def __init__(self, batches: Any, targets: Targets, reader: BaseEstimator) -> None:
        self._batches, self._targets, self._reader = _repeatable(batches), targets, reader
        self._rows: int | None = None
        self.passes = 0

    def __call__(self) -> Iterator[Read]:
        """All batches but empty ones, each read when it is asked for."""
        first, rows = self._rows is None, 0
        for batch in self._batches():
            if _is_empty(batch):
                continue
            read = read_batch(batch, self._targets, self._reader, reset=first and rows == 0)
            rows += len(read.x)
            yield read
        if not first and rows != self._rows:
            raise TaskError(
                f"the first pass over the batches gave {self._rows} rows, this one {rows}; give "
                "batches that are the same each time: a list, a DataLoader, or a function that "
                "makes a new iterator whenever it is called"
            )
        self._rows, self.passes = rows, self.passes + 1


def refuse_other_kind(fitted: bool, bytes_now: bool) -> None:
    """Bytes are pixels, divided by 255; other numbers are not: the two must not be mixed.

    >>> refuse_other_kind(True, False)
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: the network was fitted to bytes (uint8), which are divided by
    255, and these inputs are other numbers; give bytes, or numbers both times
    """
    if fitted != bytes_now:
        bytes_, numbers = "bytes (uint8), which are divided by 255", "other numbers"
        was, now = (bytes_, numbers) if fitted else (numbers, bytes_)
        raise TaskError(
            f"the network was fitted to {was}, and these inputs are {now}; give bytes, or "
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
            spread = (spread or Spread(values.shape[1])).update(values, block.weights)
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
    block = Block(read.x, y, read.weights)
    if read.weights is None or bool((read.weights > 0).all()):
        return block
    return block.take(read.weights > 0)


def reblocked(blocks: Iterable[Block], size: int = BLOCK) -> Iterator[Block]:
    """The same rows in blocks of ``size``: sums of them then do not depend on the batches.

    >>> rows = [Block(torch.ones(n, 2), torch.ones(n, 1)) for n in (1, 3, 7)]
    >>> [len(block.z) for block in reblocked(rows, 4)]
    [4, 4, 3]
    """
    waiting: list[Block] = []
    count = 0
    for block in blocks:
        waiting.append(block)
        count += len(block.z)
        if count < size:
            continue
        joined = _joined(waiting)
        full = count - count % size
        for start in range(0, full, size):
            yield joined.take(slice(start, start + size))
        waiting, count = [joined.take(slice(full, None))], count - full
    if count:
        yield _joined(waiting)


def _noted(reads: Iterable[Read], targets: Targets) -> Iterator[Block]:
    for read in reads:
        targets.see(read.y, read.weights)
        yield weighed(read, targets.numbers(read.y))


def _joined(blocks: list[Block]) -> Block:
    if len(blocks) == 1:
        return blocks[0]
    z = torch.cat([block.z for block in blocks])
    y = torch.cat([block.y for block in blocks])
    if all(block.weights is None for block in blocks):
        return Block(z, y)
    weights = (z.new_ones(len(each.z)) if each.weights is None else each.weights for each in blocks)
    return Block(z, y, torch.cat(tuple(weights)))


def _is_empty(batch: Any) -> bool:
    try:
        return isinstance(batch, tuple | list) and len(batch) > 0 and len(batch[0]) == 0
    except TypeError:  # what has no length is for the reader to refuse
        return False


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
        return cast(Callable[[], Iterable[Any]], batches)
    raise TaskError(
        f"batches are a list, a DataLoader or a function that makes an iterator, not "
        f"{type(batches).__name__}"
    )


class Targets(ABC):
    """What an estimator is to learn; ``width`` columns of it, once all rows were seen."""

    width: int

    @property
    @abstractmethod
    def learnt(self) -> dict[str, Any]:
        """What an estimator keeps of them, by the names of its attributes."""

    @abstractmethod
    def read(self, y: Any) -> Any:
        """The targets of some rows, checked."""

    def see(self, values: Any, weights: Tensor | None) -> None:  # noqa: B027
        """Take note of what :meth:`read` gave."""

    def settle(self, shared: bool) -> None:  # noqa: B027
        """All rows were seen; those of other processes, too, if shared."""

    def numbers(self, values: Any) -> Tensor:
        """What is to be standardised ``[b, k]``; no column for classes."""
        return cast(Tensor, values)

    def columns(self, values: Any) -> Tensor:
        """Columns of numbers ``[b, k]``, float64."""
        return cast(Tensor, values)


class ClassTargets(Targets):
    """Classes, sorted, as the user spells them.

    >>> targets = ClassTargets()
    >>> labels = targets.read(["owl", "cat"])
    >>> targets.see(labels, None); targets.settle(shared=False)
    >>> targets.classes.tolist(), targets.columns(labels).tolist()
    (['cat', 'owl'], [[1.0], [-1.0]])
    """

    classes: Array
    """All that were given or seen."""

    def __init__(self, classes: Any = None) -> None:
        self._given = classes is not None
        self._present: Array | None = None  # those with a row of some weight
        if self._given:
            self.classes = np.unique(as_labels(classes))
            _refuse_one(self.classes, "classes names")

    @property
    def width(self) -> int:  # type: ignore[override]
        """One column for two classes, else one for each."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    @property
    def learnt(self) -> dict[str, Any]:
        """The classes."""
        return {"classes_": self.classes}

    def read(self, y: Any) -> Array:
        """Labels ``[b]``."""
        return as_labels(y)

    def see(self, values: Array, weights: Tensor | None) -> None:
        """Take note of the classes among some labels."""
        if not self._given:
            self.classes = _together(getattr(self, "classes", None), values)
        weighed = values if weights is None else values[weights.numpy() > 0]
        self._present = _together(self._present, weighed)

    def settle(self, shared: bool) -> None:
        """Agree on the classes; two of them must have rows of some weight."""
        present = self._present
        assert present is not None
        if shared:
            self.classes = self.classes if self._given else _agreed(self.classes)
            present = _agreed(present)
        _refuse_one(self.classes, "the labels name")
        if len(present) < 2:
            others = f"all but the class {present[0]}" if len(present) else "all rows"
            raise TaskError(f"the weights of {others} are zero; a classifier needs two classes")

    def numbers(self, values: Array) -> Tensor:
        """Nothing to standardise."""
        return torch.empty(len(values), 0, dtype=torch.float64)

    def columns(self, values: Array) -> Tensor:
        """-1 and +1 ``[b, 1]``, or one-hot ``[b, C]``."""
        place = {label: i for i, label in enumerate(self.classes.tolist())}
        labels, inverse = np.unique(values, return_inverse=True)
        unknown = [label for label in labels.tolist() if label not in place]
        if unknown:
            raise TaskError(
                f"the label {shown(unknown[0])} is not among the classes"
                f"{nearest(str(unknown[0]), [str(each) for each in place])}"
            )
        table = torch.tensor([place[label] for label in labels.tolist()])
        codes = table[torch.from_numpy(inverse.reshape(-1))]
        if self.width == 1:
            return (2.0 * codes.double() - 1.0)[:, None]
        return F.one_hot(codes, self.width).double()


class NumberTargets(Targets):
    """Numbers, one column or several.

    >>> targets = NumberTargets()
    >>> targets.columns(targets.read([1, 2])), targets.flat
    (tensor([[1.],
            [2.]], dtype=torch.float64), True)
    """

    flat: bool
    """Whether they came without an axis of columns."""

    width: int = 0

    @property
    def learnt(self) -> dict[str, Any]:
        """Whether predictions are to have an axis of columns."""
        return {"flat_": self.flat}

    def read(self, y: Any) -> Tensor:
        """Numbers ``[b, k]``."""
        values, flat = as_numbers(y)
        if self.width and (flat, values.shape[1]) != (self.flat, self.width):
            had = "[n]" if self.flat else f"[n, {self.width}]"
            raise TaskError(
                f"targets of shape {list(values.shape)} follow others of {had}; give all alike"
            )
        self.flat, self.width = flat, values.shape[1]
        return values


def _refuse_one(classes: Array, who: str) -> None:
    if len(classes) < 2:
        raise TaskError(f"{who} one class, {classes[0]}; a classifier needs two")


def _together(known: Array | None, labels: Array) -> Array:
    new = np.unique(labels)
    if known is None:
        return new
    if _is_text(known) != _is_text(new) and len(known) and len(new):
        raise TaskError(
            f"labels are text in some batches and numbers in others, such as {shown(known[0])} and "
            f"{shown(new[0])}; spell them alike"
        )
    return np.unique(np.concatenate([known, new]))


def _agreed(mine: Array) -> Array:
    """The classes of all processes."""
    every: Array | None = None
    for listed in filter(None, told_by_each(mine.tolist())):
        every = _together(every, np.array(listed, dtype=object if mine.dtype == object else None))
    if every is None:
        return mine
    return every.astype(mine.dtype) if mine.dtype.kind in "iub" else every


def _is_text(labels: Array) -> bool:
    if labels.dtype.kind == "O":
        return len(labels) > 0 and isinstance(labels[0], str)
    return labels.dtype.kind in "US"
