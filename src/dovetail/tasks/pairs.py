"""Pairs of examples that are of one class, or not: the least that supervision can say."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dovetail.core.errors import TaskError
from dovetail.core.seeds import generator

__all__ = ["Pairs", "draw_pairs", "refuse_pairs"]


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of rows, and whether both are of one class.

    >>> pairs = Pairs(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([True, False]))
    >>> pairs
    Pairs(2 pairs, 1 of one class)
    """

    first: Tensor
    second: Tensor
    same: Tensor

    def __post_init__(self) -> None:
        ends = (self.first, self.second)
        if any(not isinstance(end, Tensor) for end in (*ends, self.same)):
            raise TaskError("pairs take three tensors: first, second, same")
        if any(end.ndim != 1 or end.shape != self.same.shape for end in ends):
            shapes = ", ".join(str(list(end.shape)) for end in (*ends, self.same))
            raise TaskError(f"pairs take three tensors of one length, got shapes {shapes}")
        if any(end.dtype != torch.int64 for end in ends) or self.same.dtype != torch.bool:
            raise TaskError("pairs take int64 rows (first, second) and booleans (same)")
        itself = (self.first == self.second).nonzero()
        if len(itself):
            raise TaskError(f"pair {int(itself[0])} joins a sample with itself")

    def __len__(self) -> int:
        return len(self.same)

    def __repr__(self) -> str:
        return f"Pairs({len(self)} pairs, {int(self.same.sum())} of one class)"

    def take(self, which: Tensor) -> Pairs:
        """The pairs that an index or a mask selects.

        >>> p = Pairs(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([True, False]))
        >>> len(p.take(p.same))
        1
        """
        return Pairs(self.first[which], self.second[which], self.same[which])

    def among(self, rows: Tensor) -> Pairs:
        """The pairs with both ends among the rows, in the same numbering.

        >>> p = Pairs(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([True, False]))
        >>> p.among(torch.tensor([1, 3])).first
        tensor([1])
        """
        return self.take(torch.isin(self.first, rows) & torch.isin(self.second, rows))

    def within(self, rows: Tensor) -> Pairs:
        """The pairs among sorted rows, renumbered to the rows' positions.

        >>> p = Pairs(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([True, False]))
        >>> p.within(torch.tensor([1, 3])).second
        tensor([1])
        """
        kept = self.among(rows)
        first, second = (torch.searchsorted(rows, end) for end in (kept.first, kept.second))
        return Pairs(first, second, kept.same)


def draw_pairs(labels: Tensor, count: int, seed: int) -> Pairs:
    """Random pairs of labelled rows: half of one class, half of two, as far as there are such.

    Each pair begins at a row drawn evenly; the other end is drawn evenly among the rows that make
    it a pair of its sort.  Pairs may repeat.

    >>> draw_pairs(torch.tensor([0, 0, 1, 1]), 6, seed=0)
    Pairs(6 pairs, 3 of one class)
    """
    if count < 1:
        raise TaskError(f"the count of pairs must be at least 1, got {count}")
    order = torch.argsort(labels, stable=True)
    _, code, sizes = torch.unique(labels[order], return_inverse=True, return_counts=True)
    starts = sizes.cumsum(0) - sizes
    has_same = (sizes[code] > 1).nonzero()[:, 0]
    has_other = torch.arange(len(order) if len(sizes) > 1 else 0)
    if len(has_same) == 0 and len(has_other) == 0:
        raise TaskError("one sample makes no pair")
    alike = count // 2 if len(has_other) else count
    alike = alike if len(has_same) else 0
    draw = generator(seed, "pairs")

    i = has_same[_below(torch.full((alike,), len(has_same)), draw)] if alike else order[:0]
    own = i - starts[code[i]]  # the place of i in its class, which the other end must skip
    j = _below(sizes[code[i]] - 1, draw)
    j = j + (j >= own) + starts[code[i]]

    k = has_other[_below(torch.full((count - alike,), len(has_other)), draw)]
    other = _below(len(order) - sizes[code[k]], draw)
    other = other + sizes[code[k]] * (other >= starts[code[k]])  # skip k's whole class

    same = torch.arange(count) < alike
    return Pairs(order[torch.cat([i, k])], order[torch.cat([j, other])], same)


def refuse_pairs(pairs: Pairs, count: int, train: Tensor) -> None:
    """Refuse pairs of samples that are not there, and pairs that leave nothing to train on.

    >>> pairs = Pairs(torch.tensor([0]), torch.tensor([9]), torch.tensor([True]))
    >>> refuse_pairs(pairs, 5, torch.arange(5))
    Traceback (most recent call last):
    ...
    dovetail.core.errors.TaskError: a pair names sample 9, but there are 5
    """
    ends = torch.cat([pairs.first, pairs.second])
    outside = ends[(ends < 0) | (ends >= count)]
    if len(outside):
        raise TaskError(f"a pair names sample {int(outside[0])}, but there are {count}")
    if len(pairs.among(train)) == 0:
        raise TaskError("no pair has both ends in the train split")


def _below(limits: Tensor, draw: torch.Generator) -> Tensor:
    """A random integer below each limit."""
    # float64, so that the largest product still rounds below any limit that fits in memory
    return (torch.rand(len(limits), generator=draw, dtype=torch.float64) * limits).long()
