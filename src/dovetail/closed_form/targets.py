"""What an estimator is to learn, as columns of numbers.

Two classes are one column of -1 and +1, more are one column each of 0 and 1; numbers are what they
are.  Classes are known once all rows were seen.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dovetail.core.errors import TaskError, nearest, shown
from dovetail.dist.group import told_by_each
from dovetail.measure.estimator_inputs import as_labels, as_numbers

__all__ = ["ClassTargets", "NumberTargets", "Targets"]

Array = np.ndarray[Any, Any]


class Targets(Protocol):
    """What an estimator is to learn."""

    def read(self, y: Any) -> Any:
        """The targets of some rows, checked."""
        ...

    def see(self, values: Any, weights: Tensor | None) -> None:
        """Take note of what :meth:`read` gave."""
        ...

    def settle(self, shared: bool) -> None:
        """All rows were seen; those of other processes, too, if shared."""
        ...

    def numbers(self, values: Any) -> Tensor:
        """What is to be standardised ``[b, k]``; no column for classes."""
        ...

    def columns(self, values: Any) -> Tensor:
        """Columns of numbers ``[b, k]``, float64."""
        ...

    @property
    def width(self) -> int:
        """How many columns there are."""
        ...


class ClassTargets:
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
    def width(self) -> int:
        """One column for two classes, else one for each."""
        return 1 if len(self.classes) == 2 else len(self.classes)

    def read(self, y: Any) -> Array:
        """Labels ``[b]``."""
        return as_labels(y)

    def see(self, values: Array, weights: Tensor | None) -> None:
        """Take note of the classes among some labels."""
        if not self._given:
            known = getattr(self, "classes", None)
            self.classes = _together(known, values)
        weighed = values if weights is None else values[weights.numpy() > 0]
        self._present = _together(self._present, weighed)

    def settle(self, shared: bool) -> None:
        """Agree on the classes; two of them must have rows of some weight."""
        present = self._present
        assert present is not None
        if shared:
            if not self._given:
                self.classes = _agreed(self.classes)
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
        found, inverse = np.unique(values, return_inverse=True)
        unknown = [label for label in found.tolist() if label not in place]
        if unknown:
            raise TaskError(
                f"the label {shown(unknown[0])} is not among the classes"
                f"{nearest(str(unknown[0]), [str(each) for each in place])}"
            )
        table = torch.tensor([place[label] for label in found.tolist()])
        codes = table[torch.from_numpy(inverse.reshape(-1))]
        if self.width == 1:
            return (2.0 * codes.double() - 1.0)[:, None]
        return F.one_hot(codes, self.width).double()


class NumberTargets:
    """Numbers, one column or several.

    >>> targets = NumberTargets()
    >>> targets.columns(targets.read([1, 2])), targets.flat
    (tensor([[1.],
            [2.]], dtype=torch.float64), True)
    """

    flat: bool
    """Whether they came without an axis of columns."""

    width: int = 0

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

    def see(self, values: Tensor, weights: Tensor | None) -> None:
        """There is nothing to note."""

    def settle(self, shared: bool) -> None:
        """There is nothing to agree on."""

    def numbers(self, values: Tensor) -> Tensor:
        """The numbers themselves."""
        return values

    def columns(self, values: Tensor) -> Tensor:
        """The numbers themselves."""
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
    for listed in told_by_each(mine.tolist()):
        found = np.array(listed, dtype=object if mine.dtype.kind == "O" else None)
        every = _together(every, found) if len(found) else every
    if every is None:
        return mine
    return every.astype(mine.dtype) if mine.dtype.kind in "iub" else every


def _is_text(labels: Array) -> bool:
    if labels.dtype.kind == "O":
        return len(labels) > 0 and isinstance(labels[0], str)
    return labels.dtype.kind in "US"
